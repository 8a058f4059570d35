"""What was counted of plans that ran: corrects the model's prices of those plans.

Law: the plan that runs costs what was counted of it, never what another plan would cost. A plan that ran before keeps
the factor by which its counts differed from the model. A plan that never ran gets the factor of the plan that runs: an
error that all plans share then cancels out, and no plan is tried only because the model does not know its faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.cost.counted import counted_cpu
from anabranch.cost.resources import ResourceModel, Resources
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.pairwise import lifetimes
from anabranch.plan.physical import PhysicalPlan, pre_groups
from anabranch.plan.query import Query
from anabranch.stats.step import StepStatistics, merge
from anabranch.window import FOREVER

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
        joins = model.price(plan).cpu - model.base.cpu
        if any(pre_groups(plan)) or not seconds or joins <= 0:
            return self
        found = counted_cpu(plan, merge(steps), len(steps), seconds, model, graph)
        factor = max(0.0, found - model.base.cpu) / joins
        others = {name: value for name, value in self.factors.items() if name != str(plan)}
        return Experience(dict([*others.items(), (str(plan), factor)][-MOST:]))

    def price(self, plan: PhysicalPlan, model: ResourceModel, running: PhysicalPlan) -> Resources:
        """The price of a plan while another runs."""
        usual = self.factors.get(str(running), 1.0)
        cost, base = model.price(plan), model.base.cpu
        return replace(cost, cpu=base + max(0.0, cost.cpu - base) * self.factors.get(str(plan), usual))


def has_full_windows(query: Query, seconds: float) -> bool:
    """True when rows have come for as long as any stays; before, counts say less than the model."""
    return seconds >= longest_window(query)


def longest_window(query: Query) -> float:
    """Seconds for which rows stay, at most: by the longest window that ends, or for less where bands let them go."""
    spans = lifetimes([query])
    return max((spans[name] / 1e6 for name in query.graph.names if spans.get(name, FOREVER) < FOREVER), default=0.0)


def counts(steps: Sequence[StepStatistics], seconds: float) -> dict[object, float]:
    """The rows per second of each relation, and the matches of a row at each lookup: cheap to compare."""
    if not seconds:
        return {}
    step = merge(steps) if len(steps) > 1 else steps[0]
    found: dict[object, float] = {name: rows / seconds for name, rows in step.rows_in.items()}
    for probe in step.probes:
        found[probe.join, probe.origin, probe.target] = probe.matches / probe.probes if probe.probes else 0.0
    return found
