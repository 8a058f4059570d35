"""Cost corrections: the ratio between the counted and the modelled cost of plans that ran.

A plan that ran keeps the ratio of its own counts. A plan that never ran gets the ratio of the running plan, so that an
error common to all plans cancels out, and no plan is tried only because the model underestimates it. Invariant: the
price of the running plan is its counted cost. Limit: plans that merge inputs keep the model's price, because the work
of merging is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.adapt.facts import NEAR
from anabranch.cost.counted import counted_joins
from anabranch.cost.estimates import EVER, SHORTEST_WINDOW
from anabranch.cost.intra_batch_order import price_in_turns
from anabranch.cost.resources import ResourceModel, Resources
from anabranch.lang.window import FOREVER
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.pairwise import lifetimes
from anabranch.plan.physical import PhysicalPlan, pre_groups
from anabranch.plan.query import Query
from anabranch.stats.step import StepStatistics, merge

MOST_PLANS = 32
"""The maximum number of plans that are remembered."""


@dataclass(frozen=True)
class Experience:
    """For each plan that ran, by its text, the counted cost of its joins divided by the modelled one."""

    factors: Mapping[str, float] = field(default_factory=dict)

    def after(
        self,
        plan: PhysicalPlan,
        steps: Sequence[StepStatistics],
        seconds: float,
        model: ResourceModel,
        graph: JoinGraph,
    ) -> Experience:
        """Returns the ratios updated with the counts of some batches of a plan."""
        if any(pre_groups(plan)) or not seconds:
            return self
        step = merge(steps)
        model = as_filled(model, step, len(steps), seconds)
        joins = price_in_turns(plan, model).cpu - model.base.cpu
        if joins <= 0:
            return self
        factor = counted_joins(plan, step, len(steps), seconds, model, graph) / joins
        others = {name: value for name, value in self.factors.items() if name != str(plan)}
        return Experience(dict([*others.items(), (str(plan), factor)][-MOST_PLANS:]))

    def price(self, plan: PhysicalPlan, model: ResourceModel, running: PhysicalPlan) -> Resources:
        """Returns the corrected price of a plan while `running` is the running plan."""
        usual = self.factors.get(str(running), 1.0)
        cost, base = price_in_turns(plan, model), model.base.cpu
        return replace(cost, cpu=base + max(0.0, cost.cpu - base) * self.factors.get(str(plan), usual))


def as_filled(model: ResourceModel, step: StepStatistics, batches: int, seconds: float) -> ResourceModel:
    """Returns the model for windows that are only as full as the measured states, as while a query starts.

    A window that is nearly full counts as full, because rates vary that much from batch to batch. A row meets half of
    the rows of its own batch on average.
    """
    held = {state.state: state.rows / batches for state in step.states}
    windows = []
    for name, window in zip(model.estimates.names, model.estimates.windows, strict=True):
        rate = step.rows_in.get(name, 0) / seconds
        age = held[name] / rate if rate and name in held else window
        is_full = window >= EVER or age >= NEAR * window
        windows.append(window if is_full else max(age - seconds / batches / 2, age / 2, SHORTEST_WINDOW))
    return replace(model, estimates=replace(model.estimates, windows=tuple(windows)))


def longest_window(query: Query) -> float:
    """Returns the longest time in seconds that rows are kept, by finite windows and by bands that shorten them."""
    spans = lifetimes([query])
    return max((spans[name] / 1e6 for name in query.graph.names if spans.get(name, FOREVER) < FOREVER), default=0.0)
