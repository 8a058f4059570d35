"""An independent, slow enumeration of every jtree with every probe order, to judge the optimizers by."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from anabranch.cost.resources import ResourceModel
from anabranch.optimize.shapes import Shape, in_order
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, nodes


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
