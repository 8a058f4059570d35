"""The Spark host for drawn schedules: each batch is a static frame, so hundreds of schedules share one session.

The driver's side (`spark/runner`), the readers, the exchange, the workers with their hot state and the delivery are
those of every run. Limit: Spark's own offset log takes no part; `spark/test_crash` kills drivers with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from anabranch.lang.schema import Schema
from anabranch.plan.execution import ExecutionModel
from anabranch.plan.mesh import Plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query_set import Plans, QuerySet, as_plans
from anabranch.plan.slots import SlotRange
from anabranch.run import hot
from anabranch.run.manifest import Manifest
from anabranch.run.round import Announce, EventTimeRules
from anabranch.run.side_output import SideOutputLayout
from anabranch.run.work import Work
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.late import LateRows
from anabranch.spark.runner import SparkRunner
from anabranch.spark.running import RunOptions
from anabranch.spark.sinks.sink import Batch, Sink
from anabranch.spark.tables import TableSource
from tests.support.strategies import COLUMNS

Receive = Callable[[int, Mapping[str, pa.Table]], None]


class _Collected(Sink):
    """Hands the results of a query to the schedule."""

    is_lasting = False

    def __init__(self, name: str, host: SparkHost) -> None:
        self._name, self._host = name, host

    @property
    def title(self) -> str:
        return f"of '{self._name}'"

    def write(self, frame: DataFrame, batch: Batch) -> None:
        self._host.receive(batch.number, {self._name: frame.toArrow()})


class _Diverted(Sink):
    """Keeps the rows that a batch diverted."""

    is_lasting = False

    def __init__(self, host: SparkHost) -> None:
        self._host = host

    @property
    def title(self) -> str:
        return "of late rows"

    def write(self, frame: DataFrame, batch: Batch) -> None:
        self._host.diverted_rows = frame.toArrow()


class SparkHost:
    """A run on Spark with the interface of the in-process host."""

    def __init__(
        self,
        session: SparkSession,
        queries: QuerySet,
        plan: Plan | Plans,
        *,
        slots: int,
        checkpoint: str,
        execution: ExecutionModel,
        tables: Mapping[str, pa.Table],
        event_time: EventTimeRules,
        diverted: SideOutputLayout | None,
        announce: Announce,
    ) -> None:
        self.session = session
        self.receive: Receive
        self.diverted_rows: pa.Table | None = None
        self._tables = dict(tables)
        self._versions = dict.fromkeys(tables, 0)
        self._late = None if diverted is None else LateRows(_Diverted(self), diverted)
        sources = {
            name: TableSource(
                partial(self._frame, name),
                Schema.from_arrow(rows.schema),
                version=partial(self._version, name),
            )
            for name, rows in tables.items()
        }
        options = RunOptions(
            {"processingTime": "0 seconds"},
            event_time=event_time,
            late=self._late,
            tables=sources,
            announce=announce,
        )
        work = Work(queries, as_plans(plan), SlotRange.fixed(slots), execution=execution)
        sinks = {member.name: _Collected(member.name, self) for member in queries.delivered}
        self.runner = SparkRunner(work, sinks, checkpoint, options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def _arrived(self, stream: str, rows: pa.Table) -> DataFrame:
        """The frame of new rows; a file, because Spark runs no task where it knows that there are no rows."""
        path = f"{self.runner.store.location}/arrived-{stream}-{self.batch}.parquet"
        pq.write_table(rows, path)
        return self.session.read.schema(to_spark(Schema.from_arrow(rows.schema))).parquet(path)

    def _frame(self, table: str) -> DataFrame:
        return self.session.createDataFrame(self._tables[table])

    def _version(self, table: str) -> int:
        return self._versions[table]

    @property
    def batch(self) -> int:
        return self.runner.round.batch

    @property
    def partitioning(self) -> Partitioning:
        return self.runner.steering.table.table

    @property
    def manifest(self) -> Manifest | None:
        return self.runner.manifest

    @property
    def history(self) -> list[dict[str, Any]]:
        return self.runner.history()

    def step(self, rows: Mapping[str, pa.Table], receive: Receive) -> None:
        """Takes one batch."""
        self.receive, self.diverted_rows = receive, None
        frames = {name: self._arrived(name, rows.get(name, COLUMNS.empty_table())) for name in self.queries.streams}
        frame, _ = self.runner.streams(frames)
        try:
            self.runner.on_batch(frame, self.batch)
        except BaseException:
            if self.runner.failure is not None:
                raise self.runner.failure from None
            raise

    def change_table(self, name: str, rows: pa.Table) -> None:
        self._tables[name] = rows
        self._versions[name] += 1

    def lose(self, slot: int) -> None:
        """Forgets the hot state of the machine."""
        hot.forget(self.runner.identity)

    def leave(self) -> None:
        """Ends the run in this process: its checkpoint is left as it is."""
        self.runner.release(is_followed=True)
