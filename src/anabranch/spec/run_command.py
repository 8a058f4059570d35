"""The command `anabranch run`: runs the queries of a spec until they end or are interrupted.

Invariant: a signal before the start ends the command; after it, the query ends with its current batch.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from rich.console import Console

from anabranch.console.command import address
from anabranch.console.live import View, advance, follow, late_notice, summary
from anabranch.console.runs import LiveRun
from anabranch.console.server import TOKEN
from anabranch.console.server import Console as WebConsole
from anabranch.cql import declared_results
from anabranch.plan.query_set import ALONE, alone, partitioning_of
from anabranch.planning import explain
from anabranch.run.evolving import Evolve
from anabranch.run.evolving import follow as follow_change
from anabranch.run.interrupts import noted_signals
from anabranch.run.store import Store
from anabranch.settings.commands import add_command, require_writable
from anabranch.spark.quiet import is_verbose
from anabranch.spec.change_commands import change_lines
from anabranch.spec.model import Spec
from anabranch.spec.options import add_run_options, add_spec, spec_of, with_options, write_file
from anabranch.telemetry.lineage import emit_lineage
from anabranch.telemetry.logs import is_json

if TYPE_CHECKING:
    from anabranch.api import QueryHandle
    from anabranch.api.run import Run
    from anabranch.settings.commands import Commands
    from anabranch.spec.changes import Changes


SAMPLING = "sampling the streams and choosing a plan …"


def add_arguments(commands: Commands) -> None:
    """Adds the command; the parsed arguments have `run`, a function that returns the exit status."""
    command = add_command(
        commands,
        "run",
        "run the query of a spec file, or its queries together",
        """
        anabranch run query.yaml
        anabranch run query.yaml --report report.json             write rows, times, state and plan at the end
        anabranch run query.yaml --plan "((a b) c)" --slots 4     any plan and any slots can use the checkpoint
        anabranch run query.yaml --master "local[4]" --conf spark.driver.memory=4g
        anabranch run query.yaml --console                        show the query in the browser while it runs
        anabranch run query.yaml --verbose                        show Spark's log

        A spec file:

        streams:
          s0: {format: parquet, path: data/s0, schema: "ts timestamp, k bigint, p bigint", event_time: ts,
               watermark: 0 seconds, options: {maxFilesPerTrigger: 1}}
          s1: {format: parquet, path: data/s1, schema: "ts timestamp, k bigint, p bigint", event_time: ts}
        query: SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 10 SECONDS] AS b WHERE a.k = b.k
        sink: {format: parquet, path: out}
        checkpoint: ckpt
        trigger: available_now        # or: 2 seconds
        slots: 2
        plan: auto                    # or mjoin | tree | jtree | mesh | "((a b) c)"
        limits: {cpu: 0.8, memory: 500 MB}      # of each slot; this entry and all below are optional
        objective: qualified          # or cpu | memory | rate@30 seconds | first@1000
        hints: {keep: [a b]}          # also forbid: [(a c)], optimizer: local-rate
        stats: {rates: {s0: 1000}, selectivities: {a b: 0.001}, filters: {a: 0.2}, bytes: {s0: 120}}
        spark: {master: "local[4]", conf: {spark.driver.memory: 4g}}
        """,
    )
    add_spec(command)
    command.add_argument("--report", type=Path, metavar="FILE", help="write rows, times, state and plan as JSON")
    add_run_options(command)
    command.add_argument(
        "--evolve",
        choices=tuple(Evolve),
        help="if the query of the checkpoint has changed: show the difference (ask), take its rows over, or refuse",
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the queries of a spec until they end or are interrupted."""
    chosen = spec_of(arguments)
    _refuse_foreign_checkpoint(chosen)
    return run_spec(arguments, chosen)


def run_spec(
    arguments: argparse.Namespace,
    chosen: Spec,
    begin: Callable[[Run, Console], None] = lambda *_: None,
    end: Callable[[QueryHandle], None] = lambda _: None,
) -> int:
    """Runs the queries of a spec until they end or are interrupted.

    `begin` is called when they are compiled, before anything is written; `end` is called with the handle at the end.
    """
    at = None if arguments.console is None else address(arguments.console)
    if arguments.report is not None:
        require_writable(arguments.report)
    console = Console(quiet=True) if is_json(arguments.log) else Console(stderr=True)
    # SIGTERM from a service manager ends a query like Ctrl-C; before the query runs, both end the command.
    signal.signal(signal.SIGTERM, _interrupt)
    _silence_py4j()
    with _lineage(arguments.lineage), ExitStack() as signals, prepared(chosen, console) as ready:
        begin(ready, console)
        with console.status(SAMPLING):
            headlines = ready.chosen().headlines()
        _print_lines(console, headlines)
        # Imported here because it needs pyspark, which explain and --help must not.
        from anabranch.spark.failure import unless_gone
        from anabranch.spec.changes import Changes

        ending, handle = _start(ready, signals)
        if (change := ready.change) is not None:
            _print_lines(console, change_lines(change.joined, ()))
        page = None if at is None else _open_console(handle, *at, console)
        changes = Changes(chosen, handle, partial(with_options, arguments))
        following = _Following(handle, console, changes, arguments.spec, ending)
        # A signal to the whole process group also ends the JVM; the next start repeats the batch.
        quiet = partial(unless_gone, ready.spark, ending.is_set)
        try:
            with quiet():
                following.follow()
        finally:
            if page is not None:
                page.close()
            with quiet():
                following.seen = advance(following.seen, handle.progressAfter(following.seen.batch))
                end(handle)
            _summarize(following.seen, changes.spec, console)
            if arguments.report is not None:
                with quiet():
                    _write_report(arguments.report, ready, handle)
    return 0


