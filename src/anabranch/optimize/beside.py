"""The resources of a query outside its plan: its outer, semi and anti joins, which are independent of the core's plan.

Each combination of the core enters the waiting combinations of a side and looks up the side's rows; each row of the
side looks up the waiting combinations. So a side costs as much as a join of the core, kept as a state, with the side's
relations. The cost is the same for all plans of the core: it counts for limits but does not affect the choice.

Limit: combinations that an earlier LEFT JOIN leaves unmatched are not included in the price of a later side.
"""

from __future__ import annotations

from anabranch.cost.estimates import from_statistics
from anabranch.cost.resources import NOTHING, ResourceModel, Resources
from anabranch.cost.units import unit_costs
from anabranch.plan.query import Query
from anabranch.stats.view import StatisticsView


def price_of_sides(query: Query, seen: StatisticsView, batch: float = 1.0) -> Resources:
    """Returns the CPU and memory of all sides of a query; zero if it has none."""
    if not query.sides:
        return NOTHING
    estimates = from_statistics(query.whole, seen, slide=query.seconds_between_boundaries, pairwise=query.pairwise)
    model = ResourceModel(estimates, unit_costs(seen)[0], batch=batch)
    waiting = estimates.mask(query.graph.names)
    cpu = memory = 0.0
    for side in query.sides:
        own = [estimates.mask((name,)) for name in side.names]
        cpu += model.upkeep(waiting) + sum(map(model.upkeep, own)) + model.chain(waiting, own)
        cpu += sum(model.chain(each, [waiting, *(other for other in own if other != each)]) for each in own)
        memory += model.state_bytes(waiting) + sum(map(model.state_bytes, own))
        if side.kind.extends:
            waiting |= sum(own)
    return Resources(cpu, memory, 0.0)
