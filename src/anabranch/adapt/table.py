"""Steers the table of a running set of queries: which slot has which partition group, and who may change it.

All queries of a set share one table. The user and a schedule may move groups and change the number of slots. The user
may request a rebalancing; a query with `balance: auto` requests it when its advisor asks for it
(`adapt.advisors.balance`). Decisions that depend on loads are made after one batch in which the slots count their rows
by cell.

Invariant: a request is checked immediately, and its change begins with the next batch and leaves a record. Its
rebalance schedule may take several batches (`adapt.course`). Limit: there is at most one change at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

from anabranch.adapt.advisors.balance import BalanceAdvisor, ChooseGrid, Count
from anabranch.adapt.balancing import BY_HAND, Balance
from anabranch.adapt.course import STRATEGIES, Course, MoveStrategy, Table
from anabranch.adapt.facts import AT_START, BatchFacts, Moment
from anabranch.adapt.loads import CountedBatch, LoadHistory, even_loads
from anabranch.adapt.naming import NameKey, by_hash
from anabranch.adapt.records import GroupsMoved, Refusal, TableRecord
from anabranch.adapt.schedule import Scheduled, ScheduledScale, split_over
from anabranch.balance.rule import even_out, moves_between
from anabranch.balance.scaling import require_count, spread_over
from anabranch.errors import PlanError
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.slots import SlotRange
from anabranch.stats.report import SlotReports


class TableSteering:
    """The table of one running set of queries; requests may come from any thread."""

    def __init__(
        self,
        start: Table,
        schedule: Iterable[Scheduled] = (),
        balance: Balance = BY_HAND,
        grids: ChooseGrid | None = None,
        names: NameKey = by_hash,
    ) -> None:
        """Without `grids` the grid of the table stays; `names` are those of heavy keys in records."""
        self.names = names
        table = start.partitioning
        self._start = start
        self._advisor = BalanceAdvisor(start, start.slots or SlotRange.fixed(table.slots), grids, names)
        self._table = table
        self._available = table.working if self._advisor.limits.is_elastic else tuple(range(table.slots))
        self._loads = LoadHistory(balance)
        self._lost: set[int] = set()
        """Slots that have no groups because the executor of their state was lost."""
        self._require_strategy(balance.strategy)
        self._schedule: dict[int, list[Scheduled]] = {}
        for each in schedule:
            self._require_on()
            if each.at_once:
                each.target(table.settled)
            self._require_strategy(each.strategy)
            self._schedule.setdefault(each.at_batch, []).append(each)
        self._course: Course | None = None
        if table.mark is not None:
            # A restart in the middle of a move on parallel tracks.
            self._course = Course(table.settled, "restart", "parallel-track")
        self._began: tuple[Partitioning, Partitioning, Course] | None = None
        """The last table, the new one and its course, until the batch of the change has ended."""
        self._count: Count | None = None
        self._lock = threading.Lock()

    @property
    def table(self) -> Partitioning:
        """The table of the latest batch, or the one that it is to become."""
        return self._table if self._course is None else self._course.target

    @property
    def now(self) -> Partitioning:
        """The table of the latest batch."""
        return self._table

    @property
    def counts_cells(self) -> bool:
        """Whether the slots count their rows by cell in the next batch."""
        return self._count is not None

    @property
    def is_changing(self) -> bool:
        """True from the request of a change until it has ended."""
        return self._course is not None or self._began is not None

    def move(
        self, groups: Iterable[int], to: int, strategy: str = "moving-state", most_rows: int | None = None
    ) -> None:
        """Moves partition groups to a slot from the next batch on; refuses without any effect."""
        with self._lock:
            self._require_allowed()
            self._begin(Course(self._table.moved(groups, to), "user", self._require_strategy(strategy), most_rows))

    def spread(self, table: Partitioning, strategy: str = "moving-state", most_rows: int | None = None) -> None:
        """Takes another grid or table, over as many slots, from the next batch on; refuses without any effect."""
        with self._lock:
            self._require_rest()
            if table.slots != self._table.slots:
                raise PlanError(f"a table of {table.slots} slots does not fit {self._table.slots}")
            if strategy == "parallel-track" and table.grid != self._table.grid:
                raise PlanError("another grid cannot be taken on parallel tracks", hint="use strategy moving-state")
            if cut := sorted({n for key in table.heavy for n, share in key.shares if share > 1} & self._start.uncut):
                raise PlanError(f"rows of '{cut[0]}' must not be cut", hint="they belong to an outer join")
            self._begin(Course(table, "user", self._require_strategy(strategy), most_rows))

    def split(self, code: str, value: int, over: int | Sequence[int] | None = None) -> None:
        """Splits a key value over some slots with the next batch; refuses without any effect."""
        with self._lock:
            self._require_allowed()
            self._begin(Course(split_over(self._table, code, value, over, self._start.uncut), "user"))

    def unite(self, code: str, value: int) -> None:
        """Takes a split of a key value back with the next batch; refuses without any effect."""
        with self._lock:
            self._require_allowed()
            self._begin(Course(self._table.united(code, value), "user"))

    def scale(self, slots: int) -> None:
        """Measures the next batch, and then uses that many slots; refuses without any effect."""
        with self._lock:
            self._require_allowed()
            require_count(self._table, slots)
            self._count = Count(available=tuple(range(slots)))

    def rebalance(self) -> None:
        """Measures the next batch, and then moves groups so that no slot holds the others back."""
        with self._lock:
            self._require_allowed()
            self._count = Count()

    def lose(self, slots: Iterable[int], reason: str) -> None:
        """Spreads the groups of slots whose state is lost over the others, from the next batch on.

        Only a query that balances itself does so, and not while another change is under way: then the slots are rebuilt
        as they are.
        """
        with self._lock:
            if self._settings.mode != "auto" or self._loads.is_frozen or self._course is not None:
                return
            gone = set(slots)
            left = tuple(slot for slot in self._available if slot not in gone)
            if left and gone & set(self._table.working):
                found = even_out(self._table, even_loads(self._table), available=left)
                self._lost.update(gone & set(self._available))
                self._available, self._count = left, None
                self._course = Course(found.applied(self._table), reason)

    def regain(self, reason: str) -> None:
        """Gives the slots that were lost work again, after a batch that is measured."""
        with self._lock:
            if self._lost and self._course is None and not self._loads.is_frozen:
                self._count = Count(reason, tuple(sorted({*self._available, *self._lost})))
                self._lost.clear()

    def freeze(self, frozen: bool = True) -> None:
        """Keeps the query from rebalancing itself, or lets it again; moves by hand are still made."""
        with self._lock:
            self._loads = replace(self._loads, is_frozen=frozen)

    def next(self, batch: int, moment: Moment = AT_START) -> tuple[Partitioning, list[TableRecord]]:
        """The table for a batch, and records of scheduled moves that could not be made."""
        refused: list[TableRecord] = []
        with self._lock:
            others = self._course
            for scheduled in self._schedule.pop(batch, []):
                try:
                    # Several moves of one batch are one change.
                    if self._course is others:
                        self._require_rest()
                    course = Course(scheduled.target(self.table), "schedule", scheduled.strategy)
                    is_same = course.target.grid == self._table.grid
                    self._begin(replace(course, most_rows=self._settings.rows if is_same else None))
                except PlanError as error:
                    refused.append(Refusal(batch, error.message))
                    continue
                if isinstance(scheduled, ScheduledScale):
                    self._available = tuple(range(scheduled.slots))
            if self._course is not None and not self._course.needs_counts:
                after = self._course.after(self._table, moment)
                if after != self._table:
                    self._began = self._table, after, self._course
                    self._table = after
                if after == self._course.target:
                    self._course = None
            return self._table, refused

    def after(self, facts: BatchFacts, reports: SlotReports, *, is_busy: bool = False) -> list[TableRecord]:
        """Takes in a batch that was committed; returns its records.

        While plans are changing, or are about to, the query does not move groups by itself: cheaper plans come first.
        """
        records: list[TableRecord] = []
        with self._lock:
            self._loads = self._loads.after(facts, reports)
            if self._began is not None:
                before, table, course = self._began
                records.append(_moved(facts.batch, course, before, table, reports, self.names))
                self._began = None
                self._loads = self._loads.decided()
            elif is_busy:
                self._loads = self._loads.decided()
                if self._count is not None and self._count.trigger is not None:
                    self._count = None
            elif self._count is None and self._course is None:
                wanted = self._advisor.wants(self._loads, self._table, self._available)
                if self._loads.is_free and (wanted is None or wanted.available is None):
                    records += self._regrid(facts.batch, asked=False)
                self._count = wanted if self._course is None else None
            if self._count is not None and all(reports[slot].cells is not None for slot in self._table.working):
                records += self._decide(facts.batch, self._count, CountedBatch(self._table, reports))
        return records

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _settings(self) -> Balance:
        return self._loads.settings

    def _regrid(self, batch: int, *, asked: bool) -> list[TableRecord]:
        """Decides on another grid if the rates suggest one."""
        found = self._advisor.other_grid(batch, self._loads, self._table, self._available, asked=asked)
        if found is None:
            return []
        record, self._course = found
        self._loads = self._loads.decided(kept=self._course is None)
        return [record]

    def _decide(self, batch: int, count: Count, counted: CountedBatch) -> list[TableRecord]:
        """Decides on the moves that a counted batch suggests."""
        self._count = None
        if count.course is not None:
            self._course = replace(count.course, group_rows=counted.loads().group_rows)
            return []
        # Rows that go to fewer slots come first: another grid has other groups.
        if count == Count() and (other := self._regrid(batch, asked=True)):
            return other
        self._available = self._available if count.available is None else count.available
        record, self._course = self._advisor.propose(batch, count, counted, self._loads, self._available)
        self._loads = self._loads.decided(kept=self._course is None)
        return [record]

    def _begin(self, course: Course) -> None:
        if (reason := self._start.objection(course, self._table)) is not None:
            raise PlanError(reason, hint="leave the limit out: the groups then move with one batch")
        self._course = course
        if course.needs_counts:
            self._count = Count(course=course)

    def _require_allowed(self) -> None:
        """Refuses a request of the user if balancing is off, or another change is requested or in progress."""
        self._require_on()
        self._require_rest()

    def _require_on(self) -> None:
        if self._settings.mode == "off":
            raise PlanError("balancing is off, so partition groups stay where they are", hint="use balance: manual")

    def _require_strategy(self, name: str) -> MoveStrategy:
        for strategy in STRATEGIES:
            if name == strategy:
                if strategy == "parallel-track" and self._start.no_tracks is not None:
                    raise PlanError(
                        f"groups cannot move on parallel tracks: {self._start.no_tracks}",
                        hint="use strategy moving-state",
                    )
                return strategy
        raise PlanError(f"no strategy '{name}' of moves", hint=f"one of {', '.join(STRATEGIES)}")

    def _require_rest(self) -> None:
        if self._course is not None or (self._count is not None and self._count.trigger is None):
            state = "on their way" if self._table.mark is not None else "to move with the next batch already"
            raise PlanError(f"partition groups are {state}", hint="wait for the end of that move, then ask again")


def first_table(grid: Partitioning, slots: SlotRange) -> Partitioning:
    """The table to begin with: the grid's own, or over as many slots as an elastic run begins with."""
    return grid if slots.start == grid.slots else spread_over(grid, slots.start)


def _moved(
    batch: int, course: Course, before: Partitioning, table: Partitioning, reports: SlotReports, names: NameKey
) -> GroupsMoved:
    if table.mark is not None:
        phase, moves = "began", moves_between(table.before, table.settled)
    elif before.mark is not None:
        phase, moves = "ended", moves_between(before.before, before.settled)
    else:
        phase, moves = "made", moves_between(before, table)
    is_same_grid = before.grid == table.grid
    touched = {slot for move in moves for slot in (move.sender, move.receiver)} if is_same_grid else {*table.working}
    rebuilt = tuple(slot for slot in table.working if slot in touched and not reports[slot].was_hot)
    taken = sum(report.taken for report in reports.values())
    left = sum(now != then for now, then in zip(table.table, course.target.table, strict=True)) if is_same_grid else 0
    grid = None if before.dimensions == table.dimensions else table.shares
    split = tuple(names(key) for key in table.heavy if key not in before.heavy) or None
    united = tuple(names(key) for key in before.heavy if key not in table.heavy) or None
    return GroupsMoved(batch, course.by, moves, taken, rebuilt, course.strategy, phase, left, grid, split, united)
