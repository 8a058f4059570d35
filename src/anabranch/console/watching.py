"""The console's view of its runs: one thread polls them, and all viewers read the result.

Polling is shared, so the load on a query does not depend on the number of viewers. The thread polls every two seconds,
requests only new batches from Spark, and notifies viewers if there are any.

Limit: the latest thousand batches and two thousand records of each run; the history file has all records.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import Any, NamedTuple

from anabranch.console.points import BatchPoint
from anabranch.console.runs import Run

POLL_SECONDS = 2.0
MOST_POINTS = 1000
MOST_RECORDS = 2000
_log = logging.getLogger(__name__)


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
    slot_cpu: Counter[int] = field(default_factory=Counter)
    probes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Rows looked up, by join, origin and target."""
    kept: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    decisions: Counter[str] = field(default_factory=Counter)
    """By action."""
    migrations: int = 0
    moves: int = 0


class News(NamedTuple):
    """An update for a viewer and its end position, all from one moment, so that no batch is skipped."""

    version: int
    batch: int
    text: str


class WatchedRun:
    """One run with the batches and records seen so far."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.points: deque[BatchPoint] = deque(maxlen=MOST_POINTS)
        self.records: deque[Mapping[str, Any]] = deque(maxlen=MOST_RECORDS)
        self.totals = Totals()
        self.latest: Mapping[str, Any] | None = None
        """The progress of the latest batch."""
        self.status = run.status()
        self.version = 0
        self._lock = Lock()
        self._texts: dict[int, str] = {}
        self._waiting: list[Callable[[], object]] = []
        for record in run.records():
            self.records.append(record)
        self.look()

    @property
    def batch(self) -> int:
        return self.points[-1].batch if self.points else -1

    def look(self) -> None:
        """Reads new batches and records."""
        status = self.run.status()
        found = [(each, point) for each in self.run.progress_after(self.batch) if (point := BatchPoint.of(each))]
        if not found and status == self.status:
            return
        with self._lock:
            self.status = status
            for progress, point in found:
                self._count(progress, point)
                self.points.append(point)
                self.latest = progress
                # For a run seen from its start, the history already contains these records.
                if records := progress["adaptive"]["records"]:
                    known = {json.dumps(record, sort_keys=True) for record in list(self.records)[-50:]}
                    self.records += [each for each in records if json.dumps(each, sort_keys=True) not in known]
            self.version += 1
            self._texts.clear()
            waiting = list(self._waiting)
        for wake in waiting:
            wake()

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
        totals.rows_out.update(
            {name: each["out"] for name, each in point.queries.items()} or {self.run.title: point.rows_out}
        )
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

    def news(self, batch: int) -> News:
        """Returns the status, records and points after a batch, as JSON; cached for viewers at the same batch."""
        with self._lock:
            if batch not in self._texts:
                points = [point.to_json() for point in self.points if point.batch > batch]
                value = {
                    "id": self.run.id,
                    "status": self.status,
                    "points": points,
                    "records": list(self.records) if batch < 0 else [r for r in self.records if r["batch"] >= batch],
                }
                self._texts[batch] = json.dumps(value)
            return News(self.version, self.batch, self._texts[batch])


class Watch:
    """All runs of a console; `close` ends its thread."""

    def __init__(self, runs: Callable[[], Iterable[Run]]) -> None:
        self._runs = runs
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
                    self._watched[run.id] = WatchedRun(run)
            except Exception as error:  # Spark may be stopping, or have stopped
                _log.debug("the console cannot read run %s: %s", run.id, error)

    def _work(self) -> None:
        while not self._is_over.wait(POLL_SECONDS):
            self.look()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(timeout=5)
