"""The work of a run, as a value: its queries, the plans that they begin with, and what may change those."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from anabranch.adapt.balancing import BY_HAND, Balance
from anabranch.adapt.rules import NO_RULES, ChangeRules
from anabranch.adapt.steering import Steering
from anabranch.adapt.table import ScheduledMove
from anabranch.plan.execution import DEFAULT_EXECUTION, ExecutionModel
from anabranch.plan.mesh import parse_plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query_set import Plans, QuerySet, partitioning_of


@dataclass(frozen=True)
class Setup:
    """The part of a run that no batch changes."""

    queries: QuerySet
    execution: ExecutionModel = DEFAULT_EXECUTION


@dataclass(frozen=True)
class Work:
    """A set of queries to run."""

    queries: QuerySet
    plans: Plans
    """The plans to begin with."""
    slots: int = 1
    rules: Mapping[str, ChangeRules] = field(default_factory=dict)
    """The change rules of each query; only its user changes the plan of a query without rules."""
    execution: ExecutionModel = DEFAULT_EXECUTION
    moves: tuple[ScheduledMove, ...] = ()
    balance: Balance = BY_HAND
    traffic: Mapping[str, float] = field(default_factory=dict)
    """Bytes or rows per second of each relation, by which the grid is chosen; without it, all count the same."""
    held: frozenset[str] = frozenset()
    """The tables that every slot holds whole."""

    @property
    def setup(self) -> Setup:
        return Setup(self.queries, self.execution)

    def first_table(self, last: Partitioning | None) -> Partitioning:
        """The table to begin with; a restart goes on with the last one, unless the number of slots is another."""
        if last is not None and last.slots == self.slots:
            return last
        return partitioning_of(self.queries, self.slots, self.traffic, self.held)

    def resumed(self, left: Mapping[str, str]) -> Work:
        """The work after a restart: a query whose rules say so begins with the plan that the last batch left."""
        resuming = {
            name: parse_plan(text)
            for name, text in left.items()
            if name in self.plans.plans and self.rules.get(name, NO_RULES).resumes
        }
        return replace(self, plans=Plans({**self.plans.plans, **resuming}))

    def steering(self, partitioning: Partitioning) -> Steering:
        """The steering of the queries."""
        return Steering(self.queries, self.plans, partitioning, self.rules, self.moves, self.balance, self.held)
