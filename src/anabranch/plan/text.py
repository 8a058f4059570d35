"""The text form of physical plans; `parse(str(plan)) == plan` for every plan.

The grammar, in which a name is that of a relation and a shape is a plan without orders:

    plan   := join | name
    join   := '(' input input+ ['|' order (',' order)*] ')'
    input  := plan | '[' plan ']'
    order  := shape ('>' shape)+
    shape  := an input without orders
"""

from __future__ import annotations

import re

from anabranch.errors import PlanError
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, PreGroup, shape

_TOKEN = re.compile(r"\s*([()\[\]|,>]|[A-Za-z_][A-Za-z_0-9]*|\S)")


def parse(text: str) -> PhysicalPlan:
    """The plan a text describes, or a PlanError that names the position."""
    tokens = [(match.group(1), match.start(1)) for match in _TOKEN.finditer(text)]
    plan, rest = _plan(text, tokens, 0)
    if rest != len(tokens):
        raise _unexpected(text, tokens, rest, "the end of the plan")
    return plan


def _input(text: str, tokens: list[tuple[str, int]], at: int) -> tuple[PhysicalPlan, int]:
    if _peek(tokens, at) != "[":
        return _plan(text, tokens, at)
    plan, at = _plan(text, tokens, at + 1)
    if _peek(tokens, at) != "]":
        raise _unexpected(text, tokens, at, "']'")
    return PreGroup(plan), at + 1


def _plan(text: str, tokens: list[tuple[str, int]], at: int) -> tuple[PhysicalPlan, int]:
    token = _peek(tokens, at)
    if _is_name(token):
        return Leaf(token), at + 1
    if token != "(":
        raise _unexpected(text, tokens, at, "a relation name or '('")
    inputs: list[PhysicalPlan] = []
    at += 1
    while _peek(tokens, at) not in (")", "|"):
        child, at = _input(text, tokens, at)
        inputs.append(child)
    orders: dict[int, tuple[int, ...]] = {}
    if _peek(tokens, at) == "|":
        while not orders or _peek(tokens, at) == ",":
            start = at + 1
            (first, *others), at = _order(text, tokens, start, inputs)
            if first in orders:
                raise _unexpected(text, tokens, start, "one order for each input")
            orders[first] = tuple(others)
        if _peek(tokens, at) != ")":
            raise _unexpected(text, tokens, at, "'>', ',' or ')'")
    return JoinNode(tuple(inputs), tuple(orders.get(i, ()) for i in range(len(inputs)))), at + 1


def _order(text: str, tokens: list[tuple[str, int]], at: int, inputs: list[PhysicalPlan]) -> tuple[list[int], int]:
    shapes = [shape(child) for child in inputs]
    positions: list[int] = []
    while True:
        start = at
        child, at = _input(text, tokens, at)
        if shape(child) not in shapes:
            raise _unexpected(text, tokens, start, f"one of the inputs {', '.join(shapes)}")
        positions.append(shapes.index(shape(child)))
        if _peek(tokens, at) == ">":
            at += 1
        elif len(positions) > 1:
            return positions, at
        else:
            raise _unexpected(text, tokens, at, "'>'")


def _peek(tokens: list[tuple[str, int]], at: int) -> str:
    return tokens[at][0] if at < len(tokens) else ""


def _is_name(token: str) -> bool:
    return token[:1].isalpha() or token[:1] == "_"


def _unexpected(text: str, tokens: list[tuple[str, int]], at: int, expected: str) -> PlanError:
    position = tokens[at][1] if at < len(tokens) else len(text)
    found = f"'{tokens[at][0]}'" if at < len(tokens) else "the end"
    return PlanError(
        f"plan text is wrong at character {position + 1}: expected {expected}, found {found}",
        detail=f"  {text}\n  {' ' * position}^",
        hint="plans look like (a b c), ((a b) c), ([a] b) or ((a b) c d | c>(a b)>d)",
    )
