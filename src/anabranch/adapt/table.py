"""Steers the table of a running set of queries: which slot has which partition group, and who may change it.

All queries of a set share one table, so it is steered beside their plans. The user and a schedule may move groups. The
user may ask for a rebalancing, and a query with `balance: auto` asks for one by itself (`adapt.balancing`): the slots
then count their rows by cell for one batch, and the rule of `balance` turns these counts and the measured CPU times
into moves. If the rates of streams have changed, the grid itself may change (`adapt.grid`). A change is checked when it
is asked for and takes effect with the next batch, whole. Every change leaves a record.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from anabranch.adapt.balancing import BY_HAND, Balance, BalanceWatch
from anabranch.adapt.grid import ChooseGrid, GridWatch, matching_share
from anabranch.adapt.records import BalanceDecided, GridDecided, GroupsMoved, MoveRefused, TableRecord
from anabranch.balance.loads import Loads, SlotLoad, estimate_loads
from anabranch.balance.rule import Rebalancing, even_out, moves_between
from anabranch.errors import PlanError
from anabranch.plan.partitioning import Partitioning
from anabranch.stats.report import SlotReport, SlotReports


@dataclass(frozen=True)
class ScheduledMove:
    """Partition groups that move at a batch that is known beforehand."""

    at_batch: int
    to: int
    groups: int | tuple[int, ...]
    """The groups, or how many of the sender's groups."""
    sender: int | None = None
    """The slot that gives groups away; needed where a number of groups is named."""

    def resolved(self, table: Partitioning) -> tuple[int, ...]:
        """The groups that move by a table; PlanError when it has no such groups or slots."""
        table.require_slots(self.to, *(() if self.sender is None else (self.sender,)))
        if not isinstance(self.groups, int):
            return self.groups
        if self.sender is None:
            raise PlanError(f"{self.groups} groups are to move, from no slot", hint="name the slot that has them: from")
        return table.groups_of(self.sender)[: self.groups]


