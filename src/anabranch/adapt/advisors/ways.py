"""Chooses how to migrate between two plans: the cheapest migration that has enough memory.

A migration holds new states in addition to the old ones, so it needs more memory than either plan. If the cheapest
strategy would exceed the limit, another strategy is chosen, or the boxes in which the plans differ change one after
another, so that only the states of one box are held twice. If no migration fits, the cheapest is returned, and the gate
refuses it. A migration that would stop the slots for longer than a batch is chosen only if no other is possible.
Limit: box by box, all steps use one strategy, or none where a step moves no state.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.adapt.gate import has_memory_for
from anabranch.adapt.rules import Criteria, Pricing
from anabranch.cost.resources import ResourceModel, Resources, with_default_orders
from anabranch.migrate.itinerary import box_by_box
from anabranch.migrate.strategies.strategy import Price
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import PhysicalPlan


def way(
    criteria: Criteria,
    graph: JoinGraph,
    old: PhysicalPlan,
    new: PhysicalPlan,
    model: ResourceModel,
    cost: Resources,
    wished: str = "auto",
) -> Price | None:
    """Returns the price of the chosen migration; None if the wished strategy does not support the change.

    `cost` is that of the old plan; `wished` is a strategy, or `auto` for any.
    """
    pricing, budget = criteria.pricing, criteria.budget
    ways = [
        each for each in pricing(graph, old, new, model) if wished in ("auto", each.strategy) or each.strategy == "none"
    ]
    ways.sort(key=lambda each: bool(model.batch) and each.pause / budget.slots > model.batch)
    fitting = next((each for each in ways if has_memory_for(each, cost, budget)), None)
    if not ways or fitting is not None:
        return fitting
    plans = (old, *box_by_box(old, new, graph.thetas))
    boxes = [by_boxes(graph, plans, model, pricing, each.strategy) for each in ways] if len(plans) > 2 else []
    return next((each for each in boxes if each is not None and has_memory_for(each, cost, budget)), ways[0])


def by_boxes(
    graph: JoinGraph, plans: Sequence[PhysicalPlan], model: ResourceModel, pricing: Pricing, strategy: str
) -> Price | None:
    """Returns the price of migrating through the plans in turn by one strategy; None if it does not support a step."""
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
