"""Physical plans: small immutable values that describe how the join graph of a query runs.

A plan is a tree of n-way window joins over relations. A join of all relations is an *mjoin* (no intermediate state), a
tree of two-way joins keeps every intermediate result, and anything between is a *jtree*. Each input of a join has a
probe order over the other inputs; for an empty order, `probe_order` chooses one that follows the join graph.

    (a b c)              one three-way join
    ((a b) c)            a tree
    ((a b) c d)          a mixture
    (a b c | a>c>b)      rows of a probe c first, then b; the others take the default order
    ([a] b)              rows of a that no operator above can distinguish are merged before they join
    ((a b) c #0)         the first theta of the join graph is deferred to the upper join
    ({a b} c)            the inner join is shared: all queries of a set with that part in their plans compute it once

Merging is for grouped queries: a `PreGroup` is the lower stage of a two-stage group-by; `plan.pregrouping` defines the
contents of a merged row.

Invariant: a plan has no costs and no statistics, so equal texts mean equal plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Self, TypeAlias

from anabranch.errors import PlanError
from anabranch.plan.content import Applied, Content
from anabranch.plan.join_graph import JoinGraph, selection_name


@dataclass(frozen=True)
class Leaf:
    """The base state of one relation."""

    relation: str

    @property
    def relations(self) -> tuple[str, ...]:
        return (self.relation,)

    @property
    def inputs(self) -> tuple[PhysicalPlan, ...]:
        return ()

    @property
    def shape(self) -> str:
        return self.relation

    @property
    def content(self) -> Content:
        return Content.of(self.relations)

    def with_inputs(self, inputs: tuple[PhysicalPlan, ...]) -> Leaf:
        return self

    def __str__(self) -> str:
        return self.relation


@dataclass(frozen=True)
class JoinNode:
    """An n-way window join; `orders[i]` lists the input positions that input i probes, or is empty for the default.

    `checks` are the positions of thetas deferred to this join; see `plan.selections`.
    """

    inputs: tuple[PhysicalPlan, ...]
    orders: tuple[tuple[int, ...], ...] = field(default=())
    checks: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        if len(self.inputs) < 2:
            raise PlanError("a join needs at least two inputs", hint="write a plan such as '(a b)'")
        if len(set(self.relations)) != len(self.relations):
            twice = sorted({name for name in self.relations if self.relations.count(name) > 1})
            raise PlanError(f"relation '{twice[0]}' occurs twice in plan '{self.shape}'")
        # The order of checks has no meaning, so it is not part of the value.
        object.__setattr__(self, "checks", tuple(sorted(self.checks)))
        if not self.orders:
            object.__setattr__(self, "orders", ((),) * len(self.inputs))
        if len(self.orders) != len(self.inputs):
            raise PlanError(f"plan '{self.shape}' has {len(self.orders)} orders for {len(self.inputs)} inputs")
        for position, order in enumerate(self.orders):
            others = set(range(len(self.inputs))) - {position}
            if order and (set(order) != others or len(order) != len(others)):
                raise PlanError(
                    f"the order of input '{self.inputs[position]}' in plan '{self.shape}' does not visit every "
                    "other input once"
                )

    @cached_property
    def relations(self) -> tuple[str, ...]:
        return tuple(name for child in self.inputs for name in child.relations)

    @cached_property
    def shape(self) -> str:
        """The plan text without probe orders."""
        return f"({' '.join([*(shape(child) for child in self.inputs), *self._checks])})"

    @cached_property
    def content(self) -> Content:
        """The content of the join's combinations, apart from deferred predicates.

        >>> JoinNode((PreGroup(Leaf("b")), Leaf("c"))).content.applied
        frozenset({Applied(kind='merge', relations=frozenset({'b'}))})
        """
        applied = frozenset[Applied]().union(*(child.content.applied for child in self.inputs))
        return Content(frozenset(self.relations), applied)

    @cached_property
    def parts(self) -> tuple[PhysicalPlan, ...]:
        """The join and all plans below it, inputs first; cached, because plan selection traverses them often."""
        return (*(part for child in self.inputs for part in subplans(child)), self)

    @cached_property
    def joins(self) -> tuple[JoinNode, ...]:
        """The join and those below it, inputs first."""
        return tuple(part for part in self.parts if isinstance(part, JoinNode))

    @cached_property
    def is_plain(self) -> bool:
        """True if nothing below defers a predicate or works on an input."""
        return not any(isinstance(part, InputOperator) for part in self.parts) and not any(
            node.checks for node in self.joins
        )

    def with_inputs(self, inputs: tuple[PhysicalPlan, ...]) -> JoinNode:
        """Returns the join over other inputs."""
        return replace(self, inputs=inputs)

    @property
    def _checks(self) -> tuple[str, ...]:
        return tuple(selection_name(position) for position in self.checks)

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        """The plan text; cached, because plan selection identifies plans by their texts."""
        body = " ".join([*(str(child) for child in self.inputs), *self._checks])
        orders = ", ".join(
            ">".join(shape(self.inputs[step]) for step in (position, *order))
            for position, order in enumerate(self.orders)
            if order
        )
        return f"({body} | {orders})" if orders else f"({body})"


@dataclass(frozen=True)
class InputOperator:
    """An operator between an input and the join that reads it; the join keeps its results as an intermediate state.

    A new kind needs a text form (`shape`, `__str__`, `plan.text`) and an operator of the engine
    (`engine.operators.inputs`). Cost models assume that an unknown kind is free and keeps all rows.
    """

    input: PhysicalPlan

    kind: ClassVar[str]
    """The operation on its rows, as a verb; part of the content of a state."""

    @property
    def inputs(self) -> tuple[PhysicalPlan, ...]:
        return (self.input,)

    @property
    def relations(self) -> tuple[str, ...]:
        return self.input.relations

    @property
    def shape(self) -> str:
        """The plan text without probe orders."""
        raise NotImplementedError

    @property
    def content(self) -> Content:
        """The content of the combinations, apart from deferred predicates."""
        below = self.input.content
        return replace(below, applied=below.applied | {Applied(self.kind, below.relations)})

    def with_inputs(self, inputs: tuple[PhysicalPlan, ...]) -> Self:
        """Returns the operator over another input."""
        (below,) = inputs
        return replace(self, input=below)


@dataclass(frozen=True)
class PreGroup(InputOperator):
    """Merges rows that no operator above can distinguish; an input of a join of a grouped query."""

    kind: ClassVar[str] = "merge"

    def __post_init__(self) -> None:
        if isinstance(self.input, PreGroup):
            raise PlanError(f"plan '[{self.input}]' merges the same rows twice", hint=f"write '{self.input}'")

    @property
    def shape(self) -> str:
        return f"[{self.input.shape}]"

    @property
    def content(self) -> Content:
        """The content after merging; earlier merges below are subsumed."""
        relations = frozenset(self.relations)
        return Content(relations, frozenset({Applied(self.kind, relations)}))

    def __str__(self) -> str:
        return f"[{self.input}]"


@dataclass(frozen=True)
class Shared:
    """A join that queries of a set compute once for all of them; `plan.sharing` defines its results.

    For the plan that names it, it is a source of combinations like the base state of a relation: it has no inputs.
    """

    join: JoinNode

    def __post_init__(self) -> None:
        odd = next((part for part in subplans(self.join) if not isinstance(part, Leaf | JoinNode)), None)
        if odd is not None:
            raise PlanError(
                f"'{odd}' cannot be part of the shared join '{self}'", hint="share plain joins of relations"
            )
        if any(node.checks for node in nodes(self.join)):
            raise PlanError(f"the shared join '{self}' defers a predicate", hint="leave '#…' out inside the braces")

    @property
    def relations(self) -> tuple[str, ...]:
        return self.join.relations

    @property
    def inputs(self) -> tuple[PhysicalPlan, ...]:
        return ()

    @property
    def shape(self) -> str:
        return f"{{{self.join.shape[1:-1]}}}"

    @property
    def content(self) -> Content:
        return Content.of(self.relations)

    def with_inputs(self, inputs: tuple[PhysicalPlan, ...]) -> Shared:
        return self

    def __str__(self) -> str:
        return f"{{{str(self.join)[1:-1]}}}"


PhysicalPlan: TypeAlias = Leaf | Shared | JoinNode | InputOperator


def shape(plan: PhysicalPlan) -> str:
    """Returns the plan text without probe orders."""
    return plan.shape


def plain_shape(plan: PhysicalPlan) -> str:
    """Returns the shape with shared joins expanded; statistics identify joins and states by it."""
    return shape(plan).translate(_PLAIN)


_PLAIN = str.maketrans("{}", "()")


def subplans(plan: PhysicalPlan) -> Iterator[PhysicalPlan]:
    """Yields a plan and all plans below it, inputs first."""
    if isinstance(plan, JoinNode):
        yield from plan.parts
        return
    for child in plan.inputs:
        yield from subplans(child)
    yield plan


def kept(plan: PhysicalPlan) -> Iterator[JoinNode | InputOperator]:
    """Returns the plans whose rows are kept as intermediate state: all inputs of the plan's own joins."""
    return (child for node in nodes(plan) for child in node.inputs if not isinstance(child, Leaf | Shared))