class TableSteering:
    """The table of one running set of queries; `move` and `rebalance` may be called from any thread."""

    def __init__(
        self,
        table: Partitioning,
        schedule: Iterable[ScheduledMove] = (),
        balance: Balance = BY_HAND,
        grids: ChooseGrid | None = None,
    ) -> None:
        """Without `grids` the grid of the table stays."""
        self._table = table
        self._watch = BalanceWatch(balance)
        self._grid_watch = None if grids is None else GridWatch(balance, grids)
        self._is_frozen = False
        self._trigger: str | None = None
        """Why the query measures a batch by itself; None when the user asked for it."""
        self._schedule: dict[int, list[ScheduledMove]] = {}
        for move in schedule:
            self._require_allowed()
            move.resolved(table)
            self._schedule.setdefault(move.at_batch, []).append(move)
        self._wanted: tuple[Partitioning, str] | None = None
        self._began: tuple[Partitioning, Partitioning, str] | None = None
        """The last table, the new one and who asked for it, until the batch of the change has ended."""
        self._is_measuring = False
        self._lock = threading.Lock()

    @property
    def table(self) -> Partitioning:
        """The table of the next batch, as far as it is known."""
        return self._table if self._wanted is None else self._wanted[0]

    @property
    def counts_cells(self) -> bool:
        """Whether the slots count their rows by cell in the next batch."""
        return self._is_measuring

    def move(self, groups: Iterable[int], to: int) -> None:
        """Moves partition groups to a slot with the next batch; refuses without any effect."""
        with self._lock:
            self._require_allowed()
            self._require_rest()
            self._wanted = self._table.moved(groups, to), "user"

    def spread(self, table: Partitioning) -> None:
        """Takes another grid or table, over as many slots, with the next batch; refuses without any effect."""
        with self._lock:
            self._require_rest()
            if table.slots != self._table.slots:
                raise PlanError(f"a table of {table.slots} slots does not fit {self._table.slots}")
            self._wanted = table, "user"

    def rebalance(self) -> None:
        """Measures the next batch, and then moves groups so that no slot holds the others back."""
        with self._lock:
            self._require_allowed()
            self._require_rest()
            self._is_measuring, self._trigger = True, None

    def freeze(self, frozen: bool = True) -> None:
        """Keeps the query from rebalancing itself, or lets it again; moves by hand are still made."""
        with self._lock:
            self._is_frozen = frozen

    def next(self, batch: int) -> tuple[Partitioning, list[TableRecord]]:
        """The table for a batch, and records of scheduled moves that could not be made."""
        refused: list[TableRecord] = []
        with self._lock:
            for scheduled in self._schedule.pop(batch, []):
                try:
                    table = self.table.moved(scheduled.resolved(self.table), scheduled.to)
                except PlanError as error:
                    refused.append(MoveRefused(batch, error.message))
                else:
                    self._wanted = table, "schedule"
            if self._wanted is not None:
                table, by = self._wanted
                self._began = self._table, table, by
                self._table, self._wanted = table, None
            return self._table, refused

    def after(self, batch: int, reports: SlotReports) -> list[TableRecord]:
        """Takes in a batch that was committed; returns its records."""
        records: list[TableRecord] = []
        with self._lock:
            if self._grid_watch is not None:
                self._grid_watch.note(reports)
            if self._began is not None:
                before, table, by = self._began
                records.append(_moved(batch, by, before, table, reports))
                self._began = None
                self._rest()
            elif not self._is_measuring:
                self._trigger = self._watch.note(self._table, reports)
                records += self._regrid(batch, reports)
                self._is_measuring = self._trigger is not None and not self._is_frozen
            elif all(report.cells is not None for report in _working(self._table, reports)):
                # Rows that go to fewer slots come first: another grid has other groups.
                other = self._regrid(batch, reports) if self._trigger is None else []
                records += other or [self._rebalance(batch, measured_loads(self._table, reports))]
                self._is_measuring = False
        return records

    def _rebalance(self, batch: int, loads: Loads) -> BalanceDecided:
        """Decides on the moves that measured loads suggest; those of the user's own wish need not pay."""
        if self._trigger is None:
            found, refused = even_out(self._table, loads), None
        else:
            found, refused = self._watch.propose(self._table, loads)
        if refused is None and not found.moves:
            refused = "no group can move without making another slot the slowest"
        if refused is None and self._wanted is not None:
            refused = "another move was asked for"
        if refused is None:
            self._wanted = _after(self._table, found), "user" if self._trigger is None else "balance"
        self._rest()
        return BalanceDecided(batch, self._trigger or "asked for", found, refused)

    def _regrid(self, batch: int, reports: SlotReports) -> list[TableRecord]:
        """Decides on another grid where the rates suggest one and the query, or its user, asks for it."""
        if self._grid_watch is None or not (self._is_measuring or (self._watch.is_free and not self._is_frozen)):
            return []
        found = self._grid_watch.propose(self._table, reports)
        if found is None:
            return []
        refused = None if self._is_measuring else self._grid_watch.objection(found)
        if refused is None and self._wanted is not None:
            refused = "another move was asked for"
        if refused is None:
            self._wanted = found.proposed, "user" if self._is_measuring else "balance"
            self._trigger = None
        self._rest()
        return [GridDecided(batch, found, refused)]

    def _rest(self) -> None:
        """Begins the cool-down of all that the query decides on its table by itself."""
        self._watch.decided()
        if self._grid_watch is not None:
            self._grid_watch.decided()

    def _require_allowed(self) -> None:
        if self._watch.settings.mode == "off":
            raise PlanError("balancing is off, so partition groups stay where they are", hint="use balance: manual")

    def _require_rest(self) -> None:
        if self._wanted is not None:
            raise PlanError(
                "partition groups are to move with the next batch already", hint="wait for that batch, then ask again"
            )


def measured_loads(table: Partitioning, reports: SlotReports) -> Loads:
    """The loads of slots and groups from one batch in which the slots counted their rows by cell."""
    rows: dict[str, np.ndarray] = {}
    for report in reports.values():
        for name, counts in (report.cells or {}).items():
            rows[name] = rows.get(name, 0) + np.array(counts)
    slots = [SlotLoad(r.cpu, r.statistics.state_bytes, matching_share(r)) for _, r in sorted(reports.items())]
    return estimate_loads(table, rows, slots)


def _working(table: Partitioning, reports: SlotReports) -> list[SlotReport]:
    return [reports[slot] for slot in table.working]


def _after(table: Partitioning, found: Rebalancing) -> Partitioning:
    for move in found.moves:
        table = table.moved(move.groups, move.receiver)
    return table


def _moved(batch: int, by: str, before: Partitioning, table: Partitioning, reports: SlotReports) -> GroupsMoved:
    taken: Mapping[int, int] = {slot: report.taken for slot, report in reports.items() if report.taken}
    is_same_grid = before.dimensions == table.dimensions
    moves = moves_between(before, table)
    touched = {slot for move in moves for slot in (move.sender, move.receiver)} if is_same_grid else {*table.working}
    rebuilt = tuple(slot for slot in table.working if slot in touched and not reports[slot].was_hot)
    return GroupsMoved(batch, by, moves, sum(taken.values()), rebuilt, None if is_same_grid else table.shares)
