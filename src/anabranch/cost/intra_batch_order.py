"""Prices the lookups of a join by the turns that its inputs take within a batch.

The model takes rows one by one: each finds the partners that are older than itself. An engine takes a batch input by
input. What goes first finds the rows of earlier batches only, what goes last finds those of its own batch too, younger
ones included. Where windows last for many batches that is half a batch more or less; where they are as short as a
batch, the last input finds nearly everything, and a probe order that looks dear to the model costs nothing.

Law: turns shift lookups between the inputs of a join. Rows, states and results stay what the model says, so prices
differ from the model's by the lookups alone.

Limit: searches for plans do not know of turns; they are for the plans that a search has listed, and their orders. Plans
that defer a predicate or merge rows keep the model's price. Where three relations meet, those near to both others are
fewer than the turns of each pair let expect, so prices are up to a third too high, alike for all plans.
"""

from __future__ import annotations

from itertools import permutations

from anabranch.cost.resources import Blocks, Orders, ResourceModel, Resources, explicit_orders
from anabranch.plan.physical import JoinNode, PhysicalPlan, is_plain, nodes
from anabranch.stats.measured import met_for

MANY = 4
"""Batches from which on a window is long: turns then shift an eighth of the lookups at most."""
MOST_INPUTS = 5
"""Inputs of a join up to which all probe orders are tried."""


def takes_turns(model: ResourceModel) -> bool:
    """Whether turns matter: whether some window is short."""
    return bool(model.batch) and min(model.estimates.windows) < MANY * model.batch


def price_in_turns(plan: PhysicalPlan, model: ResourceModel) -> Resources:
    """The price of a plan whose inputs take turns; the model's own where windows are long."""
    cost = model.price(plan)
    if not takes_turns(model) or not is_plain(plan):
        return cost
    shifted = sum(_shifted(model.blocks(node), explicit_orders(node), model) for node in nodes(plan))
    return Resources(cost.cpu + shifted, cost.memory, cost.rate)


def in_turns(plan: PhysicalPlan, model: ResourceModel) -> PhysicalPlan:
    """The plan with the probe orders that are best where inputs take turns."""
    if not is_plain(plan):
        return plan
    inputs = tuple(in_turns(child, model) for child in plan.inputs)
    if not isinstance(plan, JoinNode):
        return plan
    wide = 2 < len(inputs) <= MOST_INPUTS
    return JoinNode(inputs, _best_orders(model.blocks(plan), model) if wide else plan.orders)


def chain_in_turns(model: ResourceModel, blocks: Blocks, start: int, order: tuple[int, ...]) -> float:
    """CPU of the new rows of one input of a join, by the places of the inputs; without the calls."""
    bound, reached, total = blocks[start], 1.0, 0.0
    for place in order:
        probing, matching, met = _lookup(model, bound, blocks[place], place < start)
        total += reached * (probing + met * matching)
        reached, bound = reached * met, bound | blocks[place]
    return total * model.turnover(blocks[start])


def _best_orders(blocks: Blocks, model: ResourceModel) -> Orders:
    key = "orders", blocks
    found: Orders | None = model.turns.get(key)
    if found is None:
        found = model.turns[key] = tuple(_best_order(blocks, start, model) for start in range(len(blocks)))
    return found


def _best_order(blocks: Blocks, start: int, model: ResourceModel) -> tuple[int, ...]:
    others = [place for place in range(len(blocks)) if place != start]
    return min(permutations(others), key=lambda order: chain_in_turns(model, blocks, start, order))


def _lookup(model: ResourceModel, bound: int, block: int, is_ahead: bool) -> tuple[float, float, float]:
    """What probing costs, what finding partners would cost row by row, and the share of them that a batch finds."""
    key = "lookup", bound, block, is_ahead
    found: tuple[float, float, float] | None = model.turns.get(key)
    if found is None:
        probing = model.rows(bound) * model.share(bound) * model.units.probe * model.copies(bound)
        span, windows = 1 / model.turnover(block), model.estimates.windows
        reach = min(window for position, window in enumerate(windows) if bound >> position & 1)
        met = met_for(span, reach, model.batch, is_ahead) / span
        found = model.turns[key] = probing, model.step(bound, block) - probing, met
    return found


def _shifted(blocks: Blocks, orders: Orders, model: ResourceModel) -> float:
    """What the turns of its inputs add to the CPU of a join, or take off."""
    key = "shifted", blocks, orders
    found: float | None = model.turns.get(key)
    if found is None:
        found = 0.0
        for start, order in enumerate(orders):
            calls = (len(order) + 1) * model.call
            usual = model.chain(blocks[start], [blocks[place] for place in order]) - calls
            found += chain_in_turns(model, blocks, start, order) - usual
        model.turns[key] = found
    return found
