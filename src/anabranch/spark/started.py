"""The queries that a session started, in the manner of PySpark's StreamingQueryManager."""

from __future__ import annotations

import time

from pyspark.sql import SparkSession

from anabranch.spark.handle import QueryHandle

_LOOK_SECONDS = 0.05
"""Between two looks at the queries."""


class ContinuousQueries:
    """All of them, until those that have ended are forgotten."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._handles: list[QueryHandle] = []

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
            for handle in self._handles:
                if not handle.isActive:
                    if (error := handle.exception()) is not None:
                        raise error
                    return None if timeout is None else True
            if end is not None and time.perf_counter() >= end:
                return False
            time.sleep(_LOOK_SECONDS)

    def resetTerminated(self) -> None:
        """Forgets the queries that have ended, so that `awaitAnyTermination` waits for the next one."""
        self._spark.streams.resetTerminated()
        self._handles = self.active
