"""Objectives and hints: what the best plan optimizes, and shapes or orders that the user forces or forbids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, permutations
from typing import Literal, TypeAlias

from anabranch.cost.resources import ResourceModel
from anabranch.errors import PlanError, SpecError
from anabranch.lang.window import parse_duration
from anabranch.optimize.proposals import kind
from anabranch.plan.check import validate
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import JoinNode, PhysicalPlan, nodes, shape
from anabranch.plan.query import Grouping
from anabranch.plan.text import parse

ObjectiveKind: TypeAlias = Literal["qualified", "cpu", "memory", "rate", "first"]
Kind: TypeAlias = Literal["mjoin", "tree", "jtree"]
KINDS: tuple[Kind, ...] = ("mjoin", "tree", "jtree")
MERGING = "merging"


@dataclass(frozen=True)
class Objective:
    """The quantity that the best plan optimizes; `amount` is seconds for rate@ and results for first@."""

    kind: ObjectiveKind = "qualified"
    amount: float = 0.0

    def __str__(self) -> str:
        match self.kind:
            case "rate":
                return f"rate@{self.amount:g} seconds"
            case "first":
                return f"first@{self.amount:g}"
        return self.kind

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Parses an objective: qualified, cpu, memory, rate@<time> or first@<number of results>."""
        name, at, amount = text.partition("@")
        match name.strip(), at:
            case ("qualified" | "cpu" | "memory") as plain, "":
                return cls(plain)
            case ("rate" | "first") as timed, "@":
                value = _amount(timed, amount.strip())
                if value is not None and value > 0:
                    return cls(timed, value)
            case _:
                pass
        raise SpecError(
            f"unknown objective '{text}'",
            hint="write qualified, cpu, memory, rate@<time> such as rate@30 seconds, or first@<number of results>",
        )


def _amount(name: str, text: str) -> float | None:
    try:
        return parse_duration(text) / 1e6 if name == "rate" else float(text)
    except ValueError:
        return None


@dataclass(frozen=True)
class Hints:
    """Shapes and orders that a plan must or must not have."""

    plan: PhysicalPlan | None = None
    """The plan itself; orders that it leaves open are chosen."""
    kinds: tuple[Kind, ...] = KINDS
    """The allowed families of plans."""
    keep: tuple[frozenset[str], ...] = ()
    """Relations whose join must be a state."""
    forbid: tuple[PhysicalPlan, ...] = ()
    """Joins that must not be formed or, with an explicit order, orders that must not be used."""
    may_merge: bool = True
    """True if rows may be merged before they join."""
    optimizer: str | None = None
    """The only optimizer to use, by its name in `optimizers.NAMED`."""

    @classmethod
    def parse(
        cls,
        graph: JoinGraph,
        grouping: Grouping | None = None,
        *,
        force: str | None = None,
        keep: Iterable[str] = (),
        forbid: Iterable[str] = (),
        optimizer: str | None = None,
    ) -> Hints:
        """Parses hints: force a family or a whole plan, keep joins such as 'a b', forbid families or joins.

        Forbidding 'merging' excludes the plans that merge rows before they join.
        """
        kinds, plan = list(KINDS), None
        if force in KINDS:
            kinds = [known for known in KINDS if known == force]
        elif force is not None:
            plan = validate(parse(force), graph, grouping)
        forbidden, texts = [], list(forbid)
        for text in texts:
            if text == MERGING:
                continue
            if text in KINDS:
                kinds = [known for known in kinds if known != text]
            else:
                forbidden.append(_pattern(text, graph))
        kept = tuple(frozenset(_named(text.strip("() ").split(), "keep", text, graph)) for text in keep)
        if not kinds:
            raise SpecError("'hints' forbid every family of plans", hint="allow one of mjoin, tree, jtree")
        if len(graph.names) <= 2 and force != "jtree":
            kinds = list(KINDS)  # the only possible plan belongs to every family
        return cls(plan, tuple(kinds), kept, tuple(forbidden), MERGING not in texts, optimizer)

    def forbidden_sets(self, model: ResourceModel) -> frozenset[int]:
        """Returns the sets of relations that must not be joined in any way."""
        patterns = (p for p in self.forbid if isinstance(p, JoinNode) and not any(p.orders))
        return frozenset(model.estimates.mask(pattern.relations) for pattern in patterns)

    @property
    def forbids_orders(self) -> bool:
        """True if some probe order is forbidden."""
        return any(isinstance(pattern, JoinNode) and any(pattern.orders) for pattern in self.forbid)

    def needed_sets(self, model: ResourceModel) -> frozenset[int]:
        return frozenset(model.estimates.mask(tuple(group)) for group in self.keep)

    def objection(self, plan: PhysicalPlan) -> str:
        """Returns the reason why a plan is not allowed; empty if it is allowed."""
        if self == NO_HINTS:
            return ""
        if self.plan is not None:
            return "" if plan == self.plan else "another plan was requested"
        if kind(plan) not in self.kinds:
            return f"a {kind(plan)} is excluded by 'plan' or 'hints'"
        joined = {frozenset(node.relations) for node in nodes(plan)}
        for group in self.keep:
            if group not in joined:
                return f"does not join {' '.join(sorted(group))} first, as a hint requires"
        for pattern in self.forbid:
            if not isinstance(pattern, JoinNode):
                continue
            if not any(pattern.orders) and frozenset(pattern.relations) in joined:
                return f"{shape(pattern)} is forbidden by a hint"
            if any(_given_orders(node) & _given_orders(pattern) for node in nodes(plan) if _same(node, pattern)):
                return f"an order of {pattern} is forbidden by a hint"
        return ""

    def amended(self, plan: PhysicalPlan, model: ResourceModel) -> PhysicalPlan:
        """Returns the plan with every forbidden probe order replaced by the cheapest allowed one."""
        if not isinstance(plan, JoinNode):
            return plan
        inputs = tuple(self.amended(child, model) for child in plan.inputs)
        node = replace(plan, inputs=inputs)
        forbidden: set[tuple[str, ...]] = set()
        for pattern in self.forbid:
            if isinstance(pattern, JoinNode) and _same(node, pattern):
                forbidden |= _given_orders(pattern)
        if len(inputs) == 2 or not forbidden & _given_orders(node):
            return node
        orders = tuple(_allowed_order(node, start, forbidden, model) for start in range(len(inputs)))
        return replace(node, orders=orders)


