"""The host of real-time mode: a batch is an order to the resident slots, and their answers.

Invariant: the files and the ranges of offsets of a batch are in its manifest. They are added to the list of read input
before the manifest is removed, so a restart reads each row once. Limit: the driver reads the footer of every file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from itertools import chain
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql import SparkSession

from anabranch.run.ingest import Reader
from anabranch.run.manifest import Manifest
from anabranch.run.results import ResultLayout
from anabranch.run.round import Arrivals
from anabranch.run.slot import SlotTask
from anabranch.spark.micro_batch import DriverSide, Pipeline, reports_of
from anabranch.spark.resident.messages import Answer, BatchOrder, SharedPickler, Turn, batches_of
from anabranch.spark.resident.slots import Slots
from anabranch.spark.sinks.delivery import deliver_tables
from anabranch.spark.sinks.sink import Batch
from anabranch.spark.sinks.workers import WorkerWriter
from anabranch.stats.report import SlotReports

Offsets: TypeAlias = Mapping[str, Collection[str]]
"""The input of a batch by stream, as in the manifest: the paths of files, or ranges of a log."""


class Part(Protocol):
    """The rows of one batch."""

    @property
    def offsets(self) -> Mapping[str, tuple[str, ...]]:
        """Their entry in the manifest."""

    def reader(self, slots: int) -> tuple[Reader, bool]:
        """Returns the reader of the slots, and whether every slot reads all rows and keeps its own."""


class Source(Protocol):
    """The source of the streams of a run: the driver polls it, and slots read."""

    @property
    def readings(self) -> object:
        """The part that all readers share; it is sent to the slots once."""

    def poll(self, *, is_thorough: bool = False) -> Offsets:
        """Returns the new input that no batch has taken; may be empty. A thorough poll uses no cached listing."""

    def part(self, offsets: Offsets) -> Part:
        """Returns the rows that a poll found; refuses input that slots cannot read."""

    def took(self, offsets: Offsets) -> None:
        """Records the input of a committed batch, of this run or an earlier one."""

    @property
    def read(self) -> Offsets:
        """Everything that has been read."""

    @property
    def shown(self) -> Mapping[str, Mapping[str, Any]]:
        """What progress says of the source of each stream."""


class ResidentHost(DriverSide):
    """All batches of a run, one after another."""

    def __init__(self, pipeline: Pipeline, session: SparkSession, source: Source, slots: Slots, query_id: str) -> None:
        super().__init__(pipeline, session)
        self._source, self._slots, self._query_id = source, slots, query_id
        self._found: Offsets = {}
        self._part: Part
        self._answers: Mapping[int, Answer] = {}
        self._pickler: tuple[Turn, SharedPickler] = ((0, 0), SharedPickler())

    def offer(self, found: Offsets) -> None:
        """Sets the input of the next batch, as found by a poll."""
        self._found = found

    def arrivals(self, batch: int) -> Arrivals:
        self._part = self._source.part(self._found)
        return Arrivals(self._pipeline.tables.in_force(batch), self._part.offsets)

    def run(self, task: SlotTask) -> SlotReports:
        self._batch = Batch(task.batch, self._query_id, task.attempt, task.answered_before)
        deliver_tables(self._pipeline.sinks, self._batch, partial(self._results, task))
        steps = {slot: answer.steps for slot, answer in self._answers.items()}
        merges = [report for answer in self._answers.values() for report in answer.merges]
        return reports_of(task, steps, merges)

    def collect(self, kept: tuple[Manifest, ...]) -> None:
        """Adds the input of the batch to the list, then removes files that no manifest needs."""
        self._pipeline.store.note_read(kept[0].batch, kept[0].pieces)
        self._source.took(kept[0].pieces)
        super().collect(kept)

    def _results(self, task: SlotTask, writers: Mapping[str, WorkerWriter]) -> Mapping[str, pa.Table]:
        """Runs all stages of the batch; returns the results that the slots have not written."""
        reader, is_direct = self._part.reader(len(task.partitioning.working))
        late = self._pipeline.late
        layout, keys = None if late is None else late.layout, self._pipeline.prefilter.keys(task.versions)
        order = BatchOrder(task, reader, is_direct, writers, layout, keys)
        same: dict[str, object] = {
            "queries": task.queries,
            "table": task.partitioning,
            "readings": self._source.readings,
        }
        same |= {"diverted": layout} if layout else {}
        same |= {"keys": keys} if keys else {}

        def content(turn: Turn) -> bytes:
            if turn != self._pickler[0]:
                self._pickler = turn, SharedPickler()
            return self._pickler[1].dumps(order, same)

        self._answers = self._slots.order(task.partitioning.working, content)
        found = ResultLayout(self._queries)
        batches = chain.from_iterable(batches_of(answer.results) for answer in self._answers.values())
        return found.split(pa.Table.from_batches(batches, found.schema.to_arrow()))
