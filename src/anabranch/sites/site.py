"""A site: one Spark application that runs the operators ordered by the controller.

It reads the controller's orders, starts and stops operators to match them, and reports. Each operator is a streaming
query with its own checkpoint. A failed operator is restarted with increasing delays, and the report has its error
meanwhile. If a site dies, its parent process restarts it, and it continues from the checkpoints with the same offsets
and the same link entries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from anabranch.adapt.settings import Settings
from anabranch.errors import SiteError
from anabranch.plan.query_set import ALONE, Plans, alone
from anabranch.plan.slots import ONE_SLOT
from anabranch.planning.choosing import AUTO, change_rules, decide, first_plan
from anabranch.run.links.directory import SCHEME, address
from anabranch.run.links.directory import announce as announce_address
from anabranch.run.links.feed import Inlet, Segment
from anabranch.run.links.flight import LinkServer
from anabranch.run.links.outlet import Outlet
from anabranch.run.private import make_private
from anabranch.run.work import Work
from anabranch.settings.secrets import from_environment, without_secrets
from anabranch.sites.controller import timeout_of
from anabranch.sites.operators import DELIVERY, GATE, OperatorSpec, control_link
from anabranch.sites.root import InletsOf, Orders, ReadersOf, Root, now
from anabranch.spark.handle import QueryHandle
from anabranch.spark.linked import LinkInputs, link_frame
from anabranch.spark.runner import SparkRunner, start_query
from anabranch.spark.running import RunOptions
from anabranch.spark.session import SparkSession
from anabranch.spark.sinks.links import LinkSink
from anabranch.spark.sinks.make import make_sink
from anabranch.spark.sinks.sink import Sink
from anabranch.spark.spark_rows import LINKS
from anabranch.spec.launch import read

POLL = 0.3
"""Seconds between two reads of the orders."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before a failed operator is restarted; each failure doubles them."""

MOST_STARTING, STARTING = 2, 10.0
"""The maximum number of operators that start at the same time, and the seconds that one counts as starting.

Each start needs several new Python processes, and Spark gives each of them ten seconds to respond.
"""
STUCK = 180.0
"""Seconds without progress after which a newly started operator is considered stuck."""
SITE_SETTINGS = {
    # On a busy machine a new Python process may need longer than the default 15 seconds to connect to its JVM; Spark
    # never calls a source again whose process has given up.
    "spark.python.authenticate.socketTimeout": "120s",
}
"""Spark settings for a site with many operators."""

Announce = Callable[[str, str, int], None]


