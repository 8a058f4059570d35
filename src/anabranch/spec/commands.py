"""The commands that take a spec file: `anabranch run` and `anabranch explain`.

Both read the spec and apply the command-line options to it. `explain` starts Spark only for `--sample`, with one
session for all queries.

Invariant: both compile and choose plans by the same code, so `explain` shows the plan that `run` would use.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from rich.console import Console

from anabranch.balance.first import first_table
from anabranch.console.command import address
from anabranch.console.live import View, advance, follow, late_notice, summary
from anabranch.console.runs import LiveRun
from anabranch.console.server import TOKEN
from anabranch.console.server import Console as WebConsole
from anabranch.cql import declared_results
from anabranch.errors import SpecError
from anabranch.optimize import Choice
from anabranch.plan.classing import classes_for, with_classes
from anabranch.plan.mesh import check_plan, parse_plan
from anabranch.plan.query_set import ALONE, alone, partitioning_of, set_of
from anabranch.plan.slots import FEWEST, SlotRange
from anabranch.planning import explain
from anabranch.planning.choosing import decide, on_spark, proposal
from anabranch.planning.explain import run_svg
from anabranch.planning.options import AUTO
from anabranch.planning.together import RunChoice, allocate, decide_together
from anabranch.run.evolving import Evolve
from anabranch.run.evolving import follow as follow_change
from anabranch.run.interrupts import noted_signals
from anabranch.run.store import Store
from anabranch.settings.commands import add_command, replace_text, require_writable
from anabranch.spark.quiet import VERBOSE, is_verbose
from anabranch.spec.change_commands import change_lines
from anabranch.spec.file import parse, read_text
from anabranch.spec.model import QuerySpec, Spec
from anabranch.spec.sinks import check_sinks
from anabranch.telemetry.lineage import emit_lineage
from anabranch.telemetry.logs import JSON, VARIABLE, is_json

if TYPE_CHECKING:
    from anabranch.api import QueryHandle
    from anabranch.api.run import Run
    from anabranch.settings.commands import Commands
    from anabranch.spec.changes import Changes

_SAMPLING = "sampling the streams and choosing a plan …"


def add_arguments(commands: Commands) -> None:
    """Adds both commands; the parsed arguments have `run`, a function that returns the exit status."""
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

    command = add_command(
        commands,
        "explain",
        "show how the query of a spec file would run, without running it",
        """
        anabranch explain query.yaml                                choose by the statistics in the spec
        anabranch explain query.yaml --sample                       choose by samples of the streams, as a run does
        anabranch explain query.yaml --cpu 0.5 --memory "200 MB"    choose within these limits
        anabranch explain query.yaml --plan tree --picture plan.svg
        anabranch explain query.yaml --stage logical
        """,
    )
    add_spec(command)
    command.add_argument(
        "--stage",
        choices=explain.STAGES,
        default="choice",
        help="the stage to show (default: choice)",
    )
    command.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="draw the plan (with all plans by CPU and memory), or plans, as SVG",
    )
    command.add_argument("--sample", action="store_true", help="sample the first rows of the streams; needs Spark")
    command.set_defaults(run=explain_spec)


def add_spec(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", type=Path, metavar="SPEC.yaml", help="a spec file: streams, query, sink and more")
    command.add_argument("--plan", metavar="PLAN", help="auto, mjoin, tree, jtree, mesh or a plan text")
    command.add_argument("--slots", metavar="N", help="number of slots, 1-8 or fewest, instead of the spec's")
    command.add_argument("--cpu", type=float, metavar="CORES", help="cores per slot, instead of the spec's limit")
    command.add_argument("--memory", metavar="BYTES", help="bytes per slot, such as '500 MB', instead of the spec's")
    command.add_argument("--objective", metavar="O", help="qualified, cpu, memory, rate@<time> or first@<results>")
    command.add_argument("--master", metavar="URL", help="the Spark master, such as local[4] or spark://host:7077")
    command.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of Spark; may be repeated",
    )
    add_verbose(command)


def add_run_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of commands that run queries: console, log and lineage."""
    command.add_argument(
        "--console",
        nargs="?",
        const="",
        metavar="[HOST:]PORT",
        help=f"serve a page with live figures, plan and decisions; {TOKEN} in the environment lets it change plans",
    )
    command.add_argument(
        "--log",
        choices=("text", JSON),
        help=f"text for people (default), or one JSON object on each line, as {VARIABLE}={JSON} does",
    )
    command.add_argument(
        "--lineage",
        nargs="?",
        const="anabranch",
        metavar="NAMESPACE",
        help="send events of OpenLineage to where OPENLINEAGE_URL or openlineage.yml says",
    )


