"""A driver of Spark in a process of its own, which obeys a parent and is killed by SIGKILL at a phase of a batch.

    python driver_process.py <file descriptor of the connection>

Streams are files that Spark's streaming query reads, with its own log of offsets; results and late rows are files of
the usual sinks. A request is a method of `Driver` and its arguments; the answer is its value or its error. The driver
outlives a host that leaves, so that the next one need not start Java again.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.lang.schema import Schema
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query_set import ALONE, Plans, QuerySet
from anabranch.plan.slots import SlotRange
from anabranch.run import commit, hot
from anabranch.run.manifest import Manifest
from anabranch.run.side_output import SideOutputLayout
from anabranch.run.work import Work
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.internals.patches.local_files import replace_local_files
from anabranch.spark.late import LateRows
from anabranch.spark.offsets import sparks_folder
from anabranch.spark.runner import SparkRunner
from anabranch.spark.running import RunOptions
from anabranch.spark.session import local_session
from anabranch.spark.sinks.make import make_sink
from anabranch.spark.sinks.sink import Sink
from anabranch.spark.tables import TableSource
from tests.spark.stories import FEEDS, STREAM, feed
from tests.support.faults import die
from tests.support.strategies import COLUMNS

LATE = "late"
RESULTS = "results"


@dataclass(frozen=True)
class State:
    """What a host shows of itself between two batches."""

    batch: int
    partitioning: Partitioning
    queries: QuerySet
    manifest: Manifest | None
    plans: Plans
    """Those of most slots."""


class Driver:
    """The driver's side of a host; `start` and `leave` enclose a run of a checkpoint."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.runner: SparkRunner | None = None
        self.running: StreamingQuery | None = None
        self.folder = Path()
        self.tables: dict[str, pa.Table] = {}
        self.versions: dict[str, int] = {}
        self.dies_at: str | None = None

    def start(
        self,
        folder: str,
        few: int,
        queries: QuerySet,
        plans: Plans,
        *,
        slots: int,
        checkpoint: str,
        execution: Any,
        tables: Mapping[str, pa.Table],
        event_time: Any,
        diverted: SideOutputLayout | None,
    ) -> State:
        """Opens the checkpoint; Spark's query starts with the first batch."""
        if self.runner is not None:
            self.leave()  # the schedule before ended in an error
        self.folder, self.tables, self.versions = Path(folder), dict(tables), dict.fromkeys(tables, 0)
        setattr(commit, "COMPACT_FILES_ALWAYS", few)  # noqa: B010
        sources = {
            name: TableSource(
                partial(self._frame, name), Schema.from_arrow(rows.schema), version=partial(self.versions.get, name)
            )
            for name, rows in tables.items()
        }
        late = None if diverted is None else LateRows(self._sink(LATE, Schema.from_arrow(diverted.schema)), diverted)
        options = RunOptions(
            {"processingTime": "0 seconds"}, event_time=event_time, late=late, tables=sources, announce=self._announce
        )
        work = Work(queries, plans, SlotRange.fixed(slots), execution=execution)
        sinks = {
            member.name: self._sink(f"{RESULTS}-{member.name or ALONE}", member.query.schema)
            for member in queries.delivered
        }
        self.runner = SparkRunner(work, sinks, checkpoint, options)
        self.runner.claim()
        return self.look()

    def look(self) -> State:
        runner = self._runner
        table = runner.steering.table.table
        return State(runner.round.batch, table, runner.queries, runner.manifest, runner.steering.most_plans)

    def call(self, method: str, *arguments: Any, **keywords: Any) -> State:
        """Calls a method of the runner."""
        getattr(self._runner, method)(*arguments, **keywords)
        return self.look()

    def change_table(self, name: str, rows: pa.Table) -> State:
        self.tables[name] = rows
        self.versions[name] += 1
        return self.look()

    def lose(self) -> State:
        """Forgets the hot state of the machine."""
        hot.forget(self._runner.identity)
        return self.look()

    def step(self, rows: Mapping[str, pa.Table], dies_at: str | None) -> State:
        """Feeds the rows, unless an earlier attempt did, and waits for the batch."""
        runner = self._runner
        self.dies_at = dies_at
        feeds = self.folder / FEEDS
        feeds.mkdir(parents=True, exist_ok=True)
        if len([*feeds.glob("*.parquet")]) <= runner.round.batch:
            feed(self.folder, rows)
        try:
            if self.running is None:
                self.running = self._started()
            self.running.processAllAvailable()
        except Exception:
            if runner.failure is not None:
                raise runner.failure from None
            raise
        self.dies_at = None
        return self.look()

    def leave(self) -> None:
        """Ends the run; its checkpoint is left as it is."""
        runner, running = self._runner, self.running
        self.runner = self.running = None
        if running is not None:
            runner.leave()
            running.stop()
        runner.release()

    @property
    def _runner(self) -> SparkRunner:
        assert self.runner is not None
        return self.runner

    def _started(self) -> StreamingQuery:
        """Starts Spark's query as `start_query` does; between its two parts the parent may ask for changes."""
        runner = self._runner
        schema = to_spark(Schema.from_arrow(COLUMNS)).add(STREAM, "string")
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        # Slots do not know the option, so that Spark reads: one file has the rows of all streams.
        source = reader.option("mergeSchema", "false").parquet(str(self.folder / FEEDS))
        frames = {name: source.where(source[STREAM] == name).drop(STREAM) for name in runner.queries.streams}
        union, streams = runner.streams(frames)
        writer = union.writeStream.foreachBatch(runner.on_batch).trigger(processingTime="0 seconds")
        runner.note_start()
        started = writer.option("checkpointLocation", sparks_folder(runner.store, streams)).start()
        runner.follow(started)
        runner.note_started(str(started.id))
        return started

    def _sink(self, name: str, schema: Schema) -> Sink:
        return make_sink("parquet", {"path": str(self.folder / name)}, spark=self.spark, schema=schema)

    def _frame(self, table: str) -> DataFrame:
        return self.spark.createDataFrame(self.tables[table])

    def _announce(self, phase: str, batch: int) -> None:
        if phase == self.dies_at:
            die()


def main(descriptor: int) -> None:
    parent = Connection(descriptor)
    spark = local_session(2)
    replace_local_files(spark)
    driver = Driver(spark)
    while True:
        try:
            method, arguments, keywords = pickle.loads(parent.recv_bytes())
        except EOFError:
            break
        try:
            answer = getattr(driver, method)(*arguments, **keywords)
        except BaseException as error:
            answer = error
        parent.send_bytes(cloudpickle.dumps(answer))  # type: ignore[no-untyped-call]
    die()


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main(int(sys.argv[1]))
