"""Runs an operator as a streaming query of the site's Spark application, with its own checkpoint.

Invariant: a restarted operator repeats an unfinished batch with the same offsets. Limit: Spark cannot stop a query that
waits for an unresponsive source process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from anabranch.adapt.settings import Settings
from anabranch.plan.query_set import ALONE, Plans, alone
from anabranch.plan.slots import ONE_SLOT
from anabranch.planning.choosing import change_rules, decide, first_plan
from anabranch.planning.options import AUTO
from anabranch.run.links.outlet import Outlet
from anabranch.run.work import Work
from anabranch.settings.secrets import from_environment, without_secrets
from anabranch.sites.operators import DELIVERY, GATE, OperatorSpec
from anabranch.sites.root import InletsOf, Orders, ReadersOf, Root, control_inlets
from anabranch.sites.tally import FIRST_PAUSE, LONGEST_PAUSE, Announce, Tally
from anabranch.spark.handle import QueryHandle
from anabranch.spark.linked import LinkInputs, link_frame
from anabranch.spark.runner import SparkRunner, start_query
from anabranch.spark.running import RunOptions
from anabranch.spark.session import SparkSession
from anabranch.spark.sinks.links import LinkSink
from anabranch.spark.sinks.make import make_sink
from anabranch.spark.sinks.sink import Sink
from anabranch.spark.spark_rows import LINKS
from anabranch.spark.tables import TableSource
from anabranch.spec.launch import read, read_table
from anabranch.spec.model import StreamSpec, TableSpec

STARTING = 10.0
"""The seconds that an operator counts as starting.