class Running:
    """A running operator, or one that waits to be restarted."""

    def __init__(self, spec: OperatorSpec, checkpoint: str) -> None:
        self.spec = spec
        self.checkpoint = checkpoint
        self.handle: QueryHandle | None = None
        self.runner: SparkRunner | None = None
        self.outlet: Outlet | None = None
        self.error: str | None = None
        self.pause = FIRST_PAUSE
        self.again = 0.0
        self.version = -1
        self._asked = -1
        self._batch = -1
        self._counted = -1
        self.rows = 0
        self.late = 0
        """Late rows since the operator was started here."""
        self._first: int | None = None
        self._reached: int | None = None
        """The watermark after the first and the last counted batch."""
        self.heard: float | None = None
        """The wall-clock time at which it last had input, or was not ready for any."""
        self.started = 0.0

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
        if self.version < self._asked and (not self._is_busy() or self.batch > self._batch):
            self.version = self._asked

    @property
    def is_stuck(self) -> bool:
        """True if Spark has not completed its first trigger for a long time: it waits for a process that is gone."""
        is_new = self.handle is not None and self.handle.isActive and self.handle.lastProgress is None
        return is_new and time.monotonic() - self.started > STUCK

    @property
    def is_starting(self) -> bool:
        """True if it was just started and Spark has not completed its first trigger."""
        is_new = self.handle is not None and self.handle.isActive and self.handle.lastProgress is None
        return is_new and time.monotonic() - self.started < STARTING

    def _is_busy(self) -> bool:
        return self.handle is not None and self.handle.isActive and bool(self.handle.status["isTriggerActive"])

    def _is_silent(self) -> bool:
        """Returns True if its last trigger found no data; a long batch or a slow start is not silence."""
        status = self.handle.status if self.handle is not None and self.handle.isActive else None
        return status is not None and not status["isDataAvailable"] and status["message"] != "Initializing sources"

    def count(self) -> None:
        """Adds the rows of the batches since the last call; gates report the rates of their streams."""
        if self.runner is None:
            return
        # A batch is committed before its progress is known; rows and event time are those of the same batches.
        latest = self.runner.latest_batch
        for batch in range(self._counted + 1, latest + 1):
            progress = self.runner.progress(batch)
            if progress is None:
                continue
            self.late += sum(progress.late_rows.values())
            if self._first is None:
                self._first = progress.watermark
            else:
                self.rows += sum(progress.rows_in.values())
            self._reached = self._reached if progress.watermark is None else progress.watermark
        if latest > self._counted or self.heard is None or not self._is_silent():
            self.heard = now()
        self._counted = max(self._counted, latest)

    @property
    def rate(self) -> float | None:
        """Rows per second of event time since the first batch of this run."""
        if self._reached is None or self._first is None or self._reached <= self._first:
            return None
        return self.rows / ((self._reached - self._first) / 1e6)

    def report(self) -> dict[str, Any]:
        self.count()
        clocks = self.runner.manifest.clocks if self.runner is not None and self.runner.manifest is not None else None
        latest = self.runner.progress(self.batch) if self.runner is not None else None
        return {
            "kind": self.spec.kind,
            "serves": self.spec.serves,
            "active": self.handle is not None and self.handle.isActive,
            "batch": self.batch,
            "version": self.version,
            "newest": None if clocks is None else clocks.newest,
            "watermark": None if clocks is None else clocks.known_watermark,
            "plan": None if self.runner is None else str(self.runner.plan),
            "rows_in": None if latest is None else sum(latest.rows_in.values()),
            "rows_out": None if latest is None else latest.rows_out,
            "late": self.late,
            "state_bytes": None if latest is None else latest.statistics.state_bytes,
            "rate": self.rate,
            "rows": self.rows,
            "first": self._first,
            "reached": self._reached,
            "heard": self.heard,
            "refused": sorted(self.outlet.refused) if self.outlet is not None else [],
            "error": self.error,
        }


