"""The console's view of its runs: one thread polls them, and all viewers read the result.

Polling is shared, so the load on a query does not depend on the number of viewers. The thread polls every two seconds,
requests only new batches from Spark, and notifies viewers if there are any.

Limit: the latest thousand samples and two thousand records of each run; the history file has more.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from time import time_ns
from typing import Any, NamedTuple

from anabranch.console.figures import MINUTE, Curve
from anabranch.console.points import BatchPoint
from anabranch.console.runs import Run

POLL_SECONDS = 2.0
MOST_SAMPLES = 1000
MOST_RECORDS = 2000
_log = logging.getLogger(__name__)


def wall_clock() -> float:
    """Returns the time of day, in seconds since the Unix epoch, by which Spark stamps triggers."""
    return time_ns() / 1e9


@dataclass
class Totals:
    """Counts since the console first saw the run; the metrics derive from them."""

    batches: int = 0
    trigger_seconds: float = 0.0
    own_seconds: float = 0.0
    rows_in: Counter[str] = field(default_factory=Counter)
    rows_out: Counter[str] = field(default_factory=Counter)
    """By query; a query that runs alone has the name of the run."""
    late: Counter[str] = field(default_factory=Counter)
    undated: Counter[str] = field(default_factory=Counter)
    shed: Counter[str] = field(default_factory=Counter)
    overloads: Counter[str] = field(default_factory=Counter)
    """By the bound that failed: `memory` or `backlog`."""
    slot_cpu: Counter[int] = field(default_factory=Counter)
    probes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Rows looked up, by join, origin and target."""
    kept: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    decisions: Counter[str] = field(default_factory=Counter)
    """By action."""
    migrations: int = 0
    moves: int = 0


BOUNDS = {"limit": "memory", "behind": "backlog"}
"""The bound of each kind of record that says that a run cannot take its input."""


class News(NamedTuple):
    """An update for a viewer and its end position, all from one moment, so that no batch is skipped."""

    version: int
    batch: int
    text: str


