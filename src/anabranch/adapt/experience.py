"""What was counted of plans that ran: corrects the model's prices of those plans.

Law: the plan that runs costs what was counted of it, never what another plan would cost. A plan that ran before keeps
the factor by which its counts differed from the model. A plan that never ran gets the factor of the plan that runs: an
error that all plans share then cancels out, and no plan is tried only because the model does not know its faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

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

FULL = 0.9
"""The share of its rows from which on a window counts as full: rates differ by as much from batch to batch."""
MOST = 32
"""Plans whose counts are remembered."""


@dataclass(frozen=True)
class Experience:
    """For plans that ran, by their texts, the factor between what was counted of their joins and the model's price."""

    factors: Mapping[str, float] = field(default_factory=dict)

    def after(
        self,
        plan: PhysicalPlan,
        steps: Sequence[StepStatistics],
        seconds: float,
        model: ResourceModel,
        graph: JoinGraph,
    ) -> Experience:
        """Takes in batches of a plan; one that merges inputs keeps the model's price: merging is not counted."""
        if any(pre_groups(plan)) or not seconds:
            return self
        step = merge(steps)
        model = as_filled(model, step, len(steps), seconds)
        joins = price_in_turns(plan, model).cpu - model.base.cpu
        if joins <= 0:
            return self
        factor = counted_joins(plan, step, len(steps), seconds, model, graph) / joins
        others = {name: value for name, value in self.factors.items() if name != str(plan)}
        return Experience(dict([*others.items(), (str(plan), factor)][-MOST:]))

    def price(self, plan: PhysicalPlan, model: ResourceModel, running: PhysicalPlan) -> Resources:
        """The price of a plan while another runs."""
        usual = self.factors.get(str(running), 1.0)
        cost, base = price_in_turns(plan, model), model.base.cpu
        return replace(cost, cpu=base + max(0.0, cost.cpu - base) * self.factors.get(str(plan), usual))


def as_filled(model: ResourceModel, step: StepStatistics, batches: int, seconds: float) -> ResourceModel:
    """The model of batches whose windows were as full as their states were: while they fill, less is found in them.

    Of the rows of its own batch a row meets half on average.
    """
    held = {state.state: state.rows / batches for state in step.states}
    windows = []
    for name, window in zip(model.estimates.names, model.estimates.windows, strict=True):
        rate = step.rows_in.get(name, 0) / seconds
        age = held[name] / rate if rate and name in held else window
        is_full = window >= EVER or age >= FULL * window
        windows.append(window if is_full else max(age - seconds / batches / 2, age / 2, SHORTEST_WINDOW))
    return replace(model, estimates=replace(model.estimates, windows=tuple(windows)))


def longest_window(query: Query) -> float:
    """Seconds for which rows stay, at most: by the longest window that ends, or for less where bands let them go."""
    spans = lifetimes([query])
    return max((spans[name] / 1e6 for name in query.graph.names if spans.get(name, FOREVER) < FOREVER), default=0.0)