def nodes(plan: PhysicalPlan) -> Iterator[JoinNode]:
    """Yields the joins of a plan, inputs first."""
    if isinstance(plan, JoinNode):
        return iter(plan.joins)
    return (below for below in subplans(plan) if isinstance(below, JoinNode))


def is_plain(plan: PhysicalPlan) -> bool:
    """True if nothing in a plan defers a predicate or works on an input."""
    return isinstance(plan, Leaf | Shared) or (isinstance(plan, JoinNode) and plan.is_plain)


def input_operators(plan: PhysicalPlan) -> Iterator[InputOperator]:
    """Yields the operators between inputs and joins, inner ones first."""
    return (below for below in subplans(plan) if isinstance(below, InputOperator))


def pre_groups(plan: PhysicalPlan) -> Iterator[PreGroup]:
    """Yields the merged inputs of a plan, inner ones first."""
    return (below for below in subplans(plan) if isinstance(below, PreGroup))


def leaves(plan: PhysicalPlan) -> tuple[str, ...]:
    """Returns the relations whose rows the plan itself joins, without those of shared joins."""
    return tuple(below.relation for below in subplans(plan) if isinstance(below, Leaf))


def shared_parts(plan: PhysicalPlan) -> tuple[Shared, ...]:
    """Returns the shared joins of a plan."""
    return tuple(below for below in subplans(plan) if isinstance(below, Shared))


