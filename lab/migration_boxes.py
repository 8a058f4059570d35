"""One box against several (Zhu 2006, 26.2): a change of plan made at once, or box by box.

The dissertation asks which of the two has less overhead, for moving state and for parallel track, and whether it
matters that boxes overlap. Boxes that do not overlap change one after another by the product's own `box_by_box`. Boxes
that overlap are the steps of an optimizer that exchanges two joins at a time: the plans on the way are changed to in
turn. Fan-outs are the same from both ends of a chain, so the old plan and the new one cost about the same, and what is
left is the price of the change.

All figures are counts: work at the engine's unit costs, rows in states, batches. The longest batch is the one with most
work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from matplotlib.figure import Figure

from anabranch.migrate.itinerary import box_by_box
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.text import parse
from lab.policy_runs import Course, Walk
from lab.policy_workloads import chain_of
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict
from lab.regret_workloads import WINDOW, Size, Workload

CHANGE_AT = 2 * WINDOW + 4
"""Batches until all states are full."""
FULL, QUICK = Size(batches=CHANGE_AT + 6 * WINDOW, rows=2_000), Size(batches=CHANGE_AT + 6 * WINDOW, rows=400)
STRATEGIES = ("moving-state", "parallel-track", "spread")
AT_ONCE, STEPWISE = "at once", "box by box"
ROOM = 0.15
"""How far a share may be off what equal boxes let expect."""


@dataclass(frozen=True)
class Case:
    """Two plans of a chain, and the plans between them where boxes overlap."""

    name: str
    streams: str
    old: str
    new: str
    fan_outs: tuple[float, ...]
    between: tuple[str, ...] = ()

    @property
    def is_overlapping(self) -> bool:
        return bool(self.between)

    @property
    def steps(self) -> tuple[PhysicalPlan, ...]:
        """The plans to go through, the last of them the new one."""
        if self.between:
            return (*map(parse, self.between), parse(self.new))
        return box_by_box(parse(self.old), parse(self.new))

    def workload(self, batches: int) -> Workload:
        return chain_of(self.name, self.streams, [self.fan_outs] * batches)


CASES = (
    Case(
        "two boxes",
        "abcdef",
        "(((a b) c) ((d e) f))",
        "((a (b c)) (d (e f)))",
        (1.5, 1.5, 0.3, 1.5, 1.5),
    ),
    Case(
        "three boxes",
        "abcdefghi",
        "(((a b) c) ((d e) f) ((g h) i))",
        "((a (b c)) (d (e f)) (g (h i)))",
        (1.5, 1.5, 0.3, 1.5, 1.5, 0.3, 1.5, 1.5),
    ),
    Case(
        "overlapping",
        "abcd",
        "(((a b) c) d)",
        "(a (b (c d)))",
        (1.5, 1.2, 1.5),
        ("((a (b c)) d)", "(a ((b c) d))"),
    ),
)


@dataclass(frozen=True)
class Changed:
    """One way of changing, from the batch with the change on; amounts are in median batches of the old plan."""

    longest: float
    beyond: float
    """Work beyond what the new plan takes for the same batches."""
    batches: int
    """Batches in which the plan was changing."""
    most_rows: float
    """The most rows in states while it changed, over the most that the old or the new plan has at any such time."""
    has_arrived: bool
    is_same: bool
    """Whether the run had the results that it has without the change."""

    @property
    def excess(self) -> float:
        """What the longest batch takes beyond a median one."""
        return self.longest - 1

    @property
    def more_rows(self) -> float:
        """The share of rows beside those of a plan that stays."""
        return self.most_rows - 1


@dataclass(frozen=True)
class Found:
    """The ways of changing, by case and then by strategy and way."""

    ways: Mapping[str, Mapping[tuple[str, str], Changed]]


def measure(setting: Setting) -> Found:
    size = QUICK if setting.quick else FULL
    chosen = [case for case in CASES if not setting.only or case.name in setting.only]
    return Found({case.name: _measured(case, setting.seed, size) for case in setting.each(chosen)})


def cases() -> tuple[str, ...]:
    return tuple(case.name for case in CASES)


def _measured(case: Case, seed: int, size: Size) -> dict[tuple[str, str], Changed]:
    workload = case.workload(size.batches)
    query, old, new = workload.query, parse(case.old), parse(case.new)
    still = {plan: Walk(query, plan, workload.batch) for plan in (old, new)}
    walks = {
        (strategy, way): Walk(query, old, workload.batch) for strategy in STRATEGIES for way in (AT_ONCE, STEPWISE)
    }
    ahead = {(strategy, way): list(case.steps if way == STEPWISE else (new,)) for strategy, way in walks}
    for number, batch in enumerate(workload.batches(seed, size)):
        for walk in still.values():
            walk.step(batch)
        for key, walk in walks.items():
            if number >= CHANGE_AT:
                _go_on(walk, key, ahead[key], case.is_overlapping)
            walk.step(batch)
    return {key: _changed(walk.course, still[old].course, still[new].course, case.new) for key, walk in walks.items()}


def _go_on(walk: Walk, key: tuple[str, str], ahead: list[PhysicalPlan], is_overlapping: bool) -> None:
    """Asks for the next plan once the one before is in force; boxes that do not overlap are all asked for at once."""
    strategy, way = key
    if not ahead or walk.host.steering.is_changing:
        return
    if is_overlapping or way == AT_ONCE:
        walk.host.migrate(ahead.pop(0), strategy)
    else:
        walk.host.migrate(ahead[-1], strategy, box_by_box=True)
        ahead.clear()


def _changed(course: Course, old: Course, new: Course, arrived: str) -> Changed:
    usual = median(each.work for each in old.batches[CHANGE_AT:])
    after = course.batches[CHANGE_AT:]
    during = [place for place, each in enumerate(after) if each.is_changing]
    most = max(
        each.state_rows for stays in (old, new) for place in during for each in [stays.batches[CHANGE_AT + place]]
    )
    return Changed(
        max(after[place].work for place in during) / usual,
        (sum(each.work for each in after) - sum(each.work for each in new.batches[CHANGE_AT:])) / usual,
        len(during),
        max(after[place].state_rows for place in during) / most,
        after[-1].plan == arrived and not after[-1].is_changing,
        (course.results, course.answer) == (old.results, old.answer) == (new.results, new.answer),
    )


# --- judging ----------------------------------------------------------------------------------------------------------


def present(found: Found) -> Outcome:
    rows: list[tuple[Cell, ...]] = [
        (name, *key, each.longest, each.beyond, each.batches, each.most_rows)
        for name, ways in found.ways.items()
        for key, each in ways.items()
    ]
    columns = ("case", "strategy", "way", "longest batch", "work beyond", "batches", "most rows")
    notes = (
        "longest batch and work beyond the new plan's are in median batches of the old plan; all figures are counts",
        "most rows: while the plan changes, over the most that the old or the new plan holds at such a time",
    )
    return Outcome(columns, tuple(rows), lambda figure: _draw(figure, found), tuple(_verdicts(found)), notes)


def _verdicts(found: Found) -> list[Verdict]:
    verdicts = [
        verdict for case in CASES if case.name in found.ways for verdict in _of_case(case, found.ways[case.name])
    ]
    several = [each for ways in found.ways.values() for each in ways.values()]
    return [
        *verdicts,
        Verdict(
            "every run arrives at the new plan, with the results that it has without the change",
            f"{sum(each.has_arrived and each.is_same for each in several)} of {len(several)}",
            {
                "arrives": all(each.has_arrived for each in several),
                "the same results": all(each.is_same for each in several),
            },
        ),
    ]


def _of_case(case: Case, ways: Mapping[tuple[str, str], Changed]) -> Sequence[Verdict]:
    if case.is_overlapping:
        beyond = {each: (ways[each, AT_ONCE].beyond, ways[each, STEPWISE].beyond) for each in STRATEGIES}
        return (
            Verdict(
                f"{case.name}: which has less overhead, the same for both strategies? (26.2.2; our guess: at once)",
                "; ".join(f"{name} {one:.2f} at once, {steps:.2f} stepwise" for name, (one, steps) in beyond.items()),
                {f"{name}: at once": one < steps for name, (one, steps) in beyond.items()},
            ),
        )
    share = 1 / len(case.steps) + ROOM
    moving, moved = (ways["moving-state", way] for way in (AT_ONCE, STEPWISE))
    parallel, tracks = (ways["parallel-track", way] for way in (AT_ONCE, STEPWISE))
    spread, filled = (ways["spread", way] for way in (AT_ONCE, STEPWISE))
    lasting = tracks.batches / parallel.batches
    return (
        Verdict(
            f"{case.name}, moving state: box by box, pauses are shorter and no more is computed (26.2; our own bar)",
            f"the longest batch takes {moving.longest:.2f} median batches at once and {moved.longest:.2f} box by box; "
            f"work beyond the new plan's {moving.beyond:.2f} and {moved.beyond:.2f}",
            {
                f"excess at most {share:.2f} of that at once": moved.excess <= share * moving.excess,
                "no more work, within 5 %": moved.beyond <= 1.05 * moving.beyond,
            },
        ),
        Verdict(
            f"{case.name}, parallel track: less is held at a time, at the price of lasting longer (26.2; our own bar)",
            f"{parallel.more_rows:+.0%} rows at once, {tracks.more_rows:+.0%} box by box, {lasting:.2f} times as long; "
            f"work beyond the new plan's {parallel.beyond:.2f} and {tracks.beyond:.2f}",
            {
                f"rows beside at most {share:.2f} of those at once": tracks.more_rows <= share * parallel.more_rows,
                "lasts longer": lasting > 1,
                "no more work, within 5 %": tracks.beyond <= 1.05 * parallel.beyond,
            },
        ),
        Verdict(
            f"{case.name}, spread: box by box, fewer new states are kept up at a time (the rule of the product)",
            f"work beyond the new plan's {spread.beyond:.2f} at once and {filled.beyond:.2f} box by box, "
            f"{spread.more_rows:+.0%} and {filled.more_rows:+.0%} rows, {spread.batches} and {filled.batches} batches",
            {
                "less work": filled.beyond < spread.beyond,
                "fewer rows": filled.more_rows < spread.more_rows,
                "no longer batch": filled.longest <= spread.longest,
            },
        ),
    )


def _draw(figure: Figure, found: Found) -> None:
    panels = figure.subplots(2, len(found.ways), squeeze=False)
    for column, (name, ways) in enumerate(found.ways.items()):
        places = range(len(STRATEGIES))
        for shift, way in ((-0.2, AT_ONCE), (0.2, STEPWISE)):
            at = [place + shift for place in places]
            panels[0][column].bar(at, [ways[each, way].longest for each in STRATEGIES], 0.4, label=way)
            panels[1][column].bar(at, [ways[each, way].beyond for each in STRATEGIES], 0.4, label=way)
        panels[0][column].set(title=name)
        for axes in (panels[0][column], panels[1][column]):
            axes.set_xticks(list(places), STRATEGIES, fontsize=7)
    panels[0][0].set(ylabel="longest batch, in medians")
    panels[1][0].set(ylabel="work beyond the new plan's, in medians")
    panels[0][0].legend()


EXPERIMENTS = (Experiment("migration-boxes", "One migration box or several (Zhu 2006, 26.2)", measure, present, cases),)