class Site:
    """The operators of one site in one Spark session."""

    def __init__(
        self,
        root: Root,
        name: str,
        spark: SparkSession,
        announce: Announce | None = None,
        *,
        store: str | None = None,
        listen: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        self.root, self.name, self.spark = root, name, spark
        self._announce = announce
        self._store = store or f"{root.location}/stores/{name}"
        self._listen = listen
        self._server: LinkServer | None = None
        self._running: dict[str, Running] = {}
        self._lease = root.lease(f"site-{name}")

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Runs until the deployment is stopped or `until` returns true."""
        self._lease.take()
        try:
            while not until():
                self._lease.renew()
                orders = self.root.orders()
                if orders is not None:
                    if orders.wanted.is_stopped:
                        return
                    self.follow(orders)
                self.report()
                time.sleep(POLL)
        finally:
            self.close()

    def close(self) -> None:
        """Stops all operators and releases the lease."""
        for running in self._running.values():
            if not running.is_stuck:
                _stop(running)
        self._running.clear()
        if self._server is not None:
            self._server.shutdown()
        self.report(is_stopped=True)
        self._lease.release()

    def follow(self, orders: Orders) -> None:
        """Starts and stops operators as ordered."""
        wanted = {spec.name: spec for spec in orders.wanted.running if spec.site == self.name}
        for name, running in list(self._running.items()):
            # An operator removed and added between two reads is a new one.
            if name not in wanted or running.checkpoint != self.root.checkpoint(orders.wanted, name):
                _stop(self._running.pop(name))
                if not orders.wanted.has_folder(running.checkpoint.rpartition("/")[2]):
                    # Otherwise another site has adopted it.
                    self.root.remove_folder(f"work/{running.checkpoint.rpartition('/')[2]}")
        for name, spec in wanted.items():
            if name not in self._running:
                self._running[name] = Running(spec, self.root.checkpoint(orders.wanted, name))
            running = self._running[name]
            handle = running.handle
            if handle is not None and not handle.isActive:
                self._failed(running, handle.exception())
            if running.is_stuck:
                # Spark cannot stop such a query either; the parent process starts a new site process.
                raise SiteError(f"operator '{name}' does not start", hint="start the site again")
            starting = sum(one.is_starting for one in self._running.values())
            # Links are served also while their operator waits to be restarted: its readers continue.
            has_links = self._has_links(spec, orders)
            is_due = running.handle is None and time.monotonic() >= running.again and starting < MOST_STARTING
            if is_due and has_links:
                try:
                    self._start(running, orders)
                except Exception as error:
                    self._failed(running, error)
            running.note(orders.wanted.version)

    def report(self, *, is_stopped: bool = False) -> None:
        """Writes a report of the operators and their progress."""
        self.root.report(
            self.name,
            {
                "site": self.name,
                "at": now(),
                "stopped": is_stopped,
                "operators": {name: running.report() for name, running in self._running.items()},
            },
        )

    def _has_links(self, spec: OperatorSpec, orders: Orders) -> bool:
        """Serves the links that this site keeps; returns True if all that the operator reads are served."""
        if not orders.place.startswith(SCHEME):
            return True
        if self._server is None:
            make_private(self._store)
            self._server = LinkServer(self._store, *self._listen)
        if address(orders.place, spec.name) != self._server.location:
            announce_address(orders.place, spec.name, self._server.location)
        wires = [orders.wanted.wiring.wires[spec.name, taken.stream] for taken in spec.inputs]
        producers = {stretch.producer for wire in wires for stretch in wire.stretches}
        return all(address(orders.place, producer) is not None for producer in producers)

    def _failed(self, running: Running, error: BaseException | None) -> None:
        if running.handle is not None:
            _stop(running)
        told = str(error).partition("\n\nJVM")[0][:2000] if error is not None else "it ended by itself"
        running.error = without_secrets(told)
        running.again = time.monotonic() + running.pause
        running.pause = min(2 * running.pause, LONGEST_PAUSE)

    def _start(self, running: Running, orders: Orders) -> None:
        spec, spark = running.spec, self.spark
        choice = decide(spec.query, AUTO)
        adapt = Settings() if len(spec.query.graph.names) > 2 else None
        rules = change_rules(spec.query, AUTO, choice, adapt=adapt)
        work = Work(alone(spec.query), Plans({ALONE: first_plan(choice)}), ONE_SLOT, {ALONE: rules})
        sink: Sink
        if spec.kind == DELIVERY:
            into = orders.sinks[spec.serves]
            sink = make_sink(
                into.format,
                from_environment(into.options),
                spark=spark,
                schema=spec.query.schema,
                name=spec.serves,
                path=into.path,
                partition_by=into.partition_by,
            )
        else:
            running.outlet = Outlet(orders.place, ReadersOf(self.root, spec.name), orders.limit)
            sink = LinkSink(spec.name, running.outlet)
        frames: dict[str, Any]
        if spec.kind == GATE:
            source = orders.sources[spec.serves]
            frames = {spec.query.graph.relations[0].stream: read(source, spark)}
            if timeout_of(source.idle_timeout) is not None:
                frames[LINKS] = link_frame(spark, LinkInputs(spec.name, orders.place, _Control(spec)))
        else:
            inputs = LinkInputs(spec.name, orders.place, InletsOf(self.root.location, spec.name))
            frames = {LINKS: link_frame(spark, inputs)}
        options = RunOptions(
            {"processingTime": f"{round(1000 * orders.interval)} milliseconds"},
            announce=self._announcing(spec.name),
        )
        query, runner = start_query(spark, frames, work, {ALONE: sink}, running.checkpoint, options)
        running.handle, running.runner, running.error = QueryHandle(query, runner), runner, None
        running.pause = FIRST_PAUSE
        running.started = time.monotonic()

    def _announcing(self, operator: str) -> Callable[[str, int], None]:
        announce = self._announce
        if announce is None:
            return lambda phase, batch: None
        return lambda phase, batch: announce(operator, phase, batch)


def _stop(running: Running) -> None:
    if running.handle is not None:
        running.handle.stop()
        running.handle = running.runner = None


@dataclass(frozen=True)
class _Control:
    """The link that sends the progress of other gates to a silent gate; its ticks are rows without values."""

    spec: OperatorSpec

    def __call__(self) -> Sequence[Inlet]:
        stream = self.spec.query.graph.relations[0].stream
        return (Inlet(stream, pa.schema([]), (), (Segment(control_link(self.spec.name)),)),)