def add_verbose(command: argparse.ArgumentParser) -> None:
    """Adds the option that shows Spark's log."""
    command.add_argument("--verbose", action="store_true", help=f"show Spark's log, as {VERBOSE}=1 does")


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
        with console.status(_SAMPLING):
            headlines = ready.chosen().headlines()
        _print_lines(console, headlines)
        # Imported here because it needs pyspark, which explain and --help must not.
        from anabranch.spark.failure import unless_gone
        from anabranch.spec.changes import Changes

        ending, handle = _start(ready, signals)
        if (change := ready.change) is not None:
            _print_lines(console, change_lines(change.joined, ()))
        page = None if at is None else _open_console(handle, *at, console)
        changes = Changes(chosen, handle, partial(_with_options, arguments))
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
    _write(path, json.dumps(report, indent=2) + "\n")


def _refuse_foreign_checkpoint(chosen: Spec) -> None:
    """Reports a checkpoint of another query before Spark starts, if the spec is complete enough to know.

    The run itself checks again.
    """
    if ALONE in chosen.queries and chosen.has_all_columns:
        query = _explanations(chosen)[ALONE].query
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


def explain_spec(arguments: argparse.Namespace) -> int:
    """Prints one stage of each query of the spec and draws its plan; fails if no plan is within the limits."""
    if arguments.picture is not None and arguments.picture.suffix.lower() != ".svg":
        raise SpecError(f"option '--picture' is '{arguments.picture}'", hint="pictures are SVG files: name it plan.svg")
    chosen = spec_of(arguments)
    if arguments.picture is not None:
        require_writable(arguments.picture)
    explained, plans = _sampled(chosen) if arguments.sample else _unsampled(chosen)
    for name, each in explained.items():
        for switch in chosen.queries[name].switches:
            plan = parse_plan(switch.plan)
            graph = with_classes(each.query.graph, classes_for(plan, each.query.graph))
            check_plan(plan, graph, each.query.grouping)
    print(explain.explain_queries(explained, arguments.stage, plans, _fill(chosen)))
    if arguments.picture is not None:
        _write(arguments.picture, run_svg({name: each.query for name, each in explained.items()}, plans()))
    if arguments.stage == "choice":
        for name in explained:
            proposal(plans().choices[name])
    return 0


Explained = tuple[dict[str, explain.Explanation], Callable[[], RunChoice]]
"""The queries of a spec, and a function that chooses their plans."""


def _unsampled(chosen: Spec) -> Explained:
    """Explains the queries by the statistics in the spec, without Spark."""
    explained = _explanations(chosen)
    for note in check_sinks(chosen, {name: each.query for name, each in explained.items()}):
        print(note, file=sys.stderr)
    if chosen.together.of_executors or any(each.plan_options.of_executors for each in chosen.queries.values()):
        print("note: 'limits: auto' is read from the executors; without --sample no limits apply", file=sys.stderr)
    every = explain.with_inputs(explained)
    plan_options = {name: chosen.queries[name].plan_options if name in chosen.queries else AUTO for name in every}
    whole, fill = set_of({name: each.query for name, each in explained.items()}), _fill(chosen)
    capacities = chosen.balance.capacities if chosen.balance is not None else None

    def choose_at(slots: int) -> dict[str, Choice]:
        batch, host = chosen.seconds_between_batches, on_spark(chosen.trigger.seconds, len(every))
        return {
            name: decide(each.query, plan_options[name], slots=slots, batch=batch, host=host)
            for name, each in every.items()
        }

    @cache
    def plans() -> RunChoice:
        found = allocate(
            whole, chosen.slots, choose_at, plan_options, chosen.together, lambda grid, _: fill(grid), capacities
        )
        given = chosen.slots.most if chosen.slots else os.cpu_count() or 1
        slots = given if found is None else found.slots
        choices = choose_at(slots)
        adapting = [name for name, query in chosen.queries.items() if query.adapt is not None]
        joint = decide_together(whole, choices, plan_options, chosen.together, adapting=adapting, slots=slots)
        return RunChoice(choices, joint, found)

    return explained, plans


