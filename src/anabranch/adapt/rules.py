"""The change rules: what may change the plan of a running query, and the criteria by which plans are compared.

They are derived from the user's plan options (`planning.choosing`) before the query starts. Each value is immutable.
Limit: of a running query, only policy, objective and limits change, and only if it adapts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, TypeAlias

from anabranch.adapt.history import Promise
from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.settings import Settings
from anabranch.cost.host import Host, host_need
from anabranch.cost.resources import ResourceModel, Resources
from anabranch.errors import MigrationError
from anabranch.migrate.strategies.pricing import prices
from anabranch.migrate.strategies.strategy import Price
from anabranch.optimize.beside import price_of_sides
from anabranch.optimize.choice import within
from anabranch.optimize.hints import Hints, Objective
from anabranch.optimize.problem import Problem, resource_model
from anabranch.optimize.proposals import Budget
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Query
from anabranch.settings.entries import Entry, optional
from anabranch.stats.view import NOTHING_KNOWN, Layered, StatisticsView

IN_LINE = 6
"""Up to this number of relations, searches take a few milliseconds and compile no kernels."""
LISTED = 6
"""The plans besides the best that a decision lists, and those of a query that a joint choice considers."""

Pricing: TypeAlias = Callable[[JoinGraph, PhysicalPlan, PhysicalPlan, ResourceModel], tuple[Price, ...]]
"""Returns the prices of the possible migrations between two plans of a join graph, the best first."""


@dataclass(frozen=True)
class Criteria:
    """The criteria by which plans of a running query are compared; they also chose the first plan."""

    given: StatisticsView = NOTHING_KNOWN
    """Statistics from before the run: given by the user, sampled, and calibrated costs."""
    budget: Budget = field(default_factory=Budget)
    objective: Objective = field(default_factory=Objective)
    hints: Hints = field(default_factory=Hints)
    partitioning: Partitioning | None = None
    """How rows are spread over the slots that are observed together; None if every row has one slot."""
    pricing: Pricing = prices
    host: Host | None = None
    """The host, whose overhead counts towards the limits; None in process."""
    expected: Resources | None = None
    """The estimated resources of the first plan."""

    def view(self, known: Knowledge) -> StatisticsView:
        """Returns measured statistics, completed by those from before the run."""
        return Layered((known.view, self.given))

    def model(self, query: Query, known: Knowledge) -> ResourceModel:
        """Returns the cost model under measured statistics."""
        return resource_model(query.graph, self.view(known), known.batch, query.merging, self.partitioning)

    def problem(self, query: Query, known: Knowledge) -> Problem:
        """Returns the search for a better plan under measured statistics; limits are those that the host leaves."""
        seen = self.view(known)
        found = Problem(
            query.graph,
            seen,
            self.budget,
            self.objective,
            self.hints,
            batch=known.batch,
            grouping=query.merging,
            partitioning=self.partitioning,
            beside=price_of_sides(query, seen, known.batch),
        )
        if self.host is None:
            return found
        host = replace(self.host, length="measured")
        need = host_need(query, seen, found.model, host, self.budget.slots)
        return replace(found, budget=within(self.budget, need))


@dataclass(frozen=True)
class Switch:
    """A scheduled change of plan."""

    at_batch: int
    plan: Plan
    strategy: str = "auto"
    slots: tuple[int, ...] | None = None
    """None for all slots."""


@dataclass(frozen=True)
class ChangeRules:
    """The ways in which the plan of one query may change while it runs; by default only its user changes it."""

    adapt: Settings | None = None
    """The settings of adaptation; None if the query does not adapt."""
    criteria: Criteria = field(default_factory=Criteria)
    switches: tuple[Switch, ...] = ()
    first_search: int | None = None
    """The batches before the first search for a mesh, later ones follow at doubling distances; None for no search."""
    resumes: bool = False
    """Whether a restart begins with the plan of the last batch instead of the given plan."""
    promise: Promise | None = None
    """The expected cost of a row under the mesh that the query starts with; None for another plan."""
    waits: bool = False
    """Whether a batch waits for its searches. Then the same rows give the same decisions, as experiments require."""

    def reconfigured(self, wanted: Mapping[str, Any]) -> ChangeRules:
        """Returns the rules with another policy, objective or limits; raises a SpecError that names a wrong entry.

        `wanted` is like the entries of a spec: `{"adapt": {"policy": "periodic"}}`, `{"objective": "memory"}`,
        `{"limits": {"cpu": 0.5}}`. It is recorded in the history in this form, and a restart reads it from there.
        """
        if self.adapt is None:
            raise MigrationError(
                "the query does not adapt, so its settings have no effect", hint="start it with adapt: true"
            )
        entries = Entry("settings", dict(wanted)).mapping("adapt objective limits")
        criteria, adapt = self.criteria, self.adapt
        if "adapt" in entries:
            adapt = replace(adapt, policy=Settings.read(entries["adapt"]).policy)
        if "objective" in entries:
            criteria = replace(criteria, objective=Objective.parse(entries["objective"].text()))
        if "limits" in entries:
            limits, budget = entries["limits"].mapping("cpu memory"), criteria.budget
            cpu = optional(limits, "cpu", lambda each: each.number(high=inf, above=0.0, hint="write 0.8"), budget.cpu)
            memory = optional(
                limits, "memory", lambda each: each.size(high=inf, above=0.0, hint="write 500 MB"), budget.memory
            )
            criteria = replace(criteria, budget=replace(budget, cpu=cpu, memory=memory))
        return replace(self, adapt=adapt, criteria=criteria)


NO_RULES = ChangeRules()
