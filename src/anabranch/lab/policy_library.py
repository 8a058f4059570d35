"""The library of plans, on and off (query logging, Zhu 2006, 26.1.4): does remembering plans by their statistics pay?

The dissertation expects a library to be highly efficient where the number of combinations of statistics is not large.
The same streams go through the product's loop with its library and without one, batch by batch in turn: periodic
change, which brings the same statistics again, and random change, which does not; three streams, for which a search
takes a few milliseconds, and eight.

A library can save searches and the time they take. It changes no price: what it proposes is weighed like what an
optimizer proposes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from anabranch.adapt.settings import Settings
from anabranch.lab.policy_runs import Course, Walk, adapting, first_plan, walked
from anabranch.lab.policy_workloads import FIRST, Pattern, chain_of
from anabranch.lab.registry import Cell, Experiment, Outcome, Setting, Verdict
from anabranch.lab.regret_workloads import Size, Workload

FULL, QUICK = Size(batches=480, rows=4_000), Size(batches=240, rows=1_500)
EIGHT = "abcdefgh"
ONE_END = (0.2, 1.5, 1.5, 1.0, 1.0, 1.5, 4.0)
"""Fan-outs of eight streams: selective at one end, and in the next phase at the other."""
ON, OFF = "on", "off"
SMALL, LARGE = 3, 8
OFTEN = 0.5
"""The share of decisions that the library is to serve where statistics come again."""
ALIKE = 0.02
LESS = 0.75
"""What the library is to leave of the time of deciding, where a search is long."""


@dataclass(frozen=True)
class Remembered:
    """A workload with the library and without."""

    name: str
    streams: int
    comes_again: bool
    """Whether the same statistics come again and again."""
    on: Course
    off: Course

    @property
    def share(self) -> float:
        """The share of the decisions for which the library had a plan."""
        return self.on.remembered / max(1, self.on.remembered + self.on.searches)

    @property
    def is_exact(self) -> bool:
        return (self.on.results, self.on.answer) == (self.off.results, self.off.answer)


def workloads(seed: int, size: Size) -> list[tuple[Workload, int, bool]]:
    """The streams, how many they are, and whether their statistics come again."""
    found = [
        (pattern.workload(seed, size.batches), SMALL, pattern.change != "random")
        for pattern in (Pattern("periodic", 2.0), Pattern("periodic", 4.0), Pattern("random", 2.0))
    ]
    phases = Pattern("periodic", 4.0).fan_outs(seed, size.batches)
    long = [ONE_END if each == FIRST else ONE_END[::-1] for each in phases]
    return [*found, (chain_of("periodic 4 W, eight streams", EIGHT, long), LARGE, True)]


def measure(setting: Setting) -> list[Remembered]:
    size = QUICK if setting.quick else FULL
    found = []
    for workload, streams, comes_again in workloads(setting.seed, size):
        width = size.rows if streams == SMALL else size.rows // 3
        rows = list(workload.batches(setting.seed, Size(size.batches, width)))
        query = workload.query
        first = first_plan(query, workload, rows)
        walks = {
            way: Walk(query, first, workload.batch, adapting(Settings()), remembers=way == ON) for way in (ON, OFF)
        }
        courses = walked(walks, rows)
        found.append(Remembered(workload.name, streams, comes_again, courses[ON], courses[OFF]))
    return found


def present(found: Sequence[Remembered]) -> Outcome:
    rows: list[tuple[Cell, ...]] = [
        (
            each.name,
            way,
            course.work,
            course.changes,
            course.searches,
            course.remembered,
            course.deciding,
            course.deciding / len(course.batches) * 1e3,
        )
        for each in found
        for way, course in ((ON, each.on), (OFF, each.off))
    ]
    columns = ("workload", "library", "work", "changes", "searches", "from library", "deciding s", "ms a batch")
    notes = (
        "deciding is wall clock, so it depends on the machine and on what else it does; runs alternate batch by batch",
        "decisions for the plan that was best over all phases count neither as searches nor as the library's",
    )
    return Outcome(columns, tuple(rows), lambda figure: _draw(figure, found), _verdicts(found), notes)


def _verdicts(found: Sequence[Remembered]) -> tuple[Verdict, ...]:
    again = [each for each in found if each.comes_again]
    never = [each for each in found if not each.comes_again]
    shares = ", ".join(f"{each.name} {each.share:.0%}" for each in found)
    works = {each.name: each.on.work / each.off.work - 1 for each in found}
    long = [each for each in found if each.streams == LARGE]
    spent = {each.name: each.on.deciding / each.off.deciding for each in long}
    return (
        Verdict(
            "efficient if the number of combinations of statistics is not large (26.1.4)",
            f"decisions that the library served: {shares}",
            {
                f"{OFTEN:.0%} where statistics come again": all(each.share >= OFTEN for each in again),
                "fewer at random": max(each.share for each in never) < min(each.share for each in again),
            },
        ),
        Verdict(
            f"a search saved: the time of deciding shrinks to {LESS:.0%} where a search is long (our own bar)",
            ", ".join(
                f"{each.name}: {each.on.deciding:.2f} s with the library, {each.off.deciding:.2f} s without"
                for each in long
            ),
            {f"{name}: {LESS:.0%}": value <= LESS for name, value in spent.items()},
        ),
        Verdict(
            f"the library changes the work by {ALIKE:.0%} at most (our own bar)",
            ", ".join(f"{name} {value:+.1%}" for name, value in works.items()),
            {name: abs(value) <= ALIKE for name, value in works.items()},
        ),
        Verdict(
            "both runs of a workload have the same results",
            f"in {sum(each.is_exact for each in found)} of {len(found)} workloads",
            {"the same results": all(each.is_exact for each in found)},
        ),
    )


def _draw(figure: Figure, found: Sequence[Remembered]) -> None:
    left, right = figure.subplots(1, 2)
    places = range(len(found))
    for shift, way in ((-0.2, ON), (0.2, OFF)):
        courses = [each.on if way == ON else each.off for each in found]
        at = [place + shift for place in places]
        left.bar(at, [course.searches for course in courses], 0.4, label=way)
        right.bar(at, [course.deciding for course in courses], 0.4, label=way)
    for axes, what in ((left, "searches of the optimizer"), (right, "seconds of deciding")):
        axes.set_xticks(list(places), [each.name for each in found], rotation=30, ha="right", fontsize=7)
        axes.set_ylabel(what)
    left.legend(title="library")


EXPERIMENTS = (Experiment("policies-library", "The library of plans, on and off (Zhu 2006, 26.1.4)", measure, present),)
