"""One batch as the console shows it: a small value derived from the progress of a trigger.

Invariant: every number comes from the progress that `handle.lastProgress` returns, so the two always agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from anabranch.stats.backlog import backlog


@dataclass(frozen=True)
class SlotPoint:
    """One slot in one batch."""

    slot: int
    cpu: float
    """CPU seconds."""
    rows_in: int
    rows_out: int
    bytes: int
    groups: int
    """The number of partition groups of the slot."""
    was_hot: bool


@dataclass(frozen=True, kw_only=True)
class BatchPoint:
    """One batch of a run."""

    batch: int
    at: float
    """When the trigger began, in seconds since the Unix epoch."""
    trigger: float
    """Duration of the whole trigger, in seconds."""
    own: float
    """Seconds spent in Anabranch: the driver's work plus the slowest slot."""
    rows_in: Mapping[str, int]
    """By stream."""
    rows_out: int
    late: Mapping[str, int]
    """By stream."""
    undated: Mapping[str, int]
    """Rows without an event time, such as bad records, by stream."""
    shed: Mapping[str, int]
    """By stream."""
    kept: float
    """The share of keys whose rows were kept."""
    state_rows: int
    state_bytes: int
    watermark: float | None
    """An event time, in seconds since the Unix epoch."""
    newest: Mapping[str, float]
    """The largest event time of each stream, in seconds since the Unix epoch."""
    backlog: float | None
    """The backlog that the sources report, in their own units; None if no source reports one."""
    skew: float
    plan: str
    migrating: tuple[int, ...]
    idle: tuple[str, ...]
    """The idle streams."""
    slots: tuple[SlotPoint, ...]
    queries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The plan and the results of each query, for queries that run together."""

    @property
    def end(self) -> float:
        """When the trigger ended, in seconds since the Unix epoch."""
        return self.at + self.trigger

    @property
    def lag(self) -> float | None:
        """Seconds from the watermark to the start of the trigger."""
        return None if self.watermark is None else self.at - self.watermark

    @property
    def rows_by_query(self) -> Mapping[str, int]:
        """Results by query; a query that runs alone has no name."""
        return {name: each["out"] for name, each in self.queries.items()} or {"": self.rows_out}

    @classmethod
    def of(cls, progress: Mapping[str, Any]) -> BatchPoint | None:
        """Reads the progress of a trigger; returns None for a trigger without a batch."""
        ours = progress.get("adaptive")
        if ours is None:
            return None
        groups = list(ours["table"])
        slots = tuple(
            SlotPoint(
                each["slot"],
                each["cpuSeconds"],
                each["rowsIn"],
                each["rowsOut"],
                each["stateBytes"],
                groups.count(each["slot"]),
                each["hot"],
            )
            for each in ours["slotStatistics"]
        )
        micros = ours["watermark"]
        return cls(
            batch=progress["batchId"],
            at=datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp(),
            trigger=progress["durationMs"]["triggerExecution"] / 1000,
            own=_own_seconds(ours),
            rows_in=dict(ours["rowsIn"]),
            rows_out=ours["rowsOut"],
            late={stream: rows for stream, rows in ours["lateRows"].items() if rows},
            undated={stream: rows for stream, rows in ours["undatedRows"].items() if rows},
            shed={stream: rows for stream, rows in ours["shedRows"].items() if rows},
            kept=ours["keptKeys"],
            state_rows=ours["stateRows"],
            state_bytes=ours["stateBytes"],
            watermark=None if micros is None else micros / 1e6,
            newest={stream: newest / 1e6 for stream, newest in ours["newest"].items()},
            backlog=backlog(progress.get("sources", ())),
            skew=ours["skew"],
            plan=ours["plan"],
            migrating=tuple(ours["migrating"]),
            idle=tuple(ours["idleStreams"]),
            slots=slots,
            queries={
                name: {"plan": max(set(each["plans"]), key=each["plans"].count), "out": each["rowsOut"]}
                for name, each in ours.get("queries", {}).items()
            },
        )


def _own_seconds(ours: Mapping[str, Any]) -> float:
    driver = sum(spent for part, spent in ours["durationMs"].items() if part != "step") / 1000
    longest = max((sum(slot["seconds"].values()) for slot in ours["slotStatistics"]), default=0.0)
    return float(driver + longest)
