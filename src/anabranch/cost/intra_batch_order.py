"""Prices the lookups of a join by the order in which its inputs are processed within a batch.

The model processes rows one by one: each finds the matches that are older than itself. The engine processes a batch
input by input. The first input finds only rows of earlier batches; the last one also finds rows of its own batch,
including younger ones. If windows last for many batches, the difference is half a batch. If they are as short as a
batch, the last input finds nearly all matches, and a probe order that is costly in the model may cost nothing.

Invariant: the intra-batch order only shifts lookups between the inputs of a join. Rows, states and results are those of
the model, so prices differ from the model's by the lookups alone.

Limit: plan searches ignore the intra-batch order; it is applied to the plans that a search has returned, and to their
probe orders. Plans that defer a predicate or merge rows keep the model's price. For three relations the estimate is up
to a third too high, equally for all plans, because the orders of pairs are treated as independent.
"""

from __future__ import annotations

from anabranch.cost.resources import Blocks, Orders, ResourceModel, Resources, explicit_orders
from anabranch.plan.physical import PhysicalPlan, is_plain, nodes
from anabranch.stats.measured import met_for

MANY = 4
"""The number of batches from which a window counts as long: the order then shifts at most an eighth of the lookups."""


def takes_turns(model: ResourceModel) -> bool:
    """True if some window is short, so that the intra-batch order matters."""
    return bool(model.batch) and min(model.estimates.windows) < MANY * model.batch


def price_in_turns(plan: PhysicalPlan, model: ResourceModel) -> Resources:
    """Returns the price of a plan with intra-batch order; the model's own if windows are long."""
    cost = model.price(plan)
    if not takes_turns(model) or not is_plain(plan):
        return cost
    shifted = sum(_shifted(model.blocks(node), explicit_orders(node), model) for node in nodes(plan))
    return Resources(cost.cpu + shifted, cost.memory, cost.rate)


def chain_in_turns(model: ResourceModel, blocks: Blocks, start: int, order: tuple[int, ...]) -> float:
    """Returns the CPU of the new rows of one input of a join, by input positions, without the calls."""
    bound, reached, total = blocks[start], 1.0, 0.0
    for place in order:
        probing, matching, met = _lookup(model, bound, blocks[place], place < start)
        total += reached * (probing + met * matching)
        reached, bound = reached * met, bound | blocks[place]
    return total * model.turnover(blocks[start])


def _lookup(model: ResourceModel, bound: int, block: int, is_ahead: bool) -> tuple[float, float, float]:
    """Returns the cost of probing, the cost of matches row by row, and the fraction of these that a batch finds."""
    key = "lookup", bound, block, is_ahead
    found: tuple[float, float, float] | None = model.batch_order_cache.get(key)
    if found is None:
        probing = model.rows(bound) * model.share(bound) * model.units.probe * model.copies(bound)
        span, windows = 1 / model.turnover(block), model.estimates.windows
        reach = min(window for position, window in enumerate(windows) if bound >> position & 1)
        met = met_for(span, reach, model.batch, is_ahead) / span
        found = model.batch_order_cache[key] = probing, model.step(bound, block) - probing, met
    return found


def _shifted(blocks: Blocks, orders: Orders, model: ResourceModel) -> float:
    """Returns the CPU that the intra-batch order adds to a join; may be negative."""
    key = "shifted", blocks, orders
    found: float | None = model.batch_order_cache.get(key)
    if found is None:
        found = 0.0
        for start, order in enumerate(orders):
            calls = (len(order) + 1) * model.call
            usual = model.chain(blocks[start], [blocks[place] for place in order]) - calls
            found += chain_in_turns(model, blocks, start, order) - usual
        model.batch_order_cache[key] = found
    return found
