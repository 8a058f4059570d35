"""`python -m lab list | NAME | all`: runs the papers' experiments from a shell.

A figure that falls short is marked MISSED, and the last line counts the misses. The exit status is 0 all the same,
unless `--strict` asks for 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from anabranch.errors import AnabranchError
from anabranch.settings.commands import USER_ERROR, error_text, examples, writing
from lab.registry import Cell, Outcome, Setting, Verdict, experiments, find, perform, spark_variants

LONGEST_TABLE = 40
"""Rows shown in the terminal; the CSV has all of them."""
WIDEST_TABLE = 1_000
"""Characters of a line, where no terminal says how many."""


def main(words: list[str]) -> int:
    """Performs the experiments that the command line names and returns the exit status."""
    try:
        return _run(_parser().parse_args(words))
    except AnabranchError as error:
        print(error_text(error), file=sys.stderr)
        return USER_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab",
        description="Reproduce an experiment of the papers.",
        epilog=examples(
            """
            python -m lab list                              the experiments, by name
            python -m lab mesh-search-quality --quick       a smaller run of one experiment
            python -m lab all --quick --output results      all of them, in some minutes
            python -m lab place-npc --strict                exit status 1 if a figure is missed
            python -m lab balance-deciding --spark          plans and balance decided on two executors of this machine
            python -m lab regret --only swap --only skew    some cases of an experiment
            """
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("name", help="an experiment, 'list' or 'all'")
    parser.add_argument("--quick", action="store_true", help="a smaller run of the same shape")
    parser.add_argument("--spark", action="store_true", help="the variant on Spark, of the experiments that have one")
    parser.add_argument(
        "--only", action="append", default=[], metavar="CASE", help="run this case of the experiment; may be repeated"
    )
    parser.add_argument("--strict", action="store_true", help="exit with status 1 when a figure is missed")
    parser.add_argument(
        "--output", type=Path, default=Path("lab-output"), metavar="DIR", help="where to write tables and pictures"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="which data to draw (default: 1)")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    """Performs the experiments that the arguments name and prints tables and verdicts."""
    console = Console()
    if arguments.name == "list":
        for experiment in experiments().values():
            console.print(f"[bold]{experiment.name}[/bold]  {experiment.title}", highlight=False)
        return 0
    known = spark_variants() if arguments.spark else experiments()
    chosen = list(known.values()) if arguments.name == "all" else [find(arguments.name, on_spark=arguments.spark)]
    setting = Setting(arguments.seed, arguments.quick, tuple(arguments.only))
    with writing(arguments.output):
        arguments.output.mkdir(exist_ok=True)
    verdicts: list[Verdict] = []
    for experiment in chosen:
        with _waiting(experiment.name) as report:
            outcome = perform(experiment, replace(setting, report=report), arguments.output)
        _show(console, _table(experiment.title, outcome))
        for verdict in outcome.verdicts:
            console.print(str(verdict), style="yellow" if verdict.missed else None, highlight=False, markup=False)
        for note in outcome.notes:
            console.print(f"note: {note}", style="dim", highlight=False, markup=False)
        console.print(f"written to {arguments.output / experiment.name}.csv, .png, .txt", highlight=False)
        verdicts += outcome.verdicts
    missed = sum(bool(verdict.missed) for verdict in verdicts)
    console.print(f"{len(verdicts)} verdicts, {f'{missed} of them MISSED' if missed else 'none missed'}")
    return int(arguments.strict and missed > 0)


@contextmanager
def _waiting(name: str) -> Iterator[Callable[[str], None]]:
    """Shows, beside the output, what an experiment is doing and for how long: a line that moves, or a line a case."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{name} begins", highlight=False, markup=False)
        yield lambda line: console.print(f"{name}: {line}", highlight=False, markup=False)
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(name, total=None)
        yield lambda line: progress.update(task, description=f"{name}: {line}")


def _show(console: Console, table: Table) -> None:
    """Prints a table; into a file or pipe as wide as it is, so that nothing is cut off."""
    if console.is_terminal:
        console.print(table)
        return
    whole = Measurement.get(console, console.options.update(max_width=WIDEST_TABLE), table).maximum
    Console(file=console.file, width=max(whole, console.width)).print(table)


def _table(title: str, outcome: Outcome) -> Table:
    table = Table(title=title)
    for column in outcome.columns:
        table.add_column(column)
    for row in outcome.rows[:LONGEST_TABLE]:
        table.add_row(*(_text(cell) for cell in row))
    return table


def _text(cell: Cell) -> str:
    return f"{cell:,.4g}" if isinstance(cell, float) else str(cell)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
