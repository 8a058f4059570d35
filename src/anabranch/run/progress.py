"""The progress entry of a batch, shown as `progress["adaptive"]`.

`to_json` uses the keys that users read. All numbers come from the slots' reports, so there is one account of a batch.
*Rows in* of a stream are the rows that its source delivered: each counts once and before filters, whatever the number
of relations, slots and stages that receive it. *Rows out* are the rows that the sinks received. `statistics` has the
engine's counts: rows by relation and slot, and parts of groups.

Invariant: an entry is built once, from the reports of its batch, and does not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from anabranch.adapt.records import Record
from anabranch.balance.loads import skew
from anabranch.lang.window import instant_text
from anabranch.plan.mesh import Plan
from anabranch.plan.partitioning import Partitioning
from anabranch.stats.report import QueryReport, SlotReport, SlotReports, merged_statistics
from anabranch.stats.step import StepStatistics


@dataclass(frozen=True)
class SlotProgress:
    """One slot in one batch."""

    slot: int
    was_hot: bool
    seconds: Mapping[str, float]
    """Wall clock by kind of work."""
    rows_in: int
    """Rows that the slot received; those sent to several slots count in each."""
    rows_out: int
    """Results, or parts of groups, that the slot found."""
    cpu: float = 0.0
    """Seconds of one core."""
    state_bytes: int = 0
    groups: int = 1
    """The number of partition groups; a slot without groups does nothing."""
    executor: str | None = None
    """The executor that the driver chose for the slot; None on one machine."""

    @classmethod
    def of(cls, slot: int, report: SlotReport, table: Sequence[int], executor: str | None = None) -> SlotProgress:
        step = report.statistics
        return cls(
            slot,
            report.was_hot,
            {**report.seconds, **step.seconds},
            sum(step.rows_in.values()),
            step.rows_out,
            report.cpu,
            step.state_bytes,
            list(table).count(slot),
            executor,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "slot": self.slot,
            "groups": self.groups,
            **({} if self.executor is None else {"executor": self.executor}),
            "hot": self.was_hot,
            "seconds": dict(self.seconds),
            "rowsIn": self.rows_in,
            "rowsOut": self.rows_out,
            "cpuSeconds": self.cpu,
            "stateBytes": self.state_bytes,
        }


@dataclass(frozen=True)
class QueryProgress:
    """One query in one batch."""

    plans: tuple[Plan, ...]
    """The state after the batch, by slot."""
    migrating: tuple[int, ...]
    """The slots whose plan was still changing after the batch."""
    statistics: StepStatistics
    rows_out: int = 0
    """Rows that the query's sink received, or the queries that read it."""

    @classmethod
    def of(cls, reports: Mapping[int, QueryReport], rows_out: int) -> QueryProgress:
        ordered = sorted(reports.items())
        return cls(
            tuple(report.plan for _, report in ordered),
            tuple(slot for slot, report in ordered if report.is_migrating),
            merged_statistics(reports.values()),
            rows_out,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "plans": [str(plan) for plan in self.plans],
            "migrating": list(self.migrating),
            "rowsOut": self.rows_out,
            "statistics": self.statistics.to_json(),
        }


