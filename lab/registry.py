"""The frame of the lab: an experiment measures, and judges its measurements by conditions that can fail.

Invariant: an `Experiment` is two functions. `measure` runs and takes all its randomness from `Setting.seed`; `present`
is pure and turns measurements into a table, a picture and verdicts. A `Verdict` holds a claim, the measured figures and
at least one condition, so a claim without a condition cannot be written. Because `present` is pure, a test runs it on
doctored measurements and shows that every condition of every experiment can fail.

Limit: one seed gives one table, except for columns of wall-clock or processor time.

A module of this package that defines `EXPERIMENTS` (a sequence of `Experiment`) is found by name. Those in
`SPARK_VARIANTS` run on a cluster of this machine: `NAME-spark`, asked for with `--spark`. `perform` writes `NAME.csv`,
`NAME.png` and `NAME.txt` (the verdicts) into a folder.
"""

from __future__ import annotations

import csv
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from matplotlib.figure import Figure

import lab
from anabranch.errors import SpecError

Cell: TypeAlias = str | int | float
Measured = TypeVar("Measured")


class Case(Protocol):
    """A part of an experiment that has a name."""

    @property
    def name(self) -> str: ...


AnyCase = TypeVar("AnyCase", bound=Case)


def _nobody(line: str) -> None:
    pass


@dataclass(frozen=True)
class Setting:
    """The arguments of a run; `quick` asks for a smaller run of the same shape."""

    seed: int = 1
    quick: bool = False
    only: tuple[str, ...] = ()
    """The cases to run, of an experiment whose cases have names; all when empty."""
    report: Callable[[str], None] = field(default=_nobody, compare=False)
    """Takes a line for a person who waits."""

    def each(self, several: Sequence[AnyCase]) -> Iterator[AnyCase]:
        """Yields the cases, and reports each as it begins."""
        for number, case in enumerate(several, 1):
            self.report(f"{case.name}, {number} of {len(several)}")
            yield case


@dataclass(frozen=True)
class Verdict:
    """A claim of a paper (or a bar of our own), the figures of this run, and the conditions that decide.

    `conditions` maps each part of the claim, named by its bar, to whether the run reached it.

    >>> str(Verdict("40 % more rows", "35 % more", {"40 %": False}))
    'paper: 40 % more rows / here: 35 % more (MISSED: 40 %)'
    """

    paper: str
    here: str
    conditions: Mapping[str, bool]

    def __post_init__(self) -> None:
        if not self.conditions:
            raise ValueError(f"the verdict on '{self.paper}' has no condition; a text without one is a note")
        object.__setattr__(
            self, "conditions", MappingProxyType({part: bool(holds) for part, holds in self.conditions.items()})
        )

    @property
    def missed(self) -> tuple[str, ...]:
        """The parts of the claim that this run did not reach."""
        return tuple(part for part, holds in self.conditions.items() if not holds)

    def __str__(self) -> str:
        missed = f" (MISSED: {', '.join(self.missed)})" if self.missed else ""
        return f"paper: {self.paper} / here: {self.here}{missed}"


@dataclass(frozen=True)
class Outcome:
    """The presentation of one run; `draw` fills a figure of its own, `notes` say how the run was set up."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    draw: Callable[[Figure], None]
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.verdicts:
            raise ValueError("an experiment judges nothing")


@dataclass(frozen=True)
class Experiment(Generic[Measured]):
    """One figure, table or claim of a paper, made again."""

    name: str
    title: str
    measure: Callable[[Setting], Measured]
    present: Callable[[Measured], Outcome]
    cases: Callable[[], tuple[str, ...]] = tuple
    """The names of the cases that can be run by themselves."""

    def run(self, setting: Setting) -> Outcome:
        """Measures and presents."""
        known = self.cases() if setting.only else ()
        for name in setting.only:
            if name not in known:
                listed = f"one of {', '.join(known)}" if known else "leave --only out: it has no cases to choose from"
                raise SpecError(f"experiment '{self.name}' has no case '{name}'", hint=listed)
        return self.present(self.measure(setting))


def experiments() -> dict[str, Experiment[Any]]:
    """All experiments of the package, by name, in alphabetical order."""
    return _listed("EXPERIMENTS")


def spark_variants() -> dict[str, Experiment[Any]]:
    """The experiments that also run on Spark, in smaller sizes, by the name of the experiment."""
    return {name.removesuffix("-spark"): each for name, each in _listed("SPARK_VARIANTS").items()}


def _listed(attribute: str) -> dict[str, Experiment[Any]]:
    found: dict[str, Experiment[Any]] = {}
    for module in pkgutil.iter_modules(lab.__path__):
        defined = vars(importlib.import_module(f"{lab.__name__}.{module.name}"))
        listed: Sequence[Experiment[Any]] = defined.get(attribute, ())
        found.update((experiment.name, experiment) for experiment in listed)
    return dict(sorted(found.items()))


def find(name: str, *, on_spark: bool = False) -> Experiment[Any]:
    """The experiment of that name, or its variant on Spark; a SpecError that lists the names there are."""
    known = spark_variants() if on_spark else experiments()
    if name not in known:
        if on_spark and name in experiments():
            raise SpecError(f"experiment '{name}' has no variant on Spark", hint=f"these have: {', '.join(known)}")
        raise SpecError(f"no experiment '{name}'", hint=f"one of {', '.join(known)}, or all")
    return known[name]


def perform(experiment: Experiment[Any], setting: Setting, output: Path) -> Outcome:
    """Runs the experiment and writes its table, picture and verdicts into the folder."""
    outcome = experiment.run(setting)
    output.mkdir(parents=True, exist_ok=True)
    with (output / f"{experiment.name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(outcome.columns)
        writer.writerows(outcome.rows)
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    outcome.draw(figure)
    figure.savefig(output / f"{experiment.name}.png", dpi=120)
    lines = [experiment.title, *map(str, outcome.verdicts), *(f"note: {note}" for note in outcome.notes)]
    (output / f"{experiment.name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return outcome