def _start(ready: Run, signals: ExitStack) -> tuple[Event, QueryHandle]:
    """Starts the queries; returns an event that SIGINT and SIGTERM set from now on, and the handle."""
    # Imported here because it needs pyspark, which explain and --help must not.
    from anabranch.spark.internals.driver import hush_updates

    handle: QueryHandle | None = None

    def expect_end() -> None:
        hush_updates(ready.spark)
        if handle is not None:
            handle.expect_end()

    ending = signals.enter_context(noted_signals(signal.SIGINT, signal.SIGTERM, then=expect_end, default=True))
    handle = ready.start()
    return ending, handle


class _Following:
    """Follows running queries in the terminal, and applies the changes that other commands and SIGHUP request."""

    def __init__(self, handle: QueryHandle, console: Console, changes: Changes, spec: Path, ending: Event) -> None:
        self._handle = handle
        self._console = console
        self._changes = changes
        self._spec = spec
        self._ending = ending
        self._hung_up = Event()
        self.seen = View()
        """The totals shown so far."""
        signal.signal(signal.SIGHUP, lambda *_: self._hung_up.set())
        changes.open()

    def follow(self) -> None:
        """Returns when the queries have ended or a signal has stopped them."""
        # Imported here because it needs pyspark, which explain and --help must not.
        from anabranch.spark.failure import named_end

        try:
            with named_end():
                follow(self._handle, self._console, until=self._serve, note=self._note)
        finally:
            if self._ending.is_set():
                self._console.print("stopping; the checkpoint stays good for a restart")
                self._handle.stop()

    def _serve(self) -> bool:
        said = self._changes.serve()
        if self._hung_up.is_set():
            self._hung_up.clear()
            said += self._changes.reload(self._spec)
        _print_lines(self._console, said)
        if self._handle.has_answered and not self._ending.is_set():
            self._console.print("all results until then are delivered; the branch continues", soft_wrap=True)
            self._ending.set()
        return self._ending.is_set()

    def _note(self, view: View) -> None:
        self.seen = view


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _silence_py4j() -> None:
    # Py4J logs the traceback of an interrupt to the root logger.
    logging.getLogger().addFilter(lambda record: "while sending command" not in record.getMessage())
    # Py4J also logs errors inside a batch; the error that ends the query already reports them.
    logging.getLogger("py4j").propagate = False


def _summarize(seen: View, running: Spec, console: Console) -> None:
    """Prints the totals of a run, and a notice of late rows."""
    sinks = [each.sink for each in running.queries.values() if each.sink is not None]
    places = [str(sink.path or sink.format) for sink in sinks]
    for words in (summary(seen, places), late_notice(seen, kept=running.late is not None)):
        if words:
            console.print(words, highlight=False, soft_wrap=True)


def _write_report(path: Path, ready: Run, handle: QueryHandle) -> None:
    report = handle.report()
    if (measured := ready.measured(handle)) is not None:
        report["statistics"] = measured
    write_file(path, json.dumps(report, indent=2) + "\n")


def _refuse_foreign_checkpoint(chosen: Spec) -> None:
    """Reports a checkpoint of another query before Spark starts, if the spec is complete enough to know.

    The run itself checks again.
    """
    if ALONE in chosen.queries and chosen.has_all_columns:
        query = explanations(chosen)[ALONE].query
        store, queries = Store(chosen.checkpoint), alone(query)
        if chosen.evolve is Evolve.ASK and not chosen.spark_checkpoint:
            follow_change(store, queries, chosen.catalog(), lambda: partitioning_of(queries, 1), Evolve.ASK)
        if chosen.evolve is not Evolve.ALLOW:
            store.check(queries, chosen.execution)


def _open_console(handle: QueryHandle, host: str, port: int | None, console: Console) -> WebConsole:
    shown = LiveRun(handle)
    page = WebConsole(lambda: [shown], host=host, port=port, token=os.environ.get(TOKEN) or None)
    reach = "; other machines can read it" if page.is_open_to_others else ""
    console.print(f"console at {page.url}{reach}", highlight=False, soft_wrap=True)
    return page


@contextmanager
def _lineage(namespace: str | None) -> Iterator[None]:
    """Sends OpenLineage events while the queries run, if enabled."""
    end = None if namespace is None else emit_lineage(namespace)
    try:
        yield
    finally:
        if end is not None:
            end()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def prepared(chosen: Spec, console: Console) -> Iterator[Run]:
    """Opens the Spark session of a spec and prepares its queries; stops the session at the end."""
    # Imported here because it needs pyspark, which explain and --help must not.
    from anabranch.spec import launch

    # A line, not a spinner: during Spark's start, output goes through a line-buffered pipe.
    console.print("starting Spark …", style="dim")
    # Spark logs the stack of a failed query in three languages; our final error explains it.
    spark = launch.session(chosen, **({} if is_verbose() else {"spark.log.level": "OFF"}))
    # Imported here because `launch` reports a missing pyspark with its own error.
    from anabranch.spark.failure import unless_gone

    try:
        yield launch.prepare(chosen, spark)
    finally:
        with unless_gone(spark):
            spark.stop()


def explanations(chosen: Spec) -> dict[str, explain.Explanation]:
    """Returns the compiled queries; a query may read those before it."""
    catalog = chosen.catalog()
    found = {}
    for name in chosen.in_order():
        query = chosen.queries[name]
        found[name] = explain.Explanation(
            query.query, catalog, allow_unbounded=query.allow_unbounded, late_filters=query.late_filters
        )
        if name != ALONE:
            catalog.register(declared_results(name, found[name].query))
    return {name: found[name] for name in chosen.queries}
