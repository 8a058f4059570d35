"""The work of a run, as a value: its queries, the plans that they begin with, and what may change those."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from anabranch.adapt.advisors.sharing import BY_HAND_ONLY, SharingRules
from anabranch.adapt.balancing import BY_HAND, Balance
from anabranch.adapt.course import Table
from anabranch.adapt.records import PlanTaken
from anabranch.adapt.rules import NO_RULES, ChangeRules
from anabranch.adapt.schedule import Scheduled
from anabranch.adapt.steering import Steering
from anabranch.adapt.table import first_table
from anabranch.balance.first import first_table as filled_table
from anabranch.engine.batch import RelationBatch
from anabranch.errors import SpecError
from anabranch.plan.classing import carrying, without_sources
from anabranch.plan.execution import DEFAULT_EXECUTION, ExecutionModel, for_counting
from anabranch.plan.mesh import parse_plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query import titled
from anabranch.plan.query_set import ALONE, Plans, QuerySet, partitioning_of
from anabranch.plan.slots import ONE_SLOT, SlotRange
from anabranch.run.counting import cells_of_sample
from anabranch.run.shedding import Overload, shedding_key


def refuse_order(queries: QuerySet, execution: ExecutionModel) -> None:
    """Refuses ordered results of queries over queries, and rows that wait before results that come late."""
    if queries.stages > 1 and execution.orders_results:
        raise SpecError(
            f"a query that reads another one cannot run with execution '{execution}'",
            detail="its results are found in several stages of a batch, each in its own order",
            hint="leave the execution model out",
        )
    older = [each.stream for each in queries.graph.streamed if each.is_result and each.behind > 0]
    if older and execution.rows_wait:
        raise SpecError(
            f"rows cannot wait for the watermark where {titled(older[0])} is read",
            detail="its results may be older than its watermark, and the query that reads them would have answered",
            hint="leave the execution model and count windows out, or read results by the time of their newest row",
        )


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
    slots: SlotRange = ONE_SLOT
    rules: Mapping[str, ChangeRules] = field(default_factory=dict)
    """The change rules of each query; only its user changes the plan of a query without rules."""
    execution: ExecutionModel = DEFAULT_EXECUTION
    moves: tuple[Scheduled, ...] = ()
    balance: Balance = BY_HAND
    traffic: Mapping[str, float] = field(default_factory=dict)
    """Bytes or rows per second of each relation, by which the grid is chosen; without it, all count the same."""
    held: frozenset[str] = frozenset()
    """The tables that every slot holds whole."""
    sharing: SharingRules = BY_HAND_ONLY
    overload: Overload = "keep"
    """What happens if the run cannot take all its input."""
    taken: tuple[PlanTaken, ...] = ()
    """Why queries begin with their plans, for those that do not run yet."""
    sample: Mapping[str, RelationBatch] = field(default_factory=dict, repr=False)
    """Rows of each relation, by whose keys groups are given to slots; without them, groups count the same."""

    def __post_init__(self) -> None:
        if self.overload == "shed":
            shedding_key(self.queries)
        if self.queries.graph.counted:
            object.__setattr__(self, "execution", for_counting(self.execution))
        refuse_order(self.queries, self.execution)

    @property
    def setup(self) -> Setup:
        return Setup(self.queries, self.execution)

    def first_table(self, last: Partitioning | None) -> Partitioning:
        """The table to begin with; a restart goes on with the last one, unless the most slots are another number."""
        if last is not None and last.slots == self.slots.most:
            return last
        grid = partitioning_of(self.queries, self.slots.most, self.traffic, self.held)
        if self.slots.start < grid.slots:
            return first_table(grid, self.slots)
        rows = cells_of_sample(grid, self.sample, self.traffic)
        return filled_table(grid, rows, self.balance.capacities).partitioning

    def resumed(self, left: Mapping[str, str]) -> Work:
        """The work after a restart: a query whose rules say so begins with the plan that the last batch left."""
        resuming = {
            name: parse_plan(text)
            for name, text in left.items()
            if name in self.plans.plans and self.rules.get(name, NO_RULES).resumes
        }
        return replace(self, plans=Plans({**self.plans.plans, **resuming}))

    def starts(self, batch: int) -> list[PlanTaken]:
        """Returns the record of each query that begins with this batch, with the plan that it has after a restart."""
        found = []
        for each in self.taken:
            plan = self.plans.plans[each.query or ALONE]
            if plan != each.plan:
                each = replace(each, plan=plan, reason="the plan of the last batch before the restart", rivals=())
            found.append(replace(each, batch=batch))
        return found

    def carrying(self) -> Work:
        """The work with the class columns that its plans test, those that it begins with and those it is to change to.

        Whoever runs it does this once it knows the plans: rows of a run travel with the same columns all the time.
        """
        switched = ((name, switch.plan) for name, rules in self.rules.items() for switch in rules.switches)
        queries = carrying(self.queries, [*self.plans.plans.items(), *switched])
        return replace(self, queries=without_sources(queries))

    def steering(self, partitioning: Partitioning) -> Steering:
        """The steering of the queries."""
        table = Table(partitioning, self.slots, self._no_tracks, self._rebuilds, self.queries.uncut)
        return Steering(
            self.queries,
            self.plans,
            table,
            self.rules,
            self.moves,
            self.balance,
            self.held,
            self.sharing,
            sheds=self.overload == "shed",
        )

    @property
    def _no_tracks(self) -> str | None:
        if self.queries.graph.tables:
            return "the rows of a table have no event time by which old and new results could be told apart"
        for relation in self.queries.graph.relations:
            if relation.window.is_counted:
                return (
                    f"a row of '{relation.name}' may stay in its window of rows for ever, so the move might never end"
                )
            if not relation.window.is_bounded:
                return f"rows of '{relation.name}' never leave their [UNBOUNDED] window, so the move would never end"
        if self.queries.has_sides:
            return "outer, semi and anti joins need all rows of a group in one slot"
        if self.queries.stages > 1:
            return "queries that read others take rows in several stages of a batch"
        return None

    @property
    def _rebuilds(self) -> str | None:
        if self.queries.has_sides or self.queries.graph.tables:
            return "slots of a query with tables, or with outer, semi or anti joins, are rebuilt when they lose groups"
        if self.queries.graph.counted:
            return "slots that count the rows of windows are rebuilt when they gain or lose groups"
        if self.queries.grouped:
            return "slots of a grouped query are rebuilt when they lose groups"
        if self.execution.rows_wait:
            return f"with execution '{self.execution}' slots are rebuilt when they lose groups"
        return None