NO_HINTS = Hints()


def _pattern(text: str, graph: JoinGraph) -> PhysicalPlan:
    try:
        pattern = parse(text)
    except PlanError as error:
        hint = "write a family (mjoin, tree, jtree), merging, a join such as (a b), or an order such as (a b c | a>b>c)"
        raise PlanError(f"'hints.forbid': {error.message}", detail=error.detail, hint=hint) from error
    _named(pattern.relations, "forbid", text, graph)
    return pattern


def _named(names: Sequence[str], entry: str, text: str, graph: JoinGraph) -> Sequence[str]:
    """Returns the names if they are two or more relations of the query; raises otherwise."""
    for name in names:
        if name not in graph.names:
            raise PlanError(
                f"'hints.{entry}' names '{name}', which the query does not have",
                detail=f"in '{text}'",
                hint=f"the query's relations are {', '.join(graph.names)}",
            )
    if len(names) < 2:
        raise SpecError(f"'hints.{entry}' names no join in '{text}'", hint="name at least two relations")
    return names


MOST_ORDERS = 5040


def _allowed_order(
    node: JoinNode, start: int, forbidden: set[tuple[str, ...]], model: ResourceModel
) -> tuple[int, ...]:
    blocks = [model.estimates.mask(child.relations) for child in node.inputs]

    def cost(order: tuple[int, ...]) -> float:
        return model.chain(blocks[start], [blocks[position] for position in order])

    # Permutations of the present order, so that a truncated list begins with its neighbours.
    tried = [node.orders[start], *islice(permutations(node.orders[start]), MOST_ORDERS)]
    allowed = [order for order in tried if _sequence(node, start, order) not in forbidden]
    return min(allowed or tried[:1], key=cost)


def _same(node: JoinNode, pattern: JoinNode) -> bool:
    return {shape(child) for child in node.inputs} == {shape(child) for child in pattern.inputs}


def _sequence(node: JoinNode, start: int, order: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(shape(node.inputs[position]) for position in (start, *order))


def _given_orders(node: JoinNode) -> set[tuple[str, ...]]:
    return {_sequence(node, start, order) for start, order in enumerate(node.orders) if order}