def unshared(plan: PhysicalPlan) -> PhysicalPlan:
    """Returns the plan that computes its shared joins itself.

    >>> str(unshared(JoinNode((Shared(JoinNode((Leaf("a"), Leaf("b")))), Leaf("c")))))
    '((a b) c)'
    """
    if isinstance(plan, Shared):
        return plan.join
    return plan.with_inputs(tuple(unshared(child) for child in plan.inputs))


def height(plan: PhysicalPlan) -> int:
    """Returns the number of joins on the longest path from a relation to the root."""
    return int(isinstance(plan, JoinNode)) + max((height(child) for child in plan.inputs), default=0)


def mjoin(relations: tuple[str, ...]) -> PhysicalPlan:
    """Returns one join of all relations; a single relation is its own plan."""
    leaves = tuple(Leaf(name) for name in relations)
    return leaves[0] if len(leaves) == 1 else JoinNode(leaves)


def linear_tree(relations: tuple[str, ...]) -> PhysicalPlan:
    """Returns a left-deep tree of two-way joins, in that order."""
    plan: PhysicalPlan = Leaf(relations[0])
    for name in relations[1:]:
        plan = JoinNode((plan, Leaf(name)))
    return plan


def probe_order(node: JoinNode, position: int, graph: JoinGraph) -> tuple[int, ...]:
    """Returns the order in which rows of one input probe the others: the given one, or connected inputs first.

    The default repeatedly takes the first input that shares a key class with the inputs so far, else one that shares
    any predicate, else the first remaining, so that no cross product is formed while an index can be used. It starts
    after the input itself: later inputs do not hold the new rows of a step yet, so fewer rows are found in them.
    """
    if node.orders[position]:
        return node.orders[position]
    bound = set(node.inputs[position].relations)
    left = [*range(position + 1, len(node.inputs)), *range(position)]
    order: list[int] = []
    while left:
        by_key = [i for i in left if graph.keys_between(bound, node.inputs[i].relations)]
        reachable = by_key or [i for i in left if graph.are_connected(bound, node.inputs[i].relations)]
        chosen = (reachable or left)[0]
        order.append(chosen)
        left.remove(chosen)
        bound |= set(node.inputs[chosen].relations)
    return tuple(order)
