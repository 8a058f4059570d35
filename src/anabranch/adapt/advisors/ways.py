"""The way from one plan to another that a decision takes: the cheapest that has memory enough while it lasts.

A migration holds the new states beside the old ones, so it needs more memory than either plan. Where the cheapest
strategy would break the limit, another one is taken, or the boxes in which the plans differ change one after another:
then only the states of one box are held twice. Where nothing fits, the cheapest is returned, and the gate refuses it.

A way that would stop the slots for longer than a batch is taken only if no other serves. Spread then goes box by box:
new states have to be kept up while they are filled, and with one box at a time fewer are.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.adapt.gate import has_memory_for
from anabranch.adapt.rules import Pricing
from anabranch.cost.resources import ResourceModel, Resources, with_default_orders
from anabranch.migrate.itinerary import box_by_box
from anabranch.migrate.strategies.spread import Spread
from anabranch.migrate.strategies.strategy import Price
from anabranch.optimize.proposals import Budget
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import PhysicalPlan


def way(
    graph: JoinGraph,
    old: PhysicalPlan,
    new: PhysicalPlan,
    model: ResourceModel,
    pricing: Pricing,
    wished: str,
    cost: Resources,
    budget: Budget,
) -> Price | None:
    """The price of the way to take, by the strategy that is wished or by any; None where that cannot serve.

    `cost` is that of the old plan.
    """
    ways = [
        each for each in pricing(graph, old, new, model) if wished in ("auto", each.strategy) or each.strategy == "none"
    ]
    ways.sort(key=lambda each: bool(model.batch) and each.pause / budget.slots > model.batch)
    fitting = next((each for each in ways if has_memory_for(each, cost, budget)), None)
    if not ways or (fitting is not None and fitting.strategy != Spread.name):
        return fitting
    plans = (old, *box_by_box(old, new, graph.thetas))
    if fitting is not None:
        steps = by_boxes(graph, plans, model, pricing, fitting.strategy) if len(plans) > 2 else None
        return steps if steps is not None and steps.cpu < fitting.cpu else fitting
    boxes = [by_boxes(graph, plans, model, pricing, each.strategy) for each in ways] if len(plans) > 2 else []
    return next((each for each in boxes if each is not None and has_memory_for(each, cost, budget)), ways[0])


def by_boxes(
    graph: JoinGraph, plans: Sequence[PhysicalPlan], model: ResourceModel, pricing: Pricing, strategy: str
) -> Price | None:
    """The price of going through some plans one after another by one strategy; None where a step cannot be served."""
    cpu = seconds = most = pause = 0.0
    sizes = [model.price(with_default_orders(plan, graph)).memory for plan in plans]
    for size, before, after in zip(sizes, plans, plans[1:], strict=False):
        legs = pricing(graph, before, after, model)
        leg = next((each for each in legs if each.strategy in (strategy, "none")), None)
        if leg is None:
            return None
        cpu, seconds, most = cpu + leg.cpu, seconds + leg.seconds, max(most, size + leg.memory)
        pause = max(pause, leg.pause)
    return Price(strategy, cpu, max(0.0, most - sizes[0]), seconds, len(plans) - 1, pause)