class WatchedRun:
    """One run with the batches and records seen so far; `now` is the wall clock, in seconds since the Unix epoch."""

    def __init__(self, run: Run, now: Callable[[], float] = wall_clock) -> None:
        self.run = run
        self.curve = Curve(MOST_SAMPLES)
        self.point: BatchPoint | None = None
        """The latest batch."""
        self.recent: deque[tuple[float, Mapping[str, Any]]] = deque()
        """The progress of the batches of the last minute, each with the end of its trigger."""
        self.totals = Totals()
        self.status = run.status()
        self.quiet = ""
        """`idle` or `busy` if no batch has ended for a minute, else nothing."""
        self._now = now
        self._starts: dict[str, Mapping[str, Any]] = {}
        """Why the first plan of each query was taken, in the latest run of the checkpoint."""
        self._records: deque[Mapping[str, Any]] = deque(maxlen=MOST_RECORDS)
        self.version = 0
        self._lock = Lock()
        self._texts: dict[int, str] = {}
        self._waiting: list[Callable[[], object]] = []
        self._keep(run.records())
        self.look()

    @property
    def batch(self) -> int:
        return -1 if self.point is None else self.point.batch

    @property
    def records(self) -> list[Mapping[str, Any]]:
        """The records in the order of batches; that of a first plan is never dropped."""
        return sorted([*self._starts.values(), *self._records], key=lambda record: record["batch"])

    def look(self) -> None:
        """Reads new batches and records."""
        status = self.run.status()
        found = [(each, point) for each in self.run.progress_after(self.batch) if (point := BatchPoint.of(each))]
        quiet = self._quiet(status, found[-1][1] if found else self.point)
        if not found and (status, quiet) == (self.status, self.quiet):
            return
        with self._lock:
            self.status, self.quiet = status, quiet
            for progress, point in found:
                self._count(progress, point)
                self.point = point
                self.recent.append((point.end, progress))
                # For a run seen from its start, the history already contains these records.
                if records := progress["adaptive"]["records"]:
                    known = {json.dumps(record, sort_keys=True) for record in self.records[-50:]}
                    self._keep(each for each in records if json.dumps(each, sort_keys=True) not in known)
            self.curve.add(point for _, point in found)
            while self.point is not None and self.recent[0][0] < self.point.end - MINUTE:
                self.recent.popleft()
            self.version += 1
            self._texts.clear()
            waiting = list(self._waiting)
        for wake in waiting:
            wake()

    def _quiet(self, status: str, latest: BatchPoint | None) -> str:
        if status != "running" or latest is None or self._now() - latest.end < MINUTE:
            return ""
        return "idle" if self.run.is_idle() else "busy"

    def _keep(self, records: Iterable[Mapping[str, Any]]) -> None:
        for record in records:
            if record["kind"] == "start":
                self._starts[record.get("query", "")] = record
            else:
                self._records.append(record)

    def minute(self) -> tuple[list[Mapping[str, Any]], float]:
        """Returns the progress of the batches of the last minute, and the length of that minute in seconds."""
        with self._lock:
            minute = self.curve.minute
            return [progress for _, progress in self.recent], 0.0 if minute is None else minute.seconds

    def on_news(self, wake: Callable[[], object]) -> Callable[[], None]:
        """Calls a function on every update until the returned function is called."""
        with self._lock:
            self._waiting.append(wake)

        def end() -> None:
            with self._lock:
                self._waiting.remove(wake)

        return end

    def _count(self, progress: Mapping[str, Any], point: BatchPoint) -> None:
        totals, ours = self.totals, progress["adaptive"]
        totals.batches += 1
        totals.trigger_seconds += point.trigger
        totals.own_seconds += point.own
        totals.rows_in.update(point.rows_in)
        totals.late.update(point.late)
        totals.undated.update(point.undated)
        totals.shed.update(point.shed)
        totals.rows_out.update({name or self.run.title: rows for name, rows in point.rows_by_query.items()})
        for slot in point.slots:
            totals.slot_cpu[slot.slot] += slot.cpu  # type: ignore[assignment]
        for probe in ours["statistics"]["probes"]:
            operator = probe["join"], probe["origin"], probe["target"]
            totals.probes[operator] += probe["probes"]
            totals.kept[operator] += probe["kept"]
        for record in ours["records"]:
            if record["kind"] == "decision":
                totals.decisions[record["action"]] += 1
            totals.migrations += record["kind"] == "migration" and record["phase"] == "began"
            totals.moves += record["kind"] == "move"
            if record["kind"] in BOUNDS:
                totals.overloads[BOUNDS[record["kind"]]] += 1

    def news(self, batch: int) -> News:
        """Returns the status, the figures and what is new after a batch, as JSON; cached for viewers at one batch."""
        with self._lock:
            if batch not in self._texts:
                minute, totals = self.curve.minute, self.totals
                value = {
                    "id": self.run.id,
                    "status": self.status,
                    "quiet": self.quiet,
                    "figures": None if minute is None else minute.to_json(totals.late, totals.rows_out),
                    "samples": [sample.to_json() for sample in self.curve.samples if sample.batch > batch],
                    "records": [record for record in self.records if record["batch"] >= batch],
                }
                self._texts[batch] = json.dumps(value)
            return News(self.version, self.batch, self._texts[batch])


class Watch:
    """All runs of a console; `close` ends its thread."""

    def __init__(self, runs: Callable[[], Iterable[Run]], now: Callable[[], float] = wall_clock) -> None:
        self._runs = runs
        self._now = now
        self._watched: dict[str, WatchedRun] = {}
        self._is_over = Event()
        self.look()
        self._thread = Thread(target=self._work, name="anabranch-console-watch", daemon=True)
        self._thread.start()

    @property
    def runs(self) -> list[WatchedRun]:
        return list(self._watched.values())

    def find(self, run_id: str) -> WatchedRun | None:
        return self._watched.get(run_id)

    def look(self) -> None:
        """Polls every run once; an unreadable run keeps its last state."""
        for run in self._runs():
            try:
                if run.id in self._watched:
                    self._watched[run.id].look()
                else:
                    self._watched[run.id] = WatchedRun(run, self._now)
            except Exception as error:  # Spark may be stopping, or have stopped
                _log.debug("the console cannot read run %s: %s", run.id, error)

    def _work(self) -> None:
        while not self._is_over.wait(POLL_SECONDS):
            self.look()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(timeout=5)
