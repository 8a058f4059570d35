"""An independent, slow enumeration of every jtree with every probe order and every set of indexes.

Judges the optimizers: it uses the cost model only. `undominated_costs` is limited to five relations: the joins of five
have 24 to the power of 5 combinations of probe orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import permutations
from typing import TypeAlias

import numpy as np

from anabranch.cost.resources import ResourceModel
from anabranch.optimize.shapes import Shape, in_order
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, nodes

Cost: TypeAlias = tuple[float, float]
"""CPU and memory."""


def partitions(items: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """All ways to split some items into non-empty blocks."""
    if not items:
        yield ()
        return
    head, rest = items[0], items[1:]
    for split in partitions(rest):
        yield ((head,), *split)
        for at, block in enumerate(split):
            yield (*split[:at], (head, *block), *split[at + 1 :])


def all_shapes(names: tuple[str, ...], *, arity: int | None = None) -> Iterator[PhysicalPlan]:
    """All jtrees over some relations; with `arity`, only those whose joins all have that many inputs."""
    if len(names) == 1:
        yield Leaf(names[0])
        return
    for split in partitions(names):
        if len(split) > 1 and arity in (None, len(split)):
            for inputs in _products(split, arity):
                yield JoinNode(inputs)


def _products(split: tuple[tuple[str, ...], ...], arity: int | None) -> Iterator[tuple[PhysicalPlan, ...]]:
    if not split:
        yield ()
        return
    for first in all_shapes(split[0], arity=arity):
        for rest in _products(split[1:], arity):
            yield (first, *rest)


def best_ordered(plan: PhysicalPlan, model: ResourceModel) -> PhysicalPlan:
    """The plan with, for each input of each join, the cheapest of all permutations."""
    if not isinstance(plan, JoinNode):
        return plan
    inputs = tuple(best_ordered(child, model) for child in plan.inputs)
    if len(inputs) == 2:
        return JoinNode(inputs)
    blocks = [model.estimates.mask(child.relations) for child in inputs]
    return JoinNode(inputs, tuple(_best_order(start, blocks, model) for start in range(len(blocks))))


def _best_order(start: int, blocks: list[int], model: ResourceModel) -> tuple[int, ...]:
    def cost(order: tuple[int, ...]) -> float:
        return model.chain(blocks[start], [blocks[position] for position in order])

    return min(permutations([position for position in range(len(blocks)) if position != start]), key=cost)


def shape_of(plan: PhysicalPlan, model: ResourceModel) -> Shape:
    """The shape of a plan, without its orders."""
    mask = model.estimates.mask
    return {mask(node.relations): in_order(mask(child.relations) for child in node.inputs) for node in nodes(plan)}


def undominated_costs(model: ResourceModel, shapes: Iterable[PhysicalPlan]) -> list[Cost]:
    """The undominated costs of some shapes with all probe orders, by rising CPU."""
    joins: dict[tuple[int, ...], list[Cost]] = {}
    found: list[Cost] = []
    for shape in shapes:
        costs = [(model.base.cpu, model.base.memory)]
        for node in nodes(shape):
            blocks = model.blocks(node)
            if blocks not in joins:
                joins[blocks] = _costs_of_join(model, blocks)
            costs = [(cpu + more, memory + room) for cpu, memory in costs for more, room in joins[blocks]]
        found += costs
    return undominated(found)


def _costs_of_join(model: ResourceModel, blocks: tuple[int, ...]) -> list[Cost]:
    """The undominated costs of one join with its state: for each set of indexes the cheapest orders that need it."""
    bits: dict[tuple[int, int], int] = {}
    needed, cpu = np.zeros(1, np.uint64), np.zeros(1)
    for start in range(len(blocks)):
        cheapest: dict[int, float] = {}
        for order in permutations([block for block in blocks if block != blocks[start]]):
            bound, indexes = blocks[start], 0
            for block in order:
                indexes |= 1 << bits.setdefault((block, model.index(bound, block)), len(bits))
                bound |= block
            cheapest[indexes] = min(cheapest.get(indexes, np.inf), model.chain(blocks[start], list(order)))
        own, price = np.array([*cheapest], np.uint64), np.array([*cheapest.values()])
        all_needed, all_cpu = (needed[:, None] | own).ravel(), (cpu[:, None] + price).ravel()
        needed, place = np.unique(all_needed, return_inverse=True)
        cpu = np.full(needed.size, np.inf)
        np.minimum.at(cpu, place, all_cpu)
    assert len(bits) <= 64
    memory = np.zeros(needed.size)
    for (block, _), bit in bits.items():
        is_needed = (needed >> np.uint64(bit)) & np.uint64(1)
        cpu += is_needed * model.births(block) * model.copies(block) * model.units.link
        memory += is_needed * model.held(block) * model.copies(block) * model.units.index_bytes
    whole = sum(blocks)
    if whole != model.estimates.everything:
        cpu += model.upkeep(whole)
        memory += model.state_bytes(whole)
    return undominated(zip(cpu.tolist(), memory.tolist(), strict=True))


def undominated(costs: Iterable[Cost]) -> list[Cost]:
    """The undominated costs, by rising CPU; costs that differ only by rounding count as equal."""
    kept: list[Cost] = []
    for cpu, memory in sorted(costs):
        if not kept or memory < kept[-1][1] * (1 - 1e-9):
            kept.append((cpu, memory))
    return kept