def _sampled(chosen: Spec) -> Explained:
    """Explains the queries by samples: opens the streams, makes the sinks and chooses the plans as a run does."""
    console = Console(stderr=True)
    with prepared(chosen, console) as ready, console.status(_SAMPLING):
        # Only Spark knows its formats.
        ready.sinks({})
        ready.late_rows()
        explained = {name: ready.given[name].compiled.stages for name in chosen.queries}
        plans = ready.chosen(always_sample=True)
    return explained, lambda: plans


def _fill(chosen: Spec) -> explain.FillSlots:
    return partial(first_table, capacities=None if chosen.balance is None else chosen.balance.capacities)


def _explanations(chosen: Spec) -> dict[str, explain.Explanation]:
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


def spec_of(arguments: argparse.Namespace) -> Spec:
    """Returns the spec file with the command-line options applied."""
    return _with_options(arguments, *read_text(arguments.spec))


def _with_options(arguments: argparse.Namespace, text: str, folder: Path) -> Spec:
    """Returns the spec in a text with the command-line options applied."""
    chosen = parse(text, folder=folder)
    if len(chosen.queries) > 1:
        for option in ("plan", "objective", "cpu", "memory"):
            if vars(arguments)[option] is not None:
                raise SpecError(
                    f"option '--{option}' is for one query, and the spec has several",
                    hint="write it below the query it is for: queries: {alerts: {plan: mjoin, limits: {cpu: 2}, …}}",
                )
    chosen = chosen.each(partial(_with_plan_options, arguments))
    if arguments.slots is not None:
        chosen = replace(chosen, slots=_slots(arguments.slots))
    spark = chosen.spark
    if arguments.master is not None:
        spark = spark.with_master(arguments.master)
    for setting in arguments.conf:
        key, sign, value = setting.partition("=")
        if not sign:
            raise SpecError(f"option '--conf' is '{setting}'", hint="write key=value: --conf spark.driver.memory=4g")
        spark = spark.with_setting(key.strip(), value.strip())
    if evolve := vars(arguments).get("evolve"):
        chosen = replace(chosen, evolve=Evolve(evolve))
    return replace(chosen, spark=spark)


def _slots(text: str) -> SlotRange:
    """Reads `4`, `1-8`, or `fewest`."""
    if text == "fewest":
        return FEWEST
    least, _, most = text.partition("-")
    if not (least.isdecimal() and (most or least).isdecimal() and 1 <= int(least) <= int(most or least)):
        hint = "give a whole number of at least 1, limits such as 1-8, or fewest"
        raise SpecError(f"option '--slots' is {text}", hint=hint)
    return SlotRange(int(least), int(most or least))


def _with_plan_options(arguments: argparse.Namespace, query: QuerySpec) -> QuerySpec:
    plan_options = query.plan_options.with_limits(arguments.cpu, arguments.memory)
    if arguments.plan is not None:
        plan_options = replace(plan_options, plan=arguments.plan)
    if arguments.objective is not None:
        plan_options = plan_options.with_objective(arguments.objective)
    return replace(query, plan_options=plan_options)


def _write(path: Path, text: str) -> None:
    replace_text(path, text)
    print(f"wrote {path}", file=sys.stderr)
