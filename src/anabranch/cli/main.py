"""The command `anabranch`: run and explain continuous queries from a shell.

A user error prints `error: …` with the cause and a hint, and exits with status 2; `--debug` shows the traceback.
Commands import their packages when they run, so that `explain` and `--help` need neither Spark nor Java.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import subprocess
import sys
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

import anabranch
from anabranch.cli import doctor
from anabranch.cost.units import ENGINE
from anabranch.errors import AnabranchError, HostError, InvariantBroken
from anabranch.lang.sizes import size_text
from anabranch.planning.calibration import calibration_file, save_units
from anabranch.settings.commands import USER_ERROR, add_command, error_text, examples
from anabranch.spark.quiet import VERBOSE
from anabranch.spec import change_commands, explain_command, run_command
from anabranch.telemetry.logs import is_json, json_lines, log_event

COMMANDS_BY_PACKAGE = {
    "adopt": (
        "anabranch.spec.adopting",
        "continue from the checkpoint of a stopped Spark query with a stream-stream inner join",
    ),
    "branch": (
        "anabranch.spec.branching",
        "run a changed query beside the old one on a copy of its state; compare them; take over or discard it",
    ),
    "checkpoint": ("anabranch.checkpoint.command", "inspect, verify or copy a checkpoint"),
    "console": ("anabranch.console.command", "show the history of a checkpoint in the browser"),
    "place": ("anabranch.place.command", "plan queries over a network of sites"),
    "deploy": ("anabranch.sites.command", "run queries over a network of sites"),
    "site": ("anabranch.sites.site_command", "run one site of a deployment"),
}
"""Commands of other packages; a package is imported only if its command is on the command line."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    logs_json = False
    try:
        parsed = _parser(words).parse_args(words)
        logs_json = "log" in vars(parsed) and is_json(parsed.log)
        if logs_json:
            json_lines(sys.stderr)
        if parsed.debug or vars(parsed).get("verbose"):
            os.environ[VERBOSE] = "1"
        status: int = parsed.run(parsed)
        sys.stdout.flush()
        return status
    except AnabranchError as error:
        if "--debug" in words or isinstance(error, InvariantBroken):
            raise
        if logs_json:
            log_event("error", logging.ERROR, kind=type(error).__name__, message=str(error))
            return USER_ERROR
        print(error_text(error), file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        if not _is_output_closed():
            raise
        return 128 + signal.SIGPIPE


def _is_output_closed() -> bool:
    """Returns True if nobody reads the output any more, as after `| head`; Python's last flush is then quiet."""
    output, reader = sys.stdout.fileno(), select.poll()
    reader.register(output, 0)
    if not reader.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return True


def prepare_machine(arguments: argparse.Namespace) -> int:
    """Compiles the kernels and archives Spark's classes, to make later starts faster."""
    # Imported here because it needs pyspark and loads every kernel.
    from anabranch.cli.prepare import compile_kernels, make_archive

    with Console(stderr=True).status("compiling the kernels"):
        compile_kernels()
    with Console(stderr=True).status("archiving Spark's classes, by running two small queries; about half a minute"):
        file = make_archive()
    print(f"Spark's classes are in {file} ({size_text(file.stat().st_size)})")
    return 0


def calibrate(arguments: argparse.Namespace) -> int:
    """Measures the engine's operations and Spark's own work on this machine, and stores the unit costs."""
    # Imported here because it loads the engine and its kernels.
    from anabranch.calibrate.engine_costs import calibrate as measure

    with_spark = not arguments.no_spark and find_spec("pyspark") is not None
    long = "three minutes" if with_spark else "ten seconds"
    print(f"measuring for about {long}; the machine should be idle otherwise", file=sys.stderr)
    units, host = measure(arguments.seed), None
    for name, value in asdict(units).items():
        if isinstance(value, float) and not name.endswith("bytes"):
            usual = getattr(ENGINE, name)
            print(f"{name:16}{1e9 * value:10.1f} ns   ({1e9 * usual:.1f} on an ordinary machine)")
    if with_spark:
        # Imported here because it needs pyspark.
        from anabranch.calibrate.spark_costs import described, measure_spark

        host = measure_spark(units, arguments.seed)
        print("\n".join(["Spark:", *described(host)]))
    elif not arguments.no_spark:
        print("pyspark is not installed: only the engine was measured", file=sys.stderr)
    file = calibration_file()
    try:
        save_units(units, file, host)
    except OSError as error:
        raise HostError(f"the calibration cannot be kept in '{file}'", detail=str(error)) from error
    print(f"stored in {file}", file=sys.stderr)
    return 0


def bench(arguments: argparse.Namespace) -> int:
    """Runs the benchmarks of the repository."""
    if not Path("benchmarks/__main__.py").is_file():
        raise HostError(
            "no benchmarks in this folder",
            detail="they belong to the repository, not to the installed package",
            hint="run the command, or 'make bench', in a clone of the repository",
        )
    return subprocess.run([sys.executable, "-m", "benchmarks", *arguments.rest], check=False).returncode


def examine(arguments: argparse.Namespace) -> int:
    """Checks the machine and prints the findings."""
    findings = doctor.examine()
    for finding in findings:
        print(f"{'ok' if finding.is_good else '--':3}{finding.name:14} {finding.found}")
        if not finding.is_good:
            print(f"{'':18}hint: {finding.remedy}")
    return 0 if all(finding.is_good for finding in findings) else USER_ERROR


def _parser(words: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="anabranch",
        description="Adaptive continuous queries over data streams, on Spark.",
        epilog=examples(
            """
            anabranch explain examples/orders.yaml        what would run, without running it
            anabranch run examples/orders.yaml            run it
            anabranch COMMAND --help                      options and examples of a command
            """
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"anabranch {anabranch.__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error, and Spark's log")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    run_command.add_arguments(commands)
    explain_command.add_arguments(commands)
    change_commands.add_arguments(commands)

    command = add_command(
        commands,
        "bench",
        "run the repository's benchmarks",
        """
        anabranch bench -- --list
        anabranch bench -- spark-w3 --quick
        """,
    )
    command.add_argument("rest", nargs="*", metavar="ARGUMENT", help="for the benchmarks; write -- before options")
    command.set_defaults(run=bench)

    command = add_command(
        commands,
        "calibrate",
        "measure the engine's operations and Spark's own work on this machine, for choosing plans and keeping limits",
        """
        anabranch calibrate
        anabranch calibrate --no-spark      the engine alone; what was measured of Spark before stays
        """,
    )
    command.add_argument("--no-spark", action="store_true", help="measure the engine alone, in about ten seconds")
    command.add_argument("--seed", type=int, default=1, metavar="N", help="the seed of the generated data (default: 1)")
    command.set_defaults(run=calibrate)

    command = add_command(
        commands,
        "prepare",
        "make later starts faster: compile the kernels, archive Spark's classes",
        """
        anabranch prepare
        """,
    )
    command.set_defaults(run=prepare_machine)

    command = add_command(
        commands, "doctor", "check Python, Java, Spark and the memory of this machine", "anabranch doctor"
    )
    command.set_defaults(run=examine)

    for name, (home, purpose) in COMMANDS_BY_PACKAGE.items():
        if name in words:
            import_module(home).add_arguments(commands)
        else:
            commands.add_parser(name, help=purpose)
    return parser
