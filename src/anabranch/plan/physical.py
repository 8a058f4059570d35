"""Physical plans: how the join graph of a query is run, as a small immutable value.

A plan is a tree of n-way window joins over relations. A join of all relations is an *mjoin* (no intermediate state), a
tree of two-way joins keeps every intermediate result, and anything between is a *jtree*. Each input of a join has a
probe order over the other inputs; an empty order leaves the choice to `probe_order`, which follows the join graph.

    (a b c)              one three-way join
    ((a b) c)            a tree
    ((a b) c d)          a mixture
    (a b c | a>c>b)      rows of a probe c first, then b; the others take the default order
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from anabranch.errors import PlanError
from anabranch.plan.join_graph import JoinGraph


@dataclass(frozen=True)
class Leaf:
    """The base state of one relation."""

    relation: str

    @property
    def relations(self) -> tuple[str, ...]:
        return (self.relation,)

    def __str__(self) -> str:
        return self.relation


@dataclass(frozen=True)
class JoinNode:
    """An n-way window join; `orders[i]` lists the input positions that input i probes, or is empty for the default."""

    inputs: tuple[PhysicalPlan, ...]
    orders: tuple[tuple[int, ...], ...] = field(default=())

    def __post_init__(self) -> None:
        if len(self.inputs) < 2:
            raise PlanError("a join needs at least two inputs", hint="write a plan such as '(a b)'")
        if len(set(self.relations)) != len(self.relations):
            twice = sorted({name for name in self.relations if self.relations.count(name) > 1})
            raise PlanError(f"relation '{twice[0]}' occurs twice in plan '{self.shape}'")
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

    @property
    def shape(self) -> str:
        """The plan text without probe orders."""
        return f"({' '.join(shape(child) for child in self.inputs)})"

    def __str__(self) -> str:
        body = " ".join(str(child) for child in self.inputs)
        orders = ", ".join(
            ">".join(shape(self.inputs[step]) for step in (position, *order))
            for position, order in enumerate(self.orders)
            if order
        )
        return f"({body} | {orders})" if orders else f"({body})"


PhysicalPlan: TypeAlias = Leaf | JoinNode


def shape(plan: PhysicalPlan) -> str:
    return plan.relation if isinstance(plan, Leaf) else plan.shape


def nodes(plan: PhysicalPlan) -> Iterator[JoinNode]:
    """The joins of a plan, inputs before the joins that read them."""
    if isinstance(plan, JoinNode):
        for child in plan.inputs:
            yield from nodes(child)
        yield plan


def height(plan: PhysicalPlan) -> int:
    """Joins on the longest way from a relation to the root."""
    return 0 if isinstance(plan, Leaf) else 1 + max(height(child) for child in plan.inputs)


def mjoin(relations: tuple[str, ...]) -> PhysicalPlan:
    """One join of all relations; a single relation is its own plan."""
    leaves = tuple(Leaf(name) for name in relations)
    return leaves[0] if len(leaves) == 1 else JoinNode(leaves)


def linear_tree(relations: tuple[str, ...]) -> PhysicalPlan:
    """A left-deep tree of two-way joins, in that order."""
    plan: PhysicalPlan = Leaf(relations[0])
    for name in relations[1:]:
        plan = JoinNode((plan, Leaf(name)))
    return plan


def probe_order(node: JoinNode, position: int, graph: JoinGraph) -> tuple[int, ...]:
    """The order in which rows of one input probe the others: the given one, or connected inputs first.

    The default takes, again and again, the first input that shares a key class with what is bound, else one that shares
    any predicate, else the first left over, so that no cross product is formed while a lookup is possible.
    """
    if node.orders[position]:
        return node.orders[position]
    bound = set(node.inputs[position].relations)
    left = [index for index in range(len(node.inputs)) if index != position]
    order: list[int] = []
    while left:
        by_key = [i for i in left if graph.keys_between(bound, node.inputs[i].relations)]
        reachable = by_key or [i for i in left if graph.are_connected(bound, node.inputs[i].relations)]
        chosen = (reachable or left)[0]
        order.append(chosen)
        left.remove(chosen)
        bound |= set(node.inputs[chosen].relations)
    return tuple(order)
