"""The rules of change: what may change the plan of a query while it runs, and what plans are judged by.

Together with the user's plan options (`planning.choosing`) this is all that steers a running query. Everything here is
fixed before the query starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from anabranch.adapt.settings import Settings
from anabranch.cost.host import Host, HostNeed, host_need
from anabranch.cost.resources import ResourceModel, Resources
from anabranch.migrate.strategies.pricing import prices
from anabranch.migrate.strategies.strategy import Price
from anabranch.optimize.choice import within
from anabranch.optimize.hints import Hints, Objective
from anabranch.optimize.proposals import Budget
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Query
from anabranch.stats.view import NOTHING_KNOWN, StatisticsView

Pricing: TypeAlias = Callable[[JoinGraph, PhysicalPlan, PhysicalPlan, ResourceModel], tuple[Price, ...]]
"""Prices each way from one plan of a join graph to another; the best way comes first."""


@dataclass(frozen=True)
class Criteria:
    """The criteria by which plans of a running query are judged; the first plan was chosen by them too."""

    given: StatisticsView = NOTHING_KNOWN
    """Statistics from before the run: what the user gave, what was sampled, and calibrated costs."""
    budget: Budget = field(default_factory=Budget)
    objective: Objective = field(default_factory=Objective)
    hints: Hints = field(default_factory=Hints)
    partitioning: Partitioning | None = None
    """How rows are spread over the slots that are observed together; None where every row has one slot."""
    pricing: Pricing = prices
    host: Host | None = None
    """What runs the query, whose needs count for the limits; None in process."""
    expected: Resources | None = None
    """What the first plan needs, by the estimates that it was chosen by."""

    def around(self, query: Query, seen: StatisticsView) -> Callable[[ResourceModel], HostNeed] | None:
        """Tells what the host needs by these statistics; None in process."""
        if self.host is None:
            return None
        host = replace(self.host, length="measured")
        return partial(host_need, query, seen, host=host, slots=self.budget.slots)

    def met(self, query: Query, seen: StatisticsView, model: ResourceModel) -> Criteria:
        """The criteria with a budget that has off what the host needs by these statistics."""
        around = self.around(query, seen)
        return self if around is None else replace(self, budget=within(self.budget, around(model)))


@dataclass(frozen=True)
class Switch:
    """A scheduled change of plan."""

    at_batch: int
    plan: Plan
    strategy: str = "auto"
    slots: tuple[int, ...] | None = None
    """All slots when None."""


@dataclass(frozen=True)
class Staging:
    """When a slot looks for a mesh: after its first batches, then at growing distances, and on drift."""

    first: int = 4
    """Batches before the first search."""
    widening: int = 2
    """The factor between two distances."""
    look: float = 0.0
    """Seconds of a core that a look is taken to need for each relation, in slots and to bound what a mesh could save;
    all looks together may take a share of what the plan has taken so far."""
    search: float = 0.0
    """Seconds of a core that a search is taken to need for each relation; what a mesh saves must repay them."""

    def is_due(self, batches: int) -> bool:
        """
        >>> [batches for batches in range(99) if Staging().is_due(batches)]
        [4, 8, 16, 32, 64]
        """
        due = self.first
        while due < batches:
            due *= self.widening
        return due == batches


BESIDE = Staging(first=16, widening=4, look=0.008, search=0.02)
"""For a query that considers meshes beside all other plans: its windows fill first, and looking costs little."""


@dataclass(frozen=True)
class ChangeRules:
    """The ways in which the plan of one query may change while it runs; by default only its user changes it."""

    adapt: Settings | None = None
    """How the adaptation loop decides; without settings there is no loop."""
    criteria: Criteria = field(default_factory=Criteria)
    switches: tuple[Switch, ...] = ()
    staging: Staging | None = None
    """When slots look for a mesh; never when None."""
    resumes: bool = False
    """Whether a restart begins with the plan of the last batch instead of the plan that it is given."""
    waits: bool = False
    """Whether a batch waits for its searches. Experiments use this: the same rows then give the same decisions."""


NO_RULES = ChangeRules()
