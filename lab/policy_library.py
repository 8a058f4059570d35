"""The library of plans, on and off (query logging, Zhu 2006, 26.1.4): does remembering plans by their statistics pay?

The dissertation expects a library to be highly efficient where the number of combinations of statistics is not large.
The same streams go through the product's loop with its library and without one, batch by batch in turn: periodic
change, which brings the same statistics again, and random change, which does not; three streams, for which a search
takes a few milliseconds, and eight.

A library can save searches and the time they take. It changes no price: what it proposes is weighed like what an
optimizer proposes. So what it saves is the number of searches that it spares, which is counted, times the processor
time of one, which is measured by itself: in whole runs so little is lost in noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import process_time

from matplotlib.figure import Figure

from anabranch.adapt.settings import Settings
from anabranch.optimize.choice import choose
from anabranch.plan.query import Query
from lab.policy_runs import Course, Rows, Walk, adapting, first_plan, walked
from lab.policy_workloads import FIRST, Pattern, chain_of
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict
from lab.regret_runs import SAMPLED, sample_of
from lab.regret_workloads import Size, Workload

FULL, QUICK = Size(batches=400, rows=3_000), Size(batches=240, rows=1_500)
EIGHT = "abcdefgh"
ONE_END = (0.2, 1.5, 1.5, 1.0, 1.0, 1.5, 4.0)
"""Fan-outs of eight streams: selective at one end, and in the next phase at the other."""
ON, OFF = "on", "off"
SMALL, LARGE = 3, 8
OFTEN = 0.5
"""The share of decisions that the library is to serve where statistics come again."""
ALIKE = 0.02
WORTH = 0.01
"""The share of a query's processor time that the library is to save, where a search is long: as much as deciding may
take in the regret suite where nothing changes."""
TIMES = 5
"""How often a search is measured."""


@dataclass(frozen=True)
class Remembered:
    """A workload with the library and without."""

    name: str
    streams: int
    comes_again: bool
    """Whether the same statistics come again and again."""
    on: Course
    off: Course
    search: float
    """Processor seconds of one search."""

    @property
    def saved(self) -> float:
        """The share of the processor time that the spared searches would have taken."""
        return (self.off.searches - self.on.searches) * self.search / self.off.cpu

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
        search = _search(query, workload, rows)
        found.append(Remembered(workload.name, streams, comes_again, courses[ON], courses[OFF], search))
    return found


def _search(query: Query, workload: Workload, rows: Rows) -> float:
    """Processor seconds of a search, the median of some; the first one, which loads and compiles, does not count."""
    seen = sample_of(query, rows[:SAMPLED], workload.batch).statistics
    seconds = []
    for _ in range(TIMES + 1):
        started = process_time()
        choose(query.graph, seen, batch=workload.batch)
        seconds.append(process_time() - started)
    return median(seconds[1:])


def present(found: Sequence[Remembered]) -> Outcome:
    rows: list[tuple[Cell, ...]] = [
        (
            each.name,
            way,
            course.work,
            course.changes,
            course.searches,
            course.remembered,
            course.searches * each.search,
            course.deciding,
            course.cpu,
        )
        for each in found
        for way, course in ((ON, each.on), (OFF, each.off))
    ]
    columns = (
        "workload",
        "library",
        "work",
        "changes",
        "searches",
        "from library",
        "searching s",
        "deciding s",
        "cpu s",
    )
    notes = (
        "searching is processor time: searches times that of one; deciding is wall clock, with weighing and measuring",
        "decisions for the plan that was best over all phases count neither as searches nor as the library's",
    )
    return Outcome(columns, tuple(rows), lambda figure: _draw(figure, found), _verdicts(found), notes)


def _verdicts(found: Sequence[Remembered]) -> tuple[Verdict, ...]:
    again = [each for each in found if each.comes_again]
    never = [each for each in found if not each.comes_again]
    shares = ", ".join(f"{each.name} {each.share:.0%}" for each in found)
    works = {each.name: each.on.work / each.off.work - 1 for each in found}
    long = [each for each in found if each.streams == LARGE]
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
            f"it pays: {WORTH:.0%} of the processor time is saved where a search is long (our own bar)",
            ", ".join(
                f"{each.name}: {each.off.searches - each.on.searches} of {each.off.searches} searches of "
                f"{each.search * 1e3:.1f} ms are spared, {each.saved:.2%} of the processor time"
                for each in found
            ),
            {f"{each.name}: {WORTH:.0%}": each.saved >= WORTH for each in long},
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
        seconds = [course.searches * each.search for course, each in zip(courses, found, strict=True)]
        right.bar(at, [1e3 * spent for spent in seconds], 0.4, label=way)
    for axes, what in ((left, "searches of the optimizer"), (right, "milliseconds of searching")):
        axes.set_xticks(list(places), [each.name for each in found], rotation=30, ha="right", fontsize=7)
        axes.set_ylabel(what)
    left.legend(title="library")


EXPERIMENTS = (Experiment("policies-library", "The library of plans, on and off (Zhu 2006, 26.1.4)", measure, present),)
