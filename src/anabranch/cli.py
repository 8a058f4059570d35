"""The command `anabranch`: run, explain and look after continuous queries from a shell.

Whatever a user can get wrong ends as `error: …` with what was found and what to do, and exit status 2; a traceback is
shown only with --debug. Commands import what they need when they run, so that `explain` and `--help` need neither Spark
nor Java.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from dataclasses import asdict, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from textwrap import indent

from rich.console import Console

import anabranch
from anabranch import doctor, explain, spec
from anabranch.choosing import decide, proposal
from anabranch.commands import add_command, examples
from anabranch.cost.units import ENGINE, calibration_file, save_units
from anabranch.errors import AnabranchError, HostError, InvariantBroken, SpecError
from anabranch.explain import choice_svg
from anabranch.host.spark.quiet import VERBOSE, is_verbose
from anabranch.optimize import Choice
from anabranch.plan.bundle import bundle, describe
from anabranch.sizes import size_text

USER_ERROR = 2

ROOMS = {
    "lab": ("anabranch.lab.command", "reproduce an experiment of the papers"),
    "place": ("anabranch.place.command", "plan queries over a network of sites"),
}
"""Commands that live with their rooms; a room is imported only when its name is on the command line."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and gives the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    parsed = _parser(words).parse_args(words)
    if parsed.debug or vars(parsed).get("verbose"):
        os.environ[VERBOSE] = "1"
    try:
        status: int = parsed.run(parsed)
        return status
    except AnabranchError as error:
        if parsed.debug or isinstance(error, InvariantBroken):
            raise
        first, *rest = str(error).split("\n")
        print(f"error: {first}", *(indent(line, "  ") for line in rest), sep="\n", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def run(arguments: argparse.Namespace) -> int:
    """Runs the query of a spec, or its queries together, until it ends or is interrupted."""
    chosen = _spec(arguments)
    # Below, because these need pyspark, which explain and --help must not.
    from anabranch.api import ContinuousQueryWriter
    from anabranch.launch import prepare, prepare_together, session
    from anabranch.live import follow

    console = Console(stderr=True)
    # Py4J logs the traceback of an interrupt, to the root logger.
    logging.getLogger().addFilter(lambda record: "while sending command" not in record.getMessage())
    spark = session(chosen.common if isinstance(chosen, spec.TogetherSpec) else chosen, **_log_level())
    try:
        writer = prepare_together(chosen, spark) if isinstance(chosen, spec.TogetherSpec) else prepare(chosen, spark)
        with console.status("looking at the first rows of the streams, and for plans and routes …"):
            headlines = writer.headlines()
        for line in headlines:
            console.print(line, highlight=False, soft_wrap=True)
        handle = writer.start()
        try:
            follow(handle, console)
        except KeyboardInterrupt:
            console.print("stopping; the checkpoint stays good for a restart")
            handle.stop()
        finally:
            if arguments.report is not None:
                report = handle.report()
                if isinstance(writer, ContinuousQueryWriter):
                    report["statistics"] = writer.query.measured(handle)
                _write(arguments.report, json.dumps(report, indent=2) + "\n")
    finally:
        spark.stop()
    return 0


def explain_spec(arguments: argparse.Namespace) -> int:
    """Prints one stage of the spec's query and draws its plan if asked; fails when no plan keeps the limits."""
    chosen = _spec(arguments)
    if isinstance(chosen, spec.TogetherSpec):
        return _explain_together(arguments, chosen)
    return _explain_one(arguments, chosen)


def _explain_together(arguments: argparse.Namespace, chosen: spec.TogetherSpec) -> int:
    """Prints what the queries share, then each of them."""
    if arguments.picture is not None:
        raise SpecError("option '--picture' draws one query", hint="draw each from a spec of its own")
    explained = {name: _explanation(each) for name, each in chosen.queries.items()}
    print(describe(bundle({name: each.query for name, each in explained.items()})))
    for name, each in chosen.queries.items():
        print(f"\n== {name} ==")
        _explain_one(arguments, each)
    return 0


def _explanation(chosen: spec.Spec) -> explain.Explanation:
    return explain.Explanation(
        chosen.query,
        chosen.catalog(),
        allow_unbounded=chosen.allow_unbounded,
        late_filters=chosen.late_filters,
    )


def _explain_one(arguments: argparse.Namespace, chosen: spec.Spec) -> int:
    explained = _explanation(chosen)

    @cache
    def choose() -> Choice:
        if arguments.sample:
            return _choice_on_spark(chosen)
        slots = chosen.slots or os.cpu_count() or 1
        return decide(explained.query, chosen.wishes, slots=slots, batch=chosen.seconds_between_batches)

    print(explained.text(arguments.stage, choose))
    if arguments.picture is not None:
        _write(arguments.picture, choice_svg(explained.query, choose()))
    if arguments.stage == "choice":
        proposal(choose())
    return 0


def _choice_on_spark(chosen: spec.Spec) -> Choice:
    """The choice by what the streams' first rows say, as a run would make it."""
    # Here, because it needs pyspark, which explaining without a sample must not.
    from anabranch.launch import prepare, session

    with Console(stderr=True).status("starting Spark …") as status:
        spark = session(chosen, **_log_level())
        try:
            status.update("looking at the first rows of the streams, and for plans and routes …")
            return prepare(chosen, spark).choice()
        finally:
            spark.stop()


def _log_level() -> dict[str, str]:
    """Spark logs the stack of a failed query in three languages; what it means to the user is told once, at the end."""
    return {} if is_verbose() else {"spark.log.level": "OFF"}


def prepare_machine(arguments: argparse.Namespace) -> int:
    """Does once what every start would otherwise do again."""
    # Here, because it needs pyspark and loads every kernel.
    from anabranch.prepare import compile_kernels, make_archive

    with Console(stderr=True).status("compiling the kernels"):
        compile_kernels()
    with Console(stderr=True).status("archiving Spark's classes, by running two small queries; about half a minute"):
        file = make_archive()
    print(f"Spark's classes are in {file} ({size_text(file.stat().st_size)})")
    return 0


def calibrate(arguments: argparse.Namespace) -> int:
    """Measures what the engine's operations cost on this machine and keeps it for later choices."""
    # Here, because the engine and its kernels are loaded for it.
    from anabranch.lab.calibrate import calibrate as measure

    print("measuring; this takes about a minute and wants an otherwise quiet machine", file=sys.stderr)
    units = measure(arguments.seed)
    file = calibration_file()
    try:
        save_units(units, file)
    except OSError as error:
        raise HostError(f"the calibration cannot be kept in '{file}'", detail=str(error)) from error
    for name, value in asdict(units).items():
        if isinstance(value, float) and not name.endswith("bytes"):
            usual = getattr(ENGINE, name)
            print(f"{name:16}{1e9 * value:10.1f} ns   ({1e9 * usual:.1f} on an ordinary machine)")
    print(f"kept in {file}", file=sys.stderr)
    return 0


def demonstrate(arguments: argparse.Namespace) -> int:
    """Runs the demo; fails when its result is not the batch answer."""
    from anabranch.demo import run_demo

    return 0 if run_demo(arguments.output, seconds=arguments.seconds, seed=arguments.seed) else 1


def bench(arguments: argparse.Namespace) -> int:
    """Hands over to the benchmarks of the repository."""
    if not Path("benchmarks/__main__.py").is_file():
        raise HostError(
            "no benchmarks in this folder",
            detail="they belong to the repository, not to the installed package",
            hint="run the command, or 'make bench', in a clone of the repository",
        )
    return subprocess.run([sys.executable, "-m", "benchmarks", *arguments.rest], check=False).returncode


def examine(arguments: argparse.Namespace) -> int:
    """Prints what the machine offers."""
    findings = doctor.examine()
    for finding in findings:
        print(f"{'ok' if finding.is_good else '--':3}{finding.name:14} {finding.found}")
        if not finding.is_good:
            print(f"{'':18}hint: {finding.remedy}")
    return 0 if all(finding.is_good for finding in findings) else USER_ERROR


def _spec(arguments: argparse.Namespace) -> spec.Spec | spec.TogetherSpec:
    """The spec file with what the command line says on top."""
    chosen = spec.load_any(arguments.spec)
    if isinstance(chosen, spec.Spec):
        return _with_options(arguments, chosen)
    for option in ("plan", "objective", "cpu", "memory"):
        if vars(arguments)[option] is not None:
            raise SpecError(
                f"option '--{option}' is for one query, and the spec has several",
                hint="write it below the query it is for: queries: {alerts: {plan: mjoin, limits: {cpu: 2}, …}}",
            )
    return chosen.each(partial(_with_options, arguments))


def _with_options(arguments: argparse.Namespace, chosen: spec.Spec) -> spec.Spec:
    wishes = chosen.wishes.with_limits(arguments.cpu, arguments.memory)
    if arguments.plan is not None:
        wishes = replace(wishes, plan=arguments.plan)
    if arguments.objective is not None:
        wishes = wishes.with_objective(arguments.objective)
    chosen = replace(chosen, wishes=wishes)
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


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise HostError(f"file '{path}' cannot be written", detail=str(error)) from error
    print(f"wrote {path}", file=sys.stderr)


def _parser(words: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="anabranch",
        description="Adaptive continuous queries over data streams, on Spark.",
        epilog=examples(
            """
            anabranch demo                                see it work, in about two minutes
            anabranch explain examples/orders.yaml        what would run, without running it
            anabranch run examples/orders.yaml            run it
            anabranch COMMAND --help                      options and examples of a command
            """
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"anabranch {anabranch.__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error and what Spark logs")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

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

    command = add_command(
        commands,
        "demo",
        "streams that drift and streams that are skewed, checked against the batch answers",
        """
        anabranch demo
        anabranch demo --seconds 20 --output /tmp/demo
        """,
    )
    command.add_argument("--output", type=Path, default=Path("demo-output"), metavar="DIR", help="where to write")
    command.add_argument(
        "--seconds", type=int, default=35, metavar="N", help="how long the first streams flow (default: 35)"
    )
    command.add_argument("--seed", type=int, default=1, metavar="N", help="which data to generate (default: 1)")
    _add_verbose(command)
    command.set_defaults(run=demonstrate)

    command = add_command(
        commands,
        "bench",
        "run the repository's benchmarks",
        """
        anabranch bench -- --list
        anabranch bench -- spark-w3 --quick
        """,
    )
    command.add_argument("rest", nargs="*", metavar="ARGUMENT", help="handed to the benchmarks; put -- before options")
    command.set_defaults(run=bench)

    command = add_command(
        commands,
        "calibrate",
        "measure what the engine's operations cost here, for choosing plans",
        """
        anabranch calibrate
        """,
    )
    command.add_argument("--seed", type=int, default=1, metavar="N", help="which data to measure with (default: 1)")
    command.set_defaults(run=calibrate)

    command = add_command(
        commands,
        "prepare",
        "make later starts quicker: compile the kernels, archive Spark's classes",
        """
        anabranch prepare
        """,
    )
    command.set_defaults(run=prepare_machine)

    command = add_command(
        commands, "doctor", "check Python, Java, Spark and memory of this machine", "anabranch doctor"
    )
    command.set_defaults(run=examine)

    for name, (home, purpose) in ROOMS.items():
        if name in words:
            import_module(home).add_arguments(commands)
        else:
            commands.add_parser(name, help=purpose)
    return parser


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
    _add_verbose(command)


def _add_verbose(command: argparse.ArgumentParser) -> None:
    command.add_argument("--verbose", action="store_true", help=f"show what Spark logs, as {VERBOSE}=1 does")