Each start needs several new Python processes, and Spark gives each of them ten seconds to respond.
"""
STUCK = 180.0
"""Seconds without progress after which a newly started operator is considered stuck."""


class SparkOperator:
    """A streaming query, or one that waits to be restarted."""

    def __init__(
        self,
        root: Root,
        spec: OperatorSpec,
        checkpoint: str,
        session: Callable[[], SparkSession],
        announce: Announce,
    ) -> None:
        self.spec, self.checkpoint = spec, checkpoint
        self._root, self._session, self._announce = root, session, announce
        self._tally = Tally()
        self._handle: QueryHandle | None = None
        self.runner: SparkRunner | None = None
        self._outlet: Outlet | None = None
        self._error: str | None = None
        self._pause = FIRST_PAUSE
        self._again = 0.0
        self._started = 0.0
        self._version = self._asked = self._batch = self._counted = -1

    # --- work ---------------------------------------------------------------------------------------------------------

    def follow(self, orders: Orders, may_start: bool) -> None:
        """Starts the query, or starts it again some time after it has failed."""
        handle = self._handle
        if handle is not None and not handle.isActive:
            self.failed(handle.exception())
        if self._handle is None and may_start and time.monotonic() >= self._again:
            try:
                self._start(orders)
            except Exception as error:
                self.failed(error)
        self.note(orders.wanted.version)

    def stop(self) -> None:
        """Ends the query after its batch; does nothing if Spark cannot stop it."""
        if self._handle is not None and not self.is_stuck:
            self._handle.stop()
        self._handle = self.runner = None

    def failed(self, error: BaseException | None) -> None:
        """Records an error, and the time of the next start."""
        self.stop()
        reason = str(error).partition("\n\nJVM")[0][:2000] if error is not None else "it ended by itself"
        self._error = without_secrets(reason)
        self._again = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _start(self, orders: Orders) -> None:
        spec, spark = self.spec, self._session()
        choice = decide(spec.query, AUTO)
        adapt = Settings() if len(spec.query.graph.names) > 2 else None
        rules = change_rules(spec.query, AUTO, choice, adapt=adapt)
        work = Work(alone(spec.query), Plans({ALONE: first_plan(choice)}), ONE_SLOT, {ALONE: rules})
        options = RunOptions(
            {"processingTime": f"{round(1000 * orders.interval)} milliseconds"},
            announce=partial(self._announce, spec.name),
            tables={name: _table(orders.sources[name.lower()], spark) for name in spec.query.whole.tables},
        )
        sinks = {ALONE: self._sink(orders, spark)}
        query, runner = start_query(spark, self._frames(orders, spark), work, sinks, self.checkpoint, options)
        self._handle, self.runner = QueryHandle(query, runner), runner
        self._started = time.monotonic()

    def _sink(self, orders: Orders, spark: SparkSession) -> Sink:
        spec = self.spec
        if spec.kind != DELIVERY:
            self._outlet = Outlet(orders.place, ReadersOf(self._root, spec.name), orders.limit)
            return LinkSink(spec.name, self._outlet)
        into = orders.sinks[spec.serves]
        return make_sink(
            into.format,
            from_environment(into.options),
            spark=spark,
            schema=spec.query.schema,
            name=spec.serves,
            path=into.path,
            partition_by=into.partition_by,
        )

    def _frames(self, orders: Orders, spark: SparkSession) -> dict[str, Any]:
        spec = self.spec
        if spec.kind != GATE:
            inputs = LinkInputs(spec.name, orders.place, InletsOf(self._root.location, spec.name))
            return {LINKS: link_frame(spark, inputs)}
        source = orders.sources[spec.serves]
        frames = {spec.query.graph.relations[0].stream: read(source, spark)}
        if source.idle_timeout not in (None, "none"):
            control = LinkInputs(spec.name, orders.place, partial(control_inlets, spec))
            frames[LINKS] = link_frame(spark, control)
        return frames

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def batch(self) -> int:
        return self.runner.manifest.batch if self.runner is not None and self.runner.manifest is not None else -1

    def note(self, version: int) -> None:
        """Records the version of the wiring that all future batches use.

        A batch that runs now may have read the old wiring. It has ended when no trigger is active, or when the batch
        after the last one has been committed.
        """
        if version > self._asked:
            self._asked, self._batch = version, self.batch
        if self._version < self._asked and (not self._is_busy() or self.batch > self._batch):
            self._version = self._asked

    @property
    def is_stuck(self) -> bool:
        """True if Spark has not completed its first trigger for a long time: it waits for a process that is gone."""
        return self._is_new and time.monotonic() - self._started > STUCK

    @property
    def is_starting(self) -> bool:
        """True if it was just started and Spark has not completed its first trigger."""
        return self._is_new and time.monotonic() - self._started < STARTING

    @property
    def _is_new(self) -> bool:
        return self._handle is not None and self._handle.isActive and self._handle.lastProgress is None

    def _is_busy(self) -> bool:
        return self._handle is not None and self._handle.isActive and bool(self._handle.status["isTriggerActive"])

    def _is_silent(self) -> bool:
        """Returns True if its last trigger found no data; a long batch or a slow start is not silence."""
        status = self._handle.status if self._handle is not None and self._handle.isActive else None
        return status is not None and not status["isDataAvailable"] and status["message"] != "Initializing sources"

    def count(self) -> None:
        """Adds the batches since the last call."""
        if self.runner is None:
            return
        # A batch is committed before its progress is available; rows and event time are counted for the same batches.
        latest = self.runner.latest_batch
        for batch in range(self._counted + 1, latest + 1):
            progress = self.runner.progress(batch)
            if progress is not None:
                newest = max(progress.newest.values(), default=None)
                rows, late = sum(progress.rows_in.values()), sum(progress.late_rows.values())
                self._tally.add(rows, late, progress.watermark, newest)
        if self._tally.heard is None or not self._is_silent():
            self._tally.hear()
        if latest > self._counted or self._is_silent():
            # An error is reported until a trigger has succeeded.
            self._error, self._pause = None, FIRST_PAUSE
        self._counted = max(self._counted, latest)

    def report(self) -> dict[str, Any]:
        self.count()
        clocks = self.runner.manifest.clocks if self.runner is not None and self.runner.manifest is not None else None
        latest = self.runner.progress(self.batch) if self.runner is not None else None
        return {
            "runner": "spark",
            "kind": self.spec.kind,
            "serves": self.spec.serves,
            "active": self._handle is not None and self._handle.isActive,
            "batch": self.batch,
            "version": self._version,
            "newest": None if clocks is None else clocks.newest,
            "watermark": None if clocks is None else clocks.known_watermark,
            "plan": None if self.runner is None else str(self.runner.plan),
            "rows_in": None if latest is None else sum(latest.rows_in.values()),
            "rows_out": None if latest is None else latest.rows_out,
            "state_bytes": None if latest is None else latest.statistics.state_bytes,
            "refused": sorted(self._outlet.refused) if self._outlet is not None else [],
            "error": self._error,
            **self._tally.to_json(),
        }


def _table(source: StreamSpec, spark: SparkSession) -> TableSource:
    """Returns a table, which is read when its operator starts."""
    table = TableSpec(
        source.name, source.format, source.path, None, source.schema, source.schema_text, options=source.options
    )
    assert source.schema is not None, "the network file has its columns"
    return TableSource(partial(read_table, table, spark), source.schema)
