"""The outgoing links of an operator as a sink: workers write the rows of each reader, the driver publishes the batch.

The readers are looked up for every batch, so readers can be added and removed while the operator runs. The entries of a
batch are appended after all workers have written and before its manifest commits; a repeated batch finds them there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from anabranch.run.links.outlet import Outlet, Staged
from anabranch.spark.sinks.sink import Batch, Sink

FLUSHED_ROWS = 1 << 17
"""The approximate number of rows in each part that a worker writes."""
MOST_PARTS = 1_000
"""The maximum number of parts that one worker writes in a batch."""


class LinkSink(Sink):
    """The readers of one operator."""

    def __init__(self, name: str, outlet: Outlet) -> None:
        self._name = name
        self.outlet = outlet
        self._staged: Staged | None = None

    @property
    def title(self) -> str:
        return f"'links' of '{self._name}'"

    def stage(self, batch: Batch) -> StagedLinks:
        self._staged = self.outlet.stage(batch.number, batch.attempt)
        return StagedLinks(self._staged)

    def publish(self, batch: Batch) -> None:
        assert self._staged is not None
        self._staged.append(batch.answered_before)


@dataclass(frozen=True)
class StagedLinks:
    """The links of one attempt, for one worker."""

    staged: Staged

    @contextmanager
    def open(self, part: str) -> Iterator[OpenLinks]:
        context = TaskContext.get()
        assert context is not None
        results = OpenLinks(self.staged, context.partitionId())
        yield results
        results.flush()


class OpenLinks:
    """Results being written to the links; they remain invisible until the driver appends them."""

    def __init__(self, staged: Staged, partition: int) -> None:
        self._staged = staged
        self._number = partition * MOST_PARTS
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= FLUSHED_ROWS:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._staged.write(self._number, self._waiting)
            self._number += 1
            self._waiting, self._rows = [], 0