@dataclass(frozen=True, kw_only=True)
class BatchProgress:
    """One batch of a run: all queries together, each slot, and each query if several run together."""

    plan: str
    """The plan of most slots; if several queries run together, the plan of each."""
    plans: tuple[Plan, ...]
    """The plans of the batch by slot, query by query."""
    migrating: tuple[int, ...]
    """The slots in which some plan was still changing after the batch."""
    records: tuple[Record, ...]
    rows_in: Mapping[str, int]
    """Rows that the source of each stream delivered."""
    rows_out: int
    """Rows that the sinks received."""
    late_rows: Mapping[str, int]
    """By stream."""
    ahead_rows: Mapping[str, int]
    """Rows too far in the future, by stream."""
    shed_rows: Mapping[str, int] = field(default_factory=dict)
    """Rows of keys that were dropped because the run could not take all its input, by stream."""
    kept: float = 1.0
    """The share of keys that were kept; below 1, results are partial, until one window after it has returned to 1."""
    undated_rows: Mapping[str, int] = field(default_factory=dict)
    """Rows without an event time, by stream."""
    watermark: int | None
    newest: Mapping[str, int]
    """The largest event time of each stream that has had a row, in microseconds."""
    idle_streams: tuple[str, ...]
    seconds: Mapping[str, float]
    """Wall-clock time of the driver's parts of the round."""
    slots: tuple[SlotProgress, ...]
    partitioning: Partitioning
    """The grid of partition groups, and the slot of each."""
    sent: Mapping[str, float]
    """The ratio of rows sent to slots to rows read, by relation."""
    heavy: tuple[str, ...] = ()
    """The names of heavy keys, in the order of the table."""
    statistics: StepStatistics
    queries: Mapping[str, QueryProgress]
    """The progress of each query; empty if a query runs alone."""

    def to_json(self) -> dict[str, Any]:
        return self._json

    @cached_property
    def _json(self) -> dict[str, Any]:
        # Cached because monitors request the latest batches repeatedly.
        entry = {
            "plan": self.plan,
            "plans": [str(plan) for plan in self.plans],
            "migrating": list(self.migrating),
            "records": [record.to_json() for record in self.records],
            "slots": len(self.slots),
            "rowsIn": dict(self.rows_in),
            "rowsOut": self.rows_out,
            "lateRows": dict(self.late_rows),
            "aheadRows": dict(self.ahead_rows),
            "shedRows": dict(self.shed_rows),
            "keptKeys": round(self.kept, 4),
            "undatedRows": dict(self.undated_rows),
            "stateRows": self.statistics.state_rows,
            "stateBytes": self.statistics.state_bytes,
            "watermark": self.watermark,
            "newest": dict(self.newest),
            "idleStreams": list(self.idle_streams),
            "durationMs": {kind: round(1000 * spent, 1) for kind, spent in self.seconds.items()},
            "slotStatistics": [slot.to_json() for slot in self.slots],
            "table": list(self.partitioning.table),
            "grid": self.partitioning.to_json()["dimensions"],
            "sent": {name: round(copies, 3) for name, copies in self.sent.items()},
            "heavy": [
                {"name": name, "slots": list(self.partitioning.slots_of_heavy(number))}
                for number, name in enumerate(self.heavy)
            ],
            "slotsInUse": sum(slot.groups > 0 for slot in self.slots),
            "skew": round(skew([slot.cpu for slot in self.slots if slot.groups]), 3),
            "statistics": self.statistics.to_json(),
        }
        queries = {name: query.to_json() for name, query in self.queries.items()}
        return {**entry, "queries": queries} if queries else entry

    def headline(self) -> dict[str, Any]:
        """Returns the main figures of a batch for its log line."""
        shown = ("plan", "rowsIn", "rowsOut", "lateRows", "stateRows", "stateBytes", "watermark", "skew", "durationMs")
        watermark = None if self.watermark is None else instant_text(self.watermark)
        return {name: self._json[name] for name in shown} | {"watermark": watermark}

    @property
    def own_seconds(self) -> float:
        """Returns the seconds of the driver and of the slowest slot; the other slots ran in parallel."""
        driver = sum(spent for part, spent in self.seconds.items() if part != "step")
        return driver + max((sum(slot.seconds.values()) for slot in self.slots), default=0.0)


def sent_by_relation(reports: SlotReports) -> dict[str, float]:
    """Returns the ratio of rows that slots received to rows read, for each relation that had any."""
    read: dict[str, int] = {}
    for report in reports.values():
        for name, count in report.rows.items():
            read[name] = read.get(name, 0) + count
    taken = merged_statistics(reports.values()).rows_in
    return {name: taken.get(name, 0) / count for name, count in read.items() if count}


def migrating_slots(reports: SlotReports) -> tuple[int, ...]:
    return tuple(slot for slot, report in sorted(reports.items()) if report.is_migrating)
