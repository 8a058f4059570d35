"""The input of optimizers: a join graph, statistics and a budget, with an objective and hints.

A problem computes the cost model once for all optimizers, and orders each join once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from anabranch.cost.estimates import from_statistics, traffic
from anabranch.cost.progress import Progress, progress, stream_time_to
from anabranch.cost.resources import NOTHING, ResourceModel, Resources
from anabranch.cost.units import unit_costs
from anabranch.optimize.hints import Hints, Objective
from anabranch.optimize.jtree_finder import LARGEST, Space
from anabranch.optimize.min_state import min_state
from anabranch.optimize.proposals import UNLIMITED, Budget, Candidate
from anabranch.optimize.shapes import Orderer, Shape
from anabranch.plan.check import keeps_counted
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.partitioning import Partitioning, choose_partitioning
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Grouping
from anabranch.stats.view import StatisticsView


@dataclass(frozen=True)
class Problem:
    """One query to plan."""

    graph: JoinGraph
    statistics: StatisticsView
    budget: Budget = UNLIMITED
    objective: Objective = field(default_factory=Objective)
    hints: Hints = field(default_factory=Hints)
    batch: float = 1.0
    """Seconds between batches."""
    grouping: Grouping | None = None
    partitioning: Partitioning | None = None
    """The distribution of rows over the slots; None for the grid that suits the rates."""
    beside: Resources = NOTHING
    """The resources of the query outside its plan."""

    @cached_property
    def model(self) -> ResourceModel:
        model = resource_model(self.graph, self.statistics, self.batch, self.grouping, self.partitioning)
        model = replace(model, beside=self.beside)
        if self.partitioning is not None or self.budget.slots == 1:
            return model
        chosen = choose_partitioning(self.graph, self.budget.slots, traffic=traffic(model.estimates))
        return model if chosen.is_partition else replace(model, partitioning=chosen)

    @cached_property
    def space(self) -> Space | None:
        """All jtrees of the query; None if the query has too many relations to search them."""
        return Space(self.model) if len(self.graph.names) <= LARGEST else None

    @cached_property
    def orderer(self) -> Orderer:
        """Orders the probes of the query's joins: optimally, or by rank if there are too many relations."""
        if self.space is not None:
            return self.space.orderer
        # Imported here because loading compiled kernels takes longer than a small query's whole search.
        from anabranch.optimize.ranking import ranked_orderer

        return ranked_orderer(self.model)

    @cached_property
    def tree(self) -> Shape:
        """The tree with small states."""
        return self.space.tree if self.space is not None else min_state(self.orderer)

    @cached_property
    def forbidden(self) -> frozenset[int]:
        """The sets of relations that the hints forbid to join, or whose join must not be kept."""
        return self.hints.forbidden_sets(self.model) | self._not_kept

    @cached_property
    def _not_kept(self) -> frozenset[int]:
        """The sets with a count window, except that of all relations; empty if there are too many to search."""
        counted = self.model.estimates.mask(self.graph.counted)
        if not counted or len(self.graph.names) > LARGEST:
            return frozenset()
        return frozenset(
            mask for mask in range(self.model.estimates.everything) if mask & counted and mask.bit_count() > 1
        )

    def objection(self, plan: PhysicalPlan) -> str:
        """Returns the reason why a plan is not allowed; empty if it is allowed."""
        if (held := keeps_counted(plan, self.graph)) is not None:
            return f"keeps rows of {held[0]}, which has a count window, in a state"
        return self.hints.objection(plan)

    @cached_property
    def needed(self) -> frozenset[int]:
        """The sets of relations that the hints require to be joined."""
        return self.hints.needed_sets(self.model)

    def candidate(self, plan: PhysicalPlan, origin: str) -> Candidate:
        """Returns a plan with its price; `origin` is the name of the optimizer."""
        return Candidate(plan, self.model.price(plan), origin)

    def amended(self, candidate: Candidate) -> Candidate:
        """Returns the candidate with every forbidden probe order replaced by the cheapest allowed one."""
        if not self.hints.forbids_orders:
            return candidate
        plan = self.hints.amended(candidate.plan, self.model)
        return candidate if plan == candidate.plan else replace(candidate, plan=plan, cost=self.model.price(plan))

    def progress(self, plan: PhysicalPlan) -> Progress:
        """Returns the results over time of a plan, on the cores of the budget."""
        text = str(plan)
        if text not in self._progress:
            cores = min(self.budget.total_cpu, float(self.budget.slots))
            self._progress[text] = progress(plan, self.model, cores, self.horizon)
        return self._progress[text]

    @cached_property
    def horizon(self) -> float:
        """The seconds of the streams up to which the objective compares plans."""
        match self.objective.kind:
            case "rate":
                return self.objective.amount
            case "first":
                return stream_time_to(self.model, self.objective.amount)
        return self.model.estimates.longest_window

    @cached_property
    def _progress(self) -> dict[str, Progress]:
        return {}


def resource_model(
    graph: JoinGraph,
    statistics: StatisticsView,
    batch: float = 1.0,
    grouping: Grouping | None = None,
    partitioning: Partitioning | None = None,
) -> ResourceModel:
    """Returns the model that prices the plans of a query; unit costs are the engine's unless statistics have others."""
    units, _ = unit_costs(statistics)
    slide = grouping.pace / 1e6 if grouping is not None else 0.0
    estimates = from_statistics(graph, statistics, slide=slide)
    return ResourceModel(estimates, units, batch=batch, partitioning=partitioning)
