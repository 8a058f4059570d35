"""Plan shapes during a search: which sets of relations are joined, and from which parts.

A shape maps each joined set to its inputs, all as bit masks; removing a set and passing its inputs to the join above
removes a state. Probe orders depend only on the parts of one join, so they are computed per join and cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from anabranch.cost.resources import ResourceModel, Resources
from anabranch.optimize.proposals import Candidate
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan

Blocks: TypeAlias = tuple[int, ...]
"""Disjoint sets of relations, ordered by their lowest relation."""
Shape: TypeAlias = Mapping[int, Blocks]


@dataclass(frozen=True)
class Ordering:
    """Probe orders of one join, the CPU they need, and the bytes of the indexes they use."""

    orders: tuple[tuple[int, ...], ...]
    cpu: float
    memory: float


@dataclass(frozen=True)
class Orderer:
    """Orders and prices the joins of one query; caches results.

    `find` orders one join: by rank for any number of relations (`ranking`), or optimally (`jtree_finder`).
    """

    model: ResourceModel
    find: Callable[[Blocks], Ordering]

    @cached_property
    def _known(self) -> dict[Blocks, Ordering]:
        return {}

    def order(self, blocks: Blocks) -> Ordering:
        """Returns good orders for a join of these inputs."""
        found = self._known.get(blocks)
        if found is None:
            found = self._known[blocks] = self.find(blocks)
        return found

    @property
    def everything(self) -> int:
        return self.model.estimates.everything

    @property
    def leaves(self) -> Blocks:
        return tuple(1 << position for position in range(len(self.model.estimates.names)))

    def mjoin(self) -> Shape:
        """Returns one join of all relations; no shape needs less memory."""
        return {self.everything: self.leaves} if len(self.leaves) > 1 else {}

    def price(self, shape: Shape) -> Resources:
        """Returns the resources of a shape with these orders, equal to the model's price of its plan."""
        base = self.model.base
        cpu, memory = base.cpu, base.memory
        for joined, blocks in shape.items():
            ordering = self.order(blocks)
            cpu += ordering.cpu
            memory += ordering.memory
            if joined != self.everything:
                cpu += self.model.upkeep(joined)
                memory += self.model.state_bytes(joined)
        return Resources(cpu, memory, base.rate)

    def plan(self, shape: Shape) -> PhysicalPlan:
        """Returns the plan of a shape, with explicit orders if a join has three or more inputs."""
        return build(shape, self.model.estimates.names, self.everything, lambda blocks: self.order(blocks).orders)

    def considered(self, shape: Shape, origin: str) -> Candidate:
        return Candidate(self.plan(shape), self.price(shape), origin)

    def complete(self, plan: PhysicalPlan) -> PhysicalPlan:
        """Fills in every probe order that the plan leaves open."""
        inputs = tuple(self.complete(child) for child in plan.inputs)
        if not isinstance(plan, JoinNode):
            return plan.with_inputs(inputs)
        if len(inputs) == 2:
            return replace(plan, inputs=inputs, orders=())
        own = self.order(tuple(self.model.estimates.mask(child.relations) for child in inputs)).orders
        orders = tuple(given or filled for given, filled in zip(plan.orders, own, strict=True))
        return replace(plan, inputs=inputs, orders=orders)

    def anew(self, plan: PhysicalPlan) -> PhysicalPlan:
        """Replaces all probe orders of the plan."""
        inputs = tuple(self.anew(child) for child in plan.inputs)
        if not isinstance(plan, JoinNode):
            return plan.with_inputs(inputs)
        blocks = tuple(self.model.estimates.mask(child.relations) for child in inputs)
        return replace(plan, inputs=inputs, orders=self.order(blocks).orders if len(inputs) > 2 else ())


OrderBlocks: TypeAlias = Callable[[Blocks], tuple[tuple[int, ...], ...]]


def build(shape: Shape, names: tuple[str, ...], mask: int, order: OrderBlocks) -> PhysicalPlan:
    """Returns the plan of one set of a shape."""
    if mask not in shape:
        return Leaf(names[mask.bit_length() - 1])
    blocks = shape[mask]
    inputs = tuple(build(shape, names, block, order) for block in blocks)
    return JoinNode(inputs, order(blocks) if len(blocks) > 2 else ())


def in_order(blocks: Iterable[int]) -> Blocks:
    """Sorts disjoint sets by their lowest relation, the canonical form of a partition."""
    return tuple(sorted(blocks, key=lambda block: block & -block))


def dissolved(shape: Shape, state: int) -> Shape:
    """Removes one state from the shape: the join that kept it reads its inputs instead."""
    changed = dict(shape)
    inner = changed.pop(state)
    for above, blocks in changed.items():
        if state in blocks:
            changed[above] = in_order([*(block for block in blocks if block != state), *inner])
            return changed
    raise AssertionError(state)
