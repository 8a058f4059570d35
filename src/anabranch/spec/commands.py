"""The commands of a spec file: `anabranch run` and `anabranch explain`.

Both read the spec with what the command line says on top. Explaining starts no Spark unless a sample is asked for, and
then one session, whatever the number of queries.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from anabranch import explain
from anabranch.choosing import decide, proposal
from anabranch.commands import add_command, writing
from anabranch.errors import SpecError
from anabranch.explain import choice_svg
from anabranch.host.spark.quiet import VERBOSE, is_verbose
from anabranch.optimize import Choice
from anabranch.plan.query_set import ALONE, describe, together
from anabranch.spec.file import load
from anabranch.spec.model import QuerySpec, Spec

if TYPE_CHECKING:
    from anabranch.commands import Commands


def add_arguments(commands: Commands) -> None:
    """Adds both commands; the parsed arguments carry `run`, which returns the exit status."""
    command = add_command(
        commands,
        "run",
        "run the query of a spec file",
        """
        anabranch run query.yaml
        anabranch run query.yaml --report report.json
        anabranch run query.yaml --plan "((a b) c)" --slots 4     the checkpoint fits any plan and any number of slots
        anabranch run query.yaml --master "local[4]" --conf spark.driver.memory=4g
        anabranch run query.yaml --verbose                        with what Spark logs

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
        plan: auto                    # or mjoin | tree | "((a b) c)"
        limits: {cpu: 0.8, memory: 500 MB}      # what each slot may use; optional, as is what follows
        objective: qualified          # or cpu | memory | rate@30 seconds | first@1000
        hints: {force: tree, keep: [a b], forbid: [(a c)]}
        stats: {rates: {s0: 1000}, selectivities: {a b: 0.001}, filters: {a: 0.2}, bytes: {s0: 120}}
        spark: {master: "local[4]", conf: {spark.driver.memory: 4g}}
        """,
    )
    _add_spec(command)
    command.add_argument("--report", type=Path, metavar="FILE", help="write rows, times, state and plan as JSON")
    command.set_defaults(run=run)

    command = add_command(
        commands,
        "explain",
        "show how the query of a spec file would run",
        """
        anabranch explain query.yaml
        anabranch explain query.yaml --sample                       as a run would choose, by the streams' first rows
        anabranch explain query.yaml --cpu 0.5 --memory "200 MB"    what would run within these limits
        anabranch explain query.yaml --plan tree --picture plan.svg
        anabranch explain query.yaml --stage logical
        """,
    )
    _add_spec(command)
    command.add_argument(
        "--stage", choices=explain.STAGES, default="choice", help="what to show (default: choice, with the graph)"
    )
    command.add_argument(
        "--picture", type=Path, metavar="FILE", help="draw the plan, and all plans by CPU and memory, as SVG"
    )
    command.add_argument("--sample", action="store_true", help="look at the first rows of the streams; needs Spark")
    command.set_defaults(run=explain_spec)


def _add_spec(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", type=Path, metavar="SPEC.yaml", help="streams, query, sink and how to run it")
    command.add_argument("--plan", metavar="PLAN", help="auto, mjoin, tree or a plan text, instead of the spec's")
    command.add_argument("--slots", type=int, metavar="N", help="parallel slots, instead of the spec's")
    command.add_argument("--cpu", type=float, metavar="CORES", help="cores per slot, instead of the spec's limit")
    command.add_argument("--memory", metavar="BYTES", help="bytes per slot, such as '500 MB', instead of the spec's")
    command.add_argument("--objective", metavar="O", help="qualified, cpu, memory, rate@<time> or first@<results>")
    command.add_argument("--master", metavar="URL", help="where Spark runs, such as local[4] or spark://host:7077")
    command.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of Spark; may be repeated",
    )
    add_verbose(command)


def add_verbose(command: argparse.ArgumentParser) -> None:
    """Adds the option that lets Spark's own words through."""
    command.add_argument("--verbose", action="store_true", help=f"show what Spark logs, as {VERBOSE}=1 does")


def run(arguments: argparse.Namespace) -> int:
    """Runs the query of a spec, or its queries together, until it ends or is interrupted."""
    chosen = _spec(arguments)
    if arguments.report is not None:
        with writing(arguments.report):
            arguments.report.open("a").close()
    # Below, because these need pyspark, which explain and --help must not.
    from anabranch.api import ContinuousQueryWriter
    from anabranch.host.spark.failure import named_end
    from anabranch.live import View, advance, follow, late_notice
    from anabranch.spec.launch import prepare, session

    console = Console(stderr=True)
    # Py4J logs the traceback of an interrupt, to the root logger.
    logging.getLogger().addFilter(lambda record: "while sending command" not in record.getMessage())
    # What goes wrong in a batch it logs too; that is told by the error that ends the query, if it was not an interrupt.
    logging.getLogger("py4j").propagate = False
    _tell_of_start(console)
    spark = session(chosen, **_log_level())
    try:
        writer = prepare(chosen, spark)
        with console.status("looking at the first rows of the streams, and for plans and routes …"):
            headlines = writer.headlines()
        for line in headlines:
            console.print(line, highlight=False, soft_wrap=True)
        handle = writer.start()
        try:
            with named_end():
                follow(handle, console)
        except KeyboardInterrupt:
            console.print("stopping; the checkpoint stays good for a restart")
            handle.stop()
        finally:
            if notice := late_notice(advance(View(), handle.recentProgress)):
                console.print(notice, highlight=False, soft_wrap=True)
            if arguments.report is not None:
                report = handle.report()
                if isinstance(writer, ContinuousQueryWriter):
                    report["statistics"] = writer.query.measured(handle)
                _write(arguments.report, json.dumps(report, indent=2) + "\n")
    finally:
        spark.stop()
    return 0


