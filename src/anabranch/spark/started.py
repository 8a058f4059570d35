"""The queries that a session started, in the manner of PySpark's StreamingQueryManager."""

from __future__ import annotations

import time

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from anabranch.spark.handle import QueryHandle


class ContinuousQueries:
    """All of them, until those that have ended are forgotten."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._handles: list[QueryHandle] = []
        self._changes = 0
        """Changes of runs that have been taken in."""

    @property
    def active(self) -> list[QueryHandle]:
        """The queries that run, in the order they were started."""
        return [handle for handle in self._handles if handle.isActive]

    @property
    def started(self) -> list[QueryHandle]:
        """The queries that were started, also those that have ended, until `resetTerminated`."""
        return list(self._handles)

    def add(self, handle: QueryHandle) -> None:
        self._handles.append(handle)

    def get(self, id: str) -> QueryHandle | None:
        """The running query of that identity, or None."""
        return next((handle for handle in self.active if handle.id == id), None)

    def awaitAnyTermination(self, timeout: float | None = None) -> bool | None:
        """Waits until a query ends and raises its error; with a timeout in seconds, returns whether one ended."""
        end = None if timeout is None else time.perf_counter() + timeout
        while True:
            try:
                if end is None:
                    self._spark.streams.awaitAnyTermination()
                    ended = None
                else:
                    left = max(0.001, end - time.perf_counter())
                    ended = self._spark.streams.awaitAnyTermination(left)  # type: ignore[arg-type]
            except StreamingQueryException as outer:
                if self._has_changed():
                    continue
                for handle in self._handles:
                    if handle.runId in str(outer):
                        handle.raise_original(outer)
                raise
            if ended is False or not self._has_changed():
                return ended

    def _has_changed(self) -> bool:
        """Whether Spark's end of a query was that of one that another has followed, and none has ended for good."""
        changes = sum(handle.changes for handle in self._handles)
        is_explained = changes > self._changes and all(handle.isActive for handle in self._handles)
        self._changes = changes
        if is_explained:
            self._spark.streams.resetTerminated()
        return is_explained

    def resetTerminated(self) -> None:
        """Forgets the queries that have ended, so that `awaitAnyTermination` waits for the next one."""
        self._spark.streams.resetTerminated()
        self._handles = self.active
