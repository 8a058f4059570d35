"""The work of a run, as a value: its queries, their first plans, and the rules by which plans change.

Invariant: nothing here does I/O, so a restart can compare and replace values. Limit: the sources and sinks of the
queries are the host's.
"""

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
    """Refuses execution models that queries over queries cannot have."""
    if queries.stages > 1 and execution.orders_results:
        raise SpecError(
            f"a query that reads another query cannot run with execution '{execution}'",
            detail="a batch has several stages, and each stage has its own order",
            hint="omit the execution model",
        )
    older = [each.stream for each in queries.graph.streamed if each.is_result and each.behind > 0]
    if older and execution.rows_wait:
        raise SpecError(
            f"rows cannot be buffered until the watermark because another query reads {titled(older[0])}",
            detail="its results may be older than its watermark, so its reader would have answered before they arrive",
            hint="omit the execution model and count windows, or read the results by the time of their newest row",
        )


@dataclass(frozen=True)
class Setup:
    """The settings of a run that are the same in every batch."""

    queries: QuerySet
    execution: ExecutionModel = DEFAULT_EXECUTION


@dataclass(frozen=True)
class Work:
    """A set of queries to run."""

    queries: QuerySet
    plans: Plans
    """The first plans."""
    slots: SlotRange = ONE_SLOT
    rules: Mapping[str, ChangeRules] = field(default_factory=dict)
    """The change rules of each query; without rules, only the user changes its plan."""
    execution: ExecutionModel = DEFAULT_EXECUTION
    moves: tuple[Scheduled, ...] = ()
    balance: Balance = BY_HAND
    traffic: Mapping[str, float] = field(default_factory=dict)
    """Bytes or rows per second of each relation, for the choice of the grid; by default all relations count equally."""
    held: frozenset[str] = frozenset()
    """The tables that every slot holds completely."""
    sharing: SharingRules = BY_HAND_ONLY
    overload: Overload = "keep"
    """The behaviour of an overloaded run."""
    taken: tuple[PlanTaken, ...] = ()
    """The reasons for the first plans, for queries that are not yet running."""
    sample: Mapping[str, RelationBatch] = field(default_factory=dict, repr=False)
    """Sampled rows of each relation, by whose keys groups are assigned to slots; by default groups count equally."""

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
        """Returns the first table; a restart continues with the last one unless the maximum number of slots has
        changed.
        """
        if last is not None and last.slots == self.slots.most:
            return last
        grid = partitioning_of(self.queries, self.slots.most, self.traffic, self.held)
        if self.slots.start < grid.slots:
            return first_table(grid, self.slots)
        rows = cells_of_sample(grid, self.sample, self.traffic)
        return filled_table(grid, rows, self.balance.capacities).partitioning

    def resumed(self, left: Mapping[str, str]) -> Work:
        """Returns the work after a restart: a query whose rules allow it begins with the plan of the last batch."""
        resuming = {
            name: parse_plan(text)
            for name, text in left.items()
            if name in self.plans.plans and self.rules.get(name, NO_RULES).resumes
        }
        return replace(self, plans=Plans({**self.plans.plans, **resuming}))

    def starts(self, batch: int) -> list[PlanTaken]:
        """Returns the record of each query that begins with this batch, with its plan after a restart."""
        found = []
        for each in self.taken:
            plan = self.plans.plans[each.query or ALONE]
            if plan != each.plan:
                each = replace(each, plan=plan, reason="the plan of the last batch before the restart", rivals=())
            found.append(replace(each, batch=batch))
        return found

    def carrying(self) -> Work:
        """Returns the work with the class columns that its first and its planned plans test.

        A host calls this once it knows the plans, because all rows of a run have the same columns.
        """
        switched = ((name, switch.plan) for name, rules in self.rules.items() for switch in rules.switches)
        queries = carrying(self.queries, [*self.plans.plans.items(), *switched])
        return replace(self, queries=without_sources(queries))

    def steering(self, partitioning: Partitioning) -> Steering:
        """Returns the steering of the queries."""
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
            return "the rows of a table have no event time to separate old results from new ones"
        for relation in self.queries.graph.relations:
            if relation.window.is_counted:
                return f"a row of '{relation.name}' may stay in its count window forever, so the move might never end"
            if not relation.window.is_bounded:
                return f"rows of '{relation.name}' never leave their [UNBOUNDED] window, so the move would never end"
        if self.queries.has_sides:
            return "outer, semi and anti joins need all rows of a group in one slot"
        if self.queries.stages > 1:
            return "queries over queries process rows in several stages of a batch"
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
