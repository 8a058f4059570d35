"""The frame of the lab: an experiment is a seeded function that returns a table, a picture and verdicts.

A module of this package that defines `EXPERIMENTS` (a sequence of `Experiment`) is found by name; nothing has to be
listed twice. `perform` writes `NAME.csv`, `NAME.png` and `NAME.txt` (the verdicts) into a folder. An experiment takes
all its randomness from `Setting.seed`, so the same seed gives the same table, except for columns of wall-clock time.
"""

from __future__ import annotations

import csv
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import anabranch.lab
from anabranch.errors import HostError, SpecError

try:
    from matplotlib.figure import Figure
except ImportError as missing:
    raise HostError("the lab needs matplotlib", hint="pip install 'anabranch[lab]'") from missing

Cell: TypeAlias = str | int | float


@dataclass(frozen=True)
class Setting:
    """What a run may depend on; `quick` asks for a smaller run of the same shape."""

    seed: int = 1
    quick: bool = False


@dataclass(frozen=True)
class Verdict:
    """What the paper reports and what this run saw, in words with numbers."""

    paper: str
    here: str

    def __str__(self) -> str:
        return f"paper: {self.paper} / here: {self.here}"


def misses(reached: Mapping[str, bool]) -> str:
    """What a verdict says of the parts of a claim that this run did not reach; nothing if it reached all of them.

    >>> misses({"throughput": True, "rows": False, "bytes": False})
    ' (MISSED: rows, bytes)'
    """
    missed = [part for part, was_reached in reached.items() if not was_reached]
    return f" (MISSED: {', '.join(missed)})" if missed else ""


@dataclass(frozen=True)
class Outcome:
    """The result of one run; `draw` fills a figure of its own."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    draw: Callable[[Figure], None]
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True)
class Experiment:
    """One figure, table or claim of a paper, made again."""

    name: str
    title: str
    run: Callable[[Setting], Outcome]


def experiments() -> dict[str, Experiment]:
    """All experiments of the package, by name, in alphabetical order."""
    found: dict[str, Experiment] = {}
    for module in pkgutil.iter_modules(anabranch.lab.__path__):
        listed: Sequence[Experiment] = getattr(
            importlib.import_module(f"{anabranch.lab.__name__}.{module.name}"), "EXPERIMENTS", ()
        )
        found.update((experiment.name, experiment) for experiment in listed)
    return dict(sorted(found.items()))


def find(name: str) -> Experiment:
    """The experiment of that name, or a SpecError that lists the names there are."""
    known = experiments()
    if name not in known:
        raise SpecError(f"no experiment '{name}'", hint=f"one of {', '.join(known)}, or all")
    return known[name]


def perform(experiment: Experiment, setting: Setting, output: Path) -> Outcome:
    """Runs the experiment and leaves its table, picture and verdicts in the folder."""
    outcome = experiment.run(setting)
    output.mkdir(parents=True, exist_ok=True)
    with (output / f"{experiment.name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(outcome.columns)
        writer.writerows(outcome.rows)
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    outcome.draw(figure)
    figure.savefig(output / f"{experiment.name}.png", dpi=120)
    verdicts = "".join(f"{verdict}\n" for verdict in outcome.verdicts)
    (output / f"{experiment.name}.txt").write_text(f"{experiment.title}\n{verdicts}", encoding="utf-8")
    return outcome
