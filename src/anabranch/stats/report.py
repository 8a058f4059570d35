"""The report of a slot on one step: the message from the worker to the driver.

A slot writes its report as JSON into the metadata of its row file, and the driver reads it from there. JSON is used
only in `SlotReport.to_json` and `SlotReport.from_json`; all other packages read typed values. A report is used within
one batch, so its JSON may change between releases.

Invariant: `SlotReport.from_json(report.to_json())` is the same report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

from anabranch.plan.mesh import Plan, parse_plan
from anabranch.stats.intake import NOTHING_READ, Intake, added
from anabranch.stats.keys import KeyCounts, merge_keys
from anabranch.stats.mesh.profiles import OperatorProfile
from anabranch.stats.step import StepStatistics, in_turn, merge

_plan = lru_cache(maxsize=256)(parse_plan)
"""Cached: every slot reports its plan after every batch, and a mesh has a long text."""


@dataclass(frozen=True)
class Migrated:
    """A plan change that a slot made between two steps."""

    strategy: str
    moved: tuple[str, ...]
    """Intermediate states that were handed over, by their shape in the new plan."""
    recomputed: Mapping[str, int]
    """Intermediate states that were computed, with their rows."""
    seconds: float
    """Wall-clock seconds in which no step could run."""
    filtered: tuple[str, ...] = ()
    """The computed intermediate states that were filtered from an old one."""


@dataclass(frozen=True)
class PlanChange:
    """The outcome of a requested plan: the slot migrated, refused, or already had the plan."""

    migrated: Migrated | None = None
    refused: str | None = None
    """The reason why the slot kept its current plan."""


@dataclass(frozen=True)
class QueryReport:
    """One query in one step of one slot."""

    plan: Plan
    """The running plan; during a migration the new one."""
    is_migrating: bool = False
    """True if the migration continues after the step."""
    statistics: StepStatistics = field(default_factory=StepStatistics)
    change: PlanChange = field(default_factory=PlanChange)
    profiles: tuple[OperatorProfile, ...] | None = None
    """Operator measurements on the youngest rows of each relation; None if the task did not request them."""


@dataclass(frozen=True)
class RowsWritten:
    """A row file that a slot wrote: its rows, the largest event time of each relation in it, and its stage."""

    rows: int
    newest: Mapping[str, int]
    stage: int = 0


@dataclass(frozen=True)
class SlotReport:
    """The report of one step of one slot. Rows that went to several slots are counted in the first of them."""

    queries: Mapping[str, QueryReport] = field(default_factory=dict)
    statistics: StepStatistics = field(default_factory=StepStatistics)
    """All queries together; shared base states are counted once."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Rows admitted, by relation."""
    intake: Intake = NOTHING_READ
    """The counts of the batch's readers; one slot has all counts, and every slot the event times."""
    results: Mapping[str, int] = field(default_factory=dict)
    """The number of finished results, by query, as received by its sink or by the queries that read it."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall-clock seconds before the step, by kind of work; for operator profiling after it, CPU seconds."""
    was_hot: bool = False
    """True if the slot found its hot state."""
    files: tuple[RowsWritten, ...] = ()
    """Empty if no rows are kept."""
    cpu: float = 0.0
    """CPU seconds of the step, from opening the state to writing the rows."""
    taken: int = 0
    """Rows that the slot received from other slots, with their partition groups."""
    left: float = 0.0
    """The fraction of rows of partition groups that have moved away, among the base rows; counted with the cells."""
    cells: Mapping[str, tuple[int, ...]] | None = None
    """Rows admitted, by relation and cell; None if the task did not request it."""
    held: Mapping[str, tuple[int, ...]] | None = None
    """Base rows in their windows after the step, by relation and cell; None if the task did not request it."""
    keys: Mapping[str, KeyCounts] | None = None
    """The most frequent values of the partitioning keys, by code; counted with the cells."""

    @property
    def is_migrating(self) -> bool:
        """True while a query of the slot migrates."""
        return any(query.is_migrating for query in self.queries.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "queries": {name: self._query_to_json(query) for name, query in self.queries.items()},
            "statistics": self.statistics.to_json(),
            "rows": dict(self.rows),
            "intake": self.intake.to_json(),
            "results": dict(self.results),
            "seconds": dict(self.seconds),
            "hot": self.was_hot,
            "files": [asdict(file) for file in self.files],
            "cpu": self.cpu,
            "taken": self.taken,
            "left": self.left,
            "cells": None if self.cells is None else {name: list(counts) for name, counts in self.cells.items()},
            "held": None if self.held is None else {name: list(counts) for name, counts in self.held.items()},
            "keys": None if self.keys is None else {code: counts.to_json() for code, counts in self.keys.items()},
        }

    def _query_to_json(self, query: QueryReport) -> dict[str, Any]:
        migrated, profiles = query.change.migrated, query.profiles
        return {
            "plan": str(query.plan),
            "migrating": query.is_migrating,
            # A query that runs alone has the statistics of its slot.
            "statistics": None if query.statistics is self.statistics else query.statistics.to_json(),
            "migrated": None if migrated is None else asdict(migrated),
            "refused": query.change.refused,
            "profiles": None if profiles is None else [profile.to_json() for profile in profiles],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SlotReport:
        statistics = StepStatistics.from_json(value["statistics"])
        return cls(
            queries={name: _query_from_json(query, statistics) for name, query in value["queries"].items()},
            statistics=statistics,
            rows=value["rows"],
            intake=Intake.from_json(value["intake"]),
            results=value["results"],
            seconds=value["seconds"],
            was_hot=value["hot"],
            files=tuple(RowsWritten(**file) for file in value["files"]),
            cpu=value["cpu"],
            taken=value["taken"],
            left=value["left"],
            cells=None if value["cells"] is None else {name: tuple(each) for name, each in value["cells"].items()},
            held=None if value["held"] is None else {name: tuple(each) for name, each in value["held"].items()},
            keys=None
            if value["keys"] is None
            else {code: KeyCounts.from_json(each) for code, each in value["keys"].items()},
        )


def _query_from_json(value: Mapping[str, Any], of_slot: StepStatistics) -> QueryReport:
    migrated, profiles, own = value["migrated"], value["profiles"], value["statistics"]
    return QueryReport(
        _plan(value["plan"]),
        value["migrating"],
        of_slot if own is None else StepStatistics.from_json(own),
        PlanChange(None if migrated is None else _migrated_from_json(migrated), value["refused"]),
        None if profiles is None else tuple(OperatorProfile.from_json(each) for each in profiles),
    )


def _migrated_from_json(value: Mapping[str, Any]) -> Migrated:
    return Migrated(**{**value, "moved": tuple(value["moved"]), "filtered": tuple(value["filtered"])})


SlotReports: TypeAlias = Mapping[int, SlotReport]
"""The reports of one batch, by slot."""


def whole(stages: Sequence[SlotReport]) -> SlotReport:
    """Merges the reports of a slot's stages in order: work is summed, states are those at the end."""
    first, last = stages[0], stages[-1]
    if first is last:
        return first
    statistics = in_turn(stage.statistics for stage in stages)
    return SlotReport(
        queries={name: _whole_query([stage.queries[name] for stage in stages]) for name in last.queries},
        statistics=statistics,
        rows=added(stage.rows for stage in stages),
        intake=first.intake,
        results=added(stage.results for stage in stages),
        seconds=_sums([stage.seconds for stage in stages]),
        was_hot=all(stage.was_hot for stage in stages),
        files=tuple(file for stage in stages for file in stage.files),
        cpu=sum(stage.cpu for stage in stages),
        taken=first.taken,
        left=last.left,
        cells=None if first.cells is None else _added_cells([stage.cells or {} for stage in stages]),
        held=last.held,
        keys=None if first.keys is None else merge_keys(stage.keys or {} for stage in stages),
    )


def _whole_query(stages: Sequence[QueryReport]) -> QueryReport:
    return replace(stages[-1], statistics=in_turn(each.statistics for each in stages), change=stages[0].change)


def _added_cells(several: Sequence[Mapping[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    names = dict.fromkeys(name for each in several for name in each)
    return {
        name: tuple(map(sum, zip(*(each[name] for each in several if name in each), strict=True))) for name in names
    }


def _sums(several: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for each in several for name in each)
    return {name: sum(each.get(name, 0.0) for each in several) for name in names}


def with_results(reports: SlotReports, counts: Mapping[str, int]) -> SlotReports:
    """Returns the reports of a batch with results that were finished after the slots' steps, by query."""
    first = min(reports)
    return {**reports, first: replace(reports[first], results=added([reports[first].results, counts]))}


def merged_statistics(reports: Iterable[SlotReport | QueryReport]) -> StepStatistics:
    """Sums the statistics over slots."""
    several = [report.statistics for report in reports]
    return several[0] if len(several) == 1 else merge(several)