def explain_spec(arguments: argparse.Namespace) -> int:
    """Prints one stage of each query of the spec and draws its plan if asked; fails when no plan keeps the limits."""
    if arguments.picture is not None and arguments.picture.suffix.lower() != ".svg":
        raise SpecError(f"option '--picture' is '{arguments.picture}'", hint="pictures are SVG: name it plan.svg")
    chosen = _spec(arguments)
    explained = {name: _explanation(chosen, each) for name, each in chosen.queries.items()}

    @cache
    def sampled() -> Mapping[str, Choice]:
        return _choices_on_spark(chosen)

    @cache
    def choose(name: str) -> Choice:
        if arguments.sample:
            return sampled()[name]
        slots = chosen.slots or os.cpu_count() or 1
        wishes = chosen.queries[name].wishes
        return decide(explained[name].query, wishes, slots=slots, batch=chosen.seconds_between_batches)

    if ALONE not in chosen.queries:
        if arguments.picture is not None:
            raise SpecError("option '--picture' draws one query", hint="draw each from a spec of its own")
        print(describe(together({name: each.query for name, each in explained.items()})))
    for name, each in explained.items():
        if name:
            print(f"\n== {name} ==")
        print(each.text(arguments.stage, partial(choose, name)))
        if arguments.picture is not None:
            _write(arguments.picture, choice_svg(each.query, choose(name)))
        if arguments.stage == "choice":
            proposal(choose(name))
    return 0


def _explanation(chosen: Spec, query: QuerySpec) -> explain.Explanation:
    return explain.Explanation(
        query.query, chosen.catalog(), allow_unbounded=query.allow_unbounded, late_filters=query.late_filters
    )


def _choices_on_spark(chosen: Spec) -> Mapping[str, Choice]:
    """The choices by what the streams' first rows say, as a run would make them; a query alone goes without a name."""
    # Here, because it needs pyspark, which explaining without a sample must not.
    from anabranch.spec.launch import prepare, session

    console = Console(stderr=True)
    _tell_of_start(console)
    spark = session(chosen, **_log_level())
    try:
        with console.status("looking at the first rows of the streams, and for plans and routes …"):
            return prepare(chosen, spark).choices()
    finally:
        spark.stop()


def _tell_of_start(console: Console) -> None:
    """A line and not a spinner: what is written while Spark starts goes through a pipe that waits for whole lines."""
    if console.is_terminal:
        console.print("starting Spark …", style="dim")


def _log_level() -> dict[str, str]:
    """Spark logs the stack of a failed query in three languages; what it means to the user is told once, at the end."""
    return {} if is_verbose() else {"spark.log.level": "OFF"}


def _spec(arguments: argparse.Namespace) -> Spec:
    """Returns the spec file with the options of the command line on top."""
    chosen = load(arguments.spec)
    if len(chosen.queries) > 1:
        for option in ("plan", "objective", "cpu", "memory"):
            if vars(arguments)[option] is not None:
                raise SpecError(
                    f"option '--{option}' is for one query, and the spec has several",
                    hint="write it below the query it is for: queries: {alerts: {plan: mjoin, limits: {cpu: 2}, …}}",
                )
    chosen = chosen.each(partial(_with_wishes, arguments))
    if arguments.slots is not None:
        if arguments.slots < 1:
            raise SpecError(f"option '--slots' is {arguments.slots}", hint="give a whole number of at least 1")
        chosen = replace(chosen, slots=arguments.slots)
    spark = chosen.spark
    if arguments.master is not None:
        spark = spark.with_master(arguments.master)
    for setting in arguments.conf:
        key, sign, value = setting.partition("=")
        if not sign:
            raise SpecError(f"option '--conf' is '{setting}'", hint="write key=value: --conf spark.driver.memory=4g")
        spark = spark.with_setting(key.strip(), value.strip())
    return replace(chosen, spark=spark)


def _with_wishes(arguments: argparse.Namespace, query: QuerySpec) -> QuerySpec:
    wishes = query.wishes.with_limits(arguments.cpu, arguments.memory)
    if arguments.plan is not None:
        wishes = replace(wishes, plan=arguments.plan)
    if arguments.objective is not None:
        wishes = wishes.with_objective(arguments.objective)
    return replace(query, wishes=wishes)


def _write(path: Path, text: str) -> None:
    with writing(path):
        path.write_text(text, encoding="utf-8")
    print(f"wrote {path}", file=sys.stderr)
