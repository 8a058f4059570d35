"""The text form of physical plans; `parse(str(plan)) == plan` for every plan.

The grammar, in which a name is that of a relation and a shape is a plan without orders:

    plan   := join | shared | name
    join   := '(' inside ')'
    shared := '{' inside '}'
    inside := input input+ check* ['|' order (',' order)*]
    input  := plan | '[' plan ']'
    check  := '#' number
    order  := shape ('>' shape)+
    shape  := an input without orders
"""

from __future__ import annotations

import re

from anabranch.errors import PlanError
from anabranch.plan.join_graph import is_selection, position_of
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, PreGroup, Shared, shape
from anabranch.plan.reader import TextReader


def parse(text: str) -> PhysicalPlan:
    """Parses a plan; raises PlanError with the position of a mistake."""
    reader = _Reader(text)
    try:
        plan, at = reader.plan(0)
    except RecursionError as error:
        raise PlanError("plan text has too many brackets inside each other", hint=reader.hint) from error
    reader.end(at)
    return plan


class _Reader(TextReader):
    token = re.compile(r"\s*([()\[\]{}|,>]|#[0-9]+|[A-Za-z_][A-Za-z_0-9]*|\S)")
    kind = "plan"
    hint = "plans look like (a b c), ((a b) c), ([a] b), ((a b) c #0) or ((a b) c d | c>(a b)>d)"

    def input(self, at: int) -> tuple[PhysicalPlan, int]:
        if self.peek(at) != "[":
            return self.plan(at)
        plan, at = self.plan(at + 1)
        return PreGroup(plan), self.expect(at, "]")

    def plan(self, at: int) -> tuple[PhysicalPlan, int]:
        token = self.peek(at)
        if _is_name(token):
            return Leaf(token), at + 1
        if token == "{":
            join, at = self.join(at + 1, "}")
            return Shared(join), at
        return self.join(self.expect(at, "(", "a relation name or '('"), ")")

    def join(self, at: int, closing: str) -> tuple[JoinNode, int]:
        inputs: list[PhysicalPlan] = []
        while self.peek(at) not in (closing, "|") and not _is_check(self.peek(at)):
            child, at = self.input(at)
            inputs.append(child)
        checks: list[int] = []
        while _is_check(self.peek(at)):
            checks.append(position_of(self.peek(at)))
            at += 1
        orders: dict[int, tuple[int, ...]] = {}
        if self.peek(at) == "|":
            while not orders or self.peek(at) == ",":
                start = at + 1
                (first, *others), at = self.order(start, inputs)
                if first in orders:
                    raise self.unexpected(start, "one order for each input")
                orders[first] = tuple(others)
        end = f"'{closing}'"
        at = self.expect(at, closing, f"'>', ',' or {end}" if orders else f"'|' or {end}" if checks else end)
        return JoinNode(tuple(inputs), tuple(orders.get(i, ()) for i in range(len(inputs))), tuple(checks)), at

    def order(self, at: int, inputs: list[PhysicalPlan]) -> tuple[list[int], int]:
        shapes = [shape(child) for child in inputs]
        positions: list[int] = []
        while True:
            start = at
            child, at = self.input(at)
            if shape(child) not in shapes:
                raise self.unexpected(start, f"one of the inputs {', '.join(shapes)}")
            positions.append(shapes.index(shape(child)))
            if self.peek(at) != ">":
                break
            at += 1
        if len(positions) == 1:
            raise self.unexpected(at, "'>'")
        return positions, at


def _is_name(token: str) -> bool:
    return token[:1].isalpha() or token[:1] == "_"


def _is_check(token: str) -> bool:
    return is_selection(token) and len(token) > 1
