"""JTree-Finder: every mjoin, tree and mixture there is, searched exhaustively (Zhu, Raghavan and Rundensteiner 2010).

It finds a plan within the budget whenever there is one, and returns the whole set of plans that no other dominates in
CPU and memory. Parts that another part of the same relations dominates are dropped at once, which loses nothing because
costs add up; this is what lets it finish at ten relations, two beyond the published algorithm. Time and memory are
exponential all the same: `LARGEST` bounds the relations.
"""

from __future__ import annotations

import numpy as np

from anabranch.cost.resources import ResourceModel, Resources
from anabranch.errors import PlanError
from anabranch.optimize.jtree_kernel import Fronts, Tables, best_orders, search
from anabranch.optimize.lookups import thetas_of, units_of
from anabranch.optimize.shapes import Blocks, Shape, build, in_order
from anabranch.optimize.strategy import Budget, Considered

LARGEST = 12

ORIGIN = "jtree-finder"


def find_jtrees(
    model: ResourceModel,
    budget: Budget,
    *,
    forbidden: frozenset[int] = frozenset(),
    needed: frozenset[int] = frozenset(),
) -> tuple[Considered, ...]:
    """All undominated plans within the budget, by rising CPU; empty when there is none.

    A plan joins no forbidden set of relations, and every needed one.
    """
    size = len(model.estimates.names)
    if size > LARGEST:
        raise PlanError(
            f"an exhaustive search over {size} relations would take too long", hint=f"at most {LARGEST} are searched"
        )
    if size == 1:
        return ()
    tables = _tables(model, forbidden, needed)
    base = model.base
    sets = np.array(sorted(range(1, 1 << size), key=lambda mask: (mask.bit_count(), mask)), dtype=np.int64)
    fronts = search(tables, sets[size:], size, budget.total_cpu - base.cpu, budget.total_memory - base.memory)
    everything = model.estimates.everything

    def orders(blocks: Blocks) -> tuple[tuple[int, ...], ...]:
        return tuple(map(tuple, best_orders(tables, np.array(blocks, dtype=np.int64)).tolist()))

    found = []
    for entry in range(fronts.first[everything], fronts.first[everything] + fronts.counts[everything]):
        cost = Resources(base.cpu + fronts.cpu[entry], base.memory + fronts.memory[entry], base.rate)
        shape = _shape(fronts, everything, entry)
        found.append(Considered(build(shape, model.estimates.names, everything, orders), cost, ORIGIN))
    return tuple(found)


def _tables(model: ResourceModel, forbidden: frozenset[int], needed: frozenset[int]) -> Tables:
    masks = range(1 << len(model.estimates.names))
    agreeing = [1.0, *(_agreeing(model, mask) for mask in masks[1:])]
    # A plan that joins a needed set joins nothing that takes only part of it together with something else.
    allowed = [mask not in forbidden and all(mask & want in (0, mask, want) for want in needed) for mask in masks]
    return Tables(
        np.array([model.rows(mask) for mask in masks]),
        np.array([0.0, *(model.held(mask) for mask in masks[1:])]),
        np.array([mask.bit_count() for mask in masks], dtype=np.int64),
        np.array([_classes(model, mask) for mask in masks], dtype=np.int64),
        np.array(agreeing),
        np.array([model.turnover(mask) for mask in masks]),
        np.array([0.0, *(model.upkeep(mask) for mask in masks[1:])]),
        np.array([0.0, *(model.state_bytes(mask) for mask in masks[1:])]),
        np.array(allowed),
        np.array(sorted(needed), dtype=np.int64),
        thetas_of(model),
        units_of(model),
    )


def _classes(model: ResourceModel, mask: int) -> int:
    found = 0
    for position, (members, _) in enumerate(model.key_members):
        if members & mask:
            found |= 1 << position % 62
    return found


def _agreeing(model: ResourceModel, mask: int) -> float:
    share, bound = 1.0, 0
    for position in range(len(model.estimates.names)):
        if mask >> position & 1:
            share *= model.key_selectivity(bound, 1 << position)
            bound |= 1 << position
    return share


def _shape(fronts: Fronts, mask: int, entry: int) -> Shape:
    shape: dict[int, Blocks] = {}
    blocks: dict[int, int] = {}
    code, rest = int(fronts.partition[entry]), mask
    while rest:
        lowest = rest & -rest
        label = code & 15
        blocks[label] = blocks.get(label, 0) | lowest
        code >>= 4
        rest ^= lowest
    shape[mask] = in_order(blocks.values())
    for label, block in blocks.items():
        if block.bit_count() > 1:
            shape.update(_shape(fronts, block, int(fronts.first[block] + fronts.chosen[entry, label])))
    return shape
