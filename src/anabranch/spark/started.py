"""The queries that a session started, with the interface of PySpark's StreamingQueryManager.

Limit: only queries of this process.
"""

from __future__ import annotations

import time

from pyspark.sql import SparkSession

from anabranch.spark.handle import QueryHandle

_LOOK_SECONDS = 0.05
"""The seconds between two checks of the queries."""


class ContinuousQueries:
    """All started queries, until `resetTerminated` removes those that have ended."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._handles: list[QueryHandle] = []

    @property
    def active(self) -> list[QueryHandle]:
        """The running queries, in the order in which they were started."""
        return [handle for handle in self._handles if handle.isActive]

    @property
    def started(self) -> list[QueryHandle]:
        """The started queries, including those that have ended, until `resetTerminated`."""
        return list(self._handles)

    def add(self, handle: QueryHandle) -> None:
        self._handles.append(handle)

    def get(self, id: str) -> QueryHandle | None:
        """Returns the running query of that identity, or None."""
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
        """Removes ended queries, so that `awaitAnyTermination` waits for the next one."""
        self._spark.streams.resetTerminated()
        self._handles = self.active
