"""Intermediate rows and output around a migration: Zhu 2006, Section 16.3, Figures 16.5-16.8 (Table 16.1).

Streams arrive for fifty seconds, the plan is changed after ten. One server works through the rows in order, on the
virtual clock: the paper's machine could not keep up with the old plan in the high configuration, this one could. What
is charged per pair is free, as the paper does not print it, and set so that the high configuration overloads the old
plan and not the new one. Moving state first computes the states it lacks, during which nothing comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from matplotlib.figure import Figure

from anabranch.engine.engine import Engine
from lab.migration_common import COMPARE, INSERT, NEW, OLD, Configuration, Feed, charged, steps
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

CONFIGURATIONS = {
    "low": Configuration(1000.0, dict.fromkeys("abcd", 100.0), (0.1, 0.02, 0.02)),
    "high": Configuration(2000.0, dict.fromkeys("abcd", 50.0), (0.2, 0.05, 0.05)),
}
CASES: Mapping[str, tuple[str, str | None]] = {
    "moving state": (str(OLD), "moving-state"),
    "parallel track": (str(OLD), "parallel-track"),
    "old only": (str(OLD), None),
    "new only": (str(NEW), None),
}
START = 10.0
SLICE = 0.02
"""Seconds of event time that the server takes at once."""
BIN = 1.0
ZOOM = 0.6
"""Seconds shown before and after the change."""


@dataclass(frozen=True)
class Moment:
    """The server after one slice; times are seconds on the virtual clock."""

    arrived: float
    done: float
    results: int
    """Results of this slice."""
    intermediate: int
    is_migrating: bool


@dataclass(frozen=True)
class Course:
    """One case from its beginning to its end."""

    moments: tuple[Moment, ...]
    silence: float
    """Seconds that the change itself took, in which nothing came out."""
    began: float
    """When the plan was changed; infinity when it was not."""

    @property
    def ended(self) -> float:
        """When the migration was over."""
        migrating = [moment.done for moment in self.moments if moment.is_migrating]
        return max(migrating, default=self.began + self.silence)

    @property
    def until_results(self) -> float:
        """Seconds from the change to the next results."""
        return next(moment.done for moment in self.moments if moment.results and moment.done > self.began) - self.began

    def intermediate(self, second: float) -> int:
        return next((m.intermediate for m in reversed(self.moments) if m.done <= second), 0)

    def results(self, start: float, stop: float) -> int:
        return sum(moment.results for moment in self.moments if start < moment.done <= stop)


Courses: TypeAlias = Mapping[tuple[str, str], Course]


def measure(setting: Setting) -> dict[tuple[str, str], Course]:
    """Every case in both configurations."""
    seconds = 25.0 if setting.quick else 50.0
    return {
        (level, case): follow(configuration, case, seconds, setting.seed)
        for level, configuration in CONFIGURATIONS.items()
        for case in CASES
    }


def present(courses: Courses) -> Outcome:
    rows: list[tuple[Cell, ...]] = [
        (level, case, float(second), course.results(second - BIN, second) / BIN, course.intermediate(second))
        for (level, case), course in courses.items()
        for second in np.arange(BIN, course.moments[-1].done + BIN, BIN)
    ]
    columns = ("configuration", "case", "second", "results per second", "intermediate rows")
    verdicts = (_low(courses), _high(courses), _during(courses), _silence(courses))
    note = (
        f"virtual clock: {COMPARE * 1e6:.0f} µs per pair, {INSERT * 1e6:.0f} µs per insertion, chosen so that the high "
        "configuration overloads the old plan; that the old plan falls behind is therefore a setting, not a finding"
    )
    return Outcome(columns, tuple(rows), lambda figure: _draw(figure, courses), verdicts, (note,))


def follow(configuration: Configuration, case: str, seconds: float, seed: int) -> Course:
    """One plan, changed or not, through all its rows."""
    plan, strategy = CASES[case]
    feed = Feed(configuration, configuration.rows(seconds, seed), plan)
    moments: list[Moment] = []
    now, silence, began = 0.0, 0.0, float("inf")
    for arrived in steps(0.0, seconds, SLICE):
        now = max(now, arrived)
        if strategy is not None and began == float("inf") and now >= START:
            changed = feed.change(str(NEW), strategy)
            began, silence = now, changed.pairs * COMPARE + changed.rows * INSERT
            now += silence
        results, step = feed.until(arrived)
        now += charged(step)
        moments.append(Moment(arrived, now, results, _intermediate(feed.engine), feed.engine.is_migrating))
    return Course(tuple(moments), silence, began)


def _intermediate(engine: Engine) -> int:
    """Rows in the states of inner joins, those of a plan that is being left included."""
    track = engine.only.track
    return sum(state.ring.live for state in track.held)


def _mean_rows(course: Course, start: float, stop: float) -> float:
    inside = [moment.intermediate for moment in course.moments if start < moment.done <= stop]
    return float(np.mean(inside)) if inside else 0.0


def _low(courses: Courses) -> Verdict:
    moving, parallel = courses["low", "moving state"], courses["low", "parallel track"]
    seconds = moving.moments[-1].arrived
    late = (START + 3.0, seconds)
    held = {case: _mean_rows(courses["low", case], *late) for case in CASES}
    rates = [courses["low", case].results(START, seconds) / (seconds - START) for case in CASES]
    took = {"moving state": moving.ended - moving.began, "parallel track": parallel.ended - parallel.began}
    return Verdict(
        "low: the new plan holds far fewer intermediate rows, moving state gets there first, and output rates hardly "
        "differ (Figures 16.5, 16.6)",
        f"{held['old only']:.0f} intermediate rows in the old plan, {held['new only']:.0f} in the new, "
        f"{held['moving state']:.0f} and {held['parallel track']:.0f} after the migrations, which took "
        f"{took['moving state']:.3f} s (moving state) and {took['parallel track']:.2f} s (parallel track); after the "
        f"change {min(rates):.1f} to {max(rates):.1f} results/s in all four cases",
        {
            "half the intermediate rows": held["new only"] <= 0.5 * held["old only"],
            "both migrations end at the new plan's rows, within 10 %": all(
                abs(held[case] / held["new only"] - 1) <= 0.1 for case in took
            ),
            "moving state first": took["moving state"] < took["parallel track"],
            "output rates within 10 %": max(rates) <= 1.1 * min(rates),
        },
    )


def _high(courses: Courses) -> Verdict:
    ends = {case: courses["high", case].moments[-1].done for case in CASES}
    moving, parallel = courses["high", "moving state"], courses["high", "parallel track"]
    return Verdict(
        "high: the old plan falls behind, all others beat it clearly, and moving state ends the migration earlier "
        "(Figures 16.7, 16.8)",
        f"the rows of {moving.moments[-1].arrived:.0f} s are worked off after "
        + ", ".join(f"{end:.0f} s ({case})" for case, end in ends.items())
        + f"; moving state migrates in {moving.ended - moving.began:.2f} s, parallel track in "
        f"{parallel.ended - parallel.began:.1f} s",
        {
            "all others end at least 10 % earlier than the old plan": all(
                end <= 0.9 * ends["old only"] for case, end in ends.items() if case != "old only"
            ),
            "moving state ends earlier": moving.ended - moving.began < parallel.ended - parallel.began,
        },
    )


def _during(courses: Courses) -> Verdict:
    moving, parallel = courses["high", "moving state"], courses["high", "parallel track"]
    during = (moving.began, parallel.ended)
    output = {"moving state": moving.results(*during), "parallel track": parallel.results(*during)}
    held = {"moving state": _mean_rows(moving, *during), "parallel track": _mean_rows(parallel, *during)}
    return Verdict(
        "high: during the migration parallel track has fewer intermediate rows and more output (Figures 16.7, 16.8)",
        f"until the parallel track ends it puts out {output['parallel track']} results and holds "
        f"{held['parallel track']:.0f} intermediate rows on average, moving state {output['moving state']} and "
        f"{held['moving state']:.0f}",
        {
            "more output with parallel track": output["parallel track"] > output["moving state"],
            "fewer rows with parallel track": held["parallel track"] < held["moving state"],
        },
    )


def _silence(courses: Courses) -> Verdict:
    words = [
        f"{level}: {courses[level, 'moving state'].silence * 1e3:.0f} ms to compute the missing states"
        for level in CONFIGURATIONS
    ]
    pauses = {case: courses["high", case].until_results for case in ("moving state", "parallel track")}
    return Verdict(
        "a noticeable output silence of moving state in the high configuration, about ten seconds in Figure 16.8",
        f"{'; '.join(words)}; the next results come {pauses['moving state'] * 1e3:.0f} ms after the change with moving "
        f"state and {pauses['parallel track'] * 1e3:.0f} ms after it with parallel track (high). Between two batches "
        "nothing waits inside the plan, so nothing has to be drained first",
        {
            "longer silence than parallel track": pauses["moving state"] > pauses["parallel track"],
            "about ten seconds, 5 or more": courses["high", "moving state"].silence >= 5,
        },
    )


def _draw(figure: Figure, courses: Courses) -> None:
    panels = figure.subplots(2, len(CONFIGURATIONS) + 1)
    for (level, case), course in courses.items():
        column = list(CONFIGURATIONS).index(level)
        ends = np.arange(BIN, course.moments[-1].done + BIN, BIN)
        panels[0][column].plot(ends, [course.intermediate(end) for end in ends], label=case)
        panels[1][column].plot(ends, [course.results(end - BIN, end) / BIN for end in ends], label=case)
        panels[0][column].set(title=f"{level} configuration")
        panels[1][column].set(xlabel="seconds")
        for axes in panels[:, column]:
            axes.axvline(START, color="grey", linewidth=0.8, linestyle=":")
        if level == "high" and course.began < float("inf"):
            near = [moment for moment in course.moments if abs(moment.done - course.began) < ZOOM]
            times = [moment.done - course.began for moment in near]
            panels[0][-1].step(times, [moment.intermediate for moment in near], where="post", label=case)
            panels[1][-1].step(times, np.cumsum([moment.results for moment in near]), where="post", label=case)
    panels[0][-1].set(title="high, around the change")
    panels[1][-1].set(xlabel="seconds after it", ylabel="results so far")
    panels[0][0].set_ylabel("intermediate rows")
    panels[1][0].set_ylabel("results per second")
    panels[0][0].legend()
    panels[1][-1].legend()


EXPERIMENTS = (
    Experiment(
        "migration-low-high",
        "Intermediate rows and output around a migration (Zhu 2006, Figures 16.5-16.8)",
        measure,
        present,
    ),
)
