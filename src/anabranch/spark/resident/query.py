"""A real-time run with the members of Spark's StreamingQuery, for the handle.

Progress has Spark's keys. Its JSON is built only on request, because a run may have hundreds of batches a second.
Limit: the latest thousand batches.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from anabranch.errors import AnabranchError, HostError
from anabranch.run.round import Taken

REMEMBERED = 1000


@dataclass(frozen=True)
class Trigger:
    """The progress of one batch."""

    query: ResidentQuery
    batchId: int
    began: float
    """Seconds since the Unix epoch."""
    seconds: float
    parts: Mapping[str, float]
    rows: Mapping[str, int]
    rows_out: int
    shown: Mapping[str, Mapping[str, Any]]
    """What sources say of themselves, by stream."""

    @property
    def numInputRows(self) -> int:
        return sum(self.rows.values())

    @property
    def json(self) -> str:
        return json.dumps(self._value())

    def _value(self) -> dict[str, Any]:
        query, spent = self.query, {name: round(1000 * each) for name, each in self.parts.items()}
        when = datetime.fromtimestamp(self.began, UTC).isoformat(timespec="milliseconds")
        return {
            "id": query.id,
            "runId": query.runId,
            "name": query.name,
            "timestamp": when.replace("+00:00", "Z"),
            "batchId": self.batchId,
            "batchDuration": round(1000 * self.seconds),
            **self._rates(self.numInputRows),
            "durationMs": {
                "addBatch": spent.get("step", 0),
                "queryPlanning": spent.get("plan", 0),
                "walCommit": spent.get("commit", 0),
                "triggerExecution": round(1000 * self.seconds, 1),
            },
            "stateOperators": [],
            "sources": [
                {"description": f"stream '{name}'", **self.shown.get(name, {}), **self._rates(rows)}
                for name, rows in self.rows.items()
            ],
            "sink": {"description": query.title, "numOutputRows": self.rows_out},
        }

    def _rates(self, rows: int) -> dict[str, Any]:
        return {"numInputRows": rows, "processedRowsPerSecond": rows / max(self.seconds, 1e-6)}


class ResidentQuery:
    """The thread of a run and its state; the thread runs `work`, which takes all batches until the run ends."""

    def __init__(self, id: str, run_id: str, name: str | None, title: str) -> None:
        self.id, self.runId, self.name, self.title = id, run_id, name, title
        self._triggers: deque[Trigger] = deque(maxlen=REMEMBERED)
        self._changed = threading.Condition()
        self._is_over, self._is_stopping, self._is_busy = False, False, False
        self._polls = 0
        """The number of polls of the sources that have begun."""
        self._wanted = 0
        """The poll that `processAllAvailable` waits for."""
        self._done = 0
        """The last poll that found nothing."""
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    # --- called by the run --------------------------------------------------------------------------------------------

    def start(self, work: Callable[[], None]) -> None:
        """Starts the thread."""

        def run() -> None:
            failure: BaseException | None = None
            try:
                work()
            except BaseException as error:
                failure = error
            with self._changed:
                self._failure, self._is_over, self._is_busy = failure, True, False
                self._changed.notify_all()

        self._thread = threading.Thread(target=run, name=f"anabranch-{self.name or self.id[:8]}", daemon=True)
        self._thread.start()

    @property
    def is_stopping(self) -> bool:
        """True once no further batch may begin."""
        return self._is_stopping

    def begin_poll(self) -> tuple[int, bool]:
        """Records that a poll of the sources begins; returns its number, and whether a caller waits for it."""
        with self._changed:
            self._polls += 1
            return self._polls, self._wanted >= self._polls

    def found(self, poll: int, is_any: bool) -> None:
        """Records whether a poll found anything."""
        with self._changed:
            self._is_busy = is_any
            if not is_any:
                self._done = poll
                self._changed.notify_all()

    def rest(self, seconds: float) -> None:
        """Waits until the next poll; returns early if a caller waits for that poll or the run is stopping."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping or self._wanted > self._polls, seconds)

    def took(
        self,
        taken: Taken,
        began: float,
        seconds: float,
        rows: Mapping[str, int],
        rows_out: int,
        shown: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Adds the progress of a batch."""
        self._triggers.append(Trigger(self, taken.task.batch, began, seconds, taken.seconds, rows, rows_out, shown))

    # --- called by the handle -----------------------------------------------------------------------------------------

    @property
    def isActive(self) -> bool:
        return not self._is_over

    @property
    def status(self) -> dict[str, Any]:
        message = (
            "Stopped" if self._is_over else "Processing new data" if self._is_busy else "Waiting for data to arrive"
        )
        return {"message": message, "isDataAvailable": self._is_busy, "isTriggerActive": self._is_busy}

    @property
    def lastProgress(self) -> Trigger | None:
        return self._triggers[-1] if self._triggers else None

    @property
    def recentProgress(self) -> list[Trigger]:
        return list(self._triggers)

    def newest(self) -> Iterator[tuple[int, Callable[[], str]]]:
        """Yields the numbers of recent batches, newest first, and functions that return their JSON."""
        for each in reversed(self.recentProgress):
            yield each.batchId, lambda each=each: each.json  # type: ignore[misc]

    def exception(self) -> AnabranchError | None:
        failure = self._failure
        if failure is None or isinstance(failure, AnabranchError):
            return failure
        named = HostError(
            "the query was ended by an error",
            detail=f"{type(failure).__name__}: {failure}".partition("\n")[0],
            hint="the checkpoint stays good for a restart",
        )
        named.__cause__ = failure
        return named

    def explain(self, extended: bool = False) -> None:
        """Prints nothing: Spark has no plan, because slots read the files."""

    def processAllAvailable(self) -> None:
        with self._changed:
            self._wanted = max(self._wanted, self._polls + 1)
            target = self._polls + 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_over or self._done >= target)
        self._raise()

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, timeout)
        self._raise()
        return None if timeout is None else self._is_over

    def end(self) -> None:
        """Prevents further batches."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def leave(self) -> None:
        """Waits for the current batch; prevents further batches."""
        self.end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def stop(self) -> None:
        self.leave()

    def _raise(self) -> None:
        if (error := self.exception()) is not None:
            raise error


def now() -> float:
    """Returns the time of day in seconds."""
    return time.time_ns() / 1e9
