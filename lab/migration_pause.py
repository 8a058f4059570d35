"""The longest batch of a migration: moving state stops for all of it, spread over batches it does not.

Three streams in a chain; both plans keep a million combinations, each of two other streams. The same rows go through
an engine that changes by moving state, one that changes by spread, and one that does not change; batch by batch in
alternating order. A batch takes the processor time of its step, and of the change where it begins with one. The median
batch is that of the engine that does not change. All three give the same number of results in every batch.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from time import process_time

import numpy as np
from matplotlib.figure import Figure

from anabranch.calibrate.engine_costs import BATCH, Workload
from anabranch.engine.batch import RelationBatch
from anabranch.engine.engine import Engine
from anabranch.migrate.strategies.registry import strategy_named
from anabranch.plan.text import parse
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

OLD, NEW = parse("((a b) c)"), parse("(a (b c))")
WINDOW, AFTER = 10.0, 20
"""Seconds of a window, and batches after the change."""
FULL, QUICK = 20_000.0, 4_000.0
"""Rows a second of each stream."""
PARTNERS = 5.0
"""Rows of the next stream that a row meets: with full windows, a state has so many combinations for each row."""
MOST = 2.0
STILL, MOVING, SPREAD = "no change", "moving-state", "spread"


@dataclass
class Course:
    """One engine: seconds and results of each of its batches, and in which of them its plan was changing."""

    engine: Engine
    seconds: list[float] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    changing: list[bool] = field(default_factory=list)


@dataclass(frozen=True)
class Paused:
    """The batches of one way of changing, from the one with the change on; and the combinations that it computed."""

    seconds: tuple[float, ...]
    batches: int
    """Batches until the new plan was in force."""
    rows: int
    is_same: bool
    """Whether every batch had the results that it has without the change."""


@dataclass(frozen=True)
class Found:
    median: float
    ways: Mapping[str, Paused]

    def longest(self, way: str) -> float:
        """The longest batch of the change, in median batches."""
        paused = self.ways[way]
        return max(paused.seconds[: paused.batches]) / self.median


def measured(setting: Setting) -> Found:
    rate = QUICK if setting.quick else FULL
    held = rate * WINDOW
    share = PARTNERS / held
    load = Workload(dict.fromkeys("abc", rate), {("a", "b"): share, ("b", "c"): share}, WINDOW)
    query, change = load.query(), int(WINDOW / BATCH) + 4
    runs = {way: Course(Engine.alone(query, OLD)) for way in (STILL, MOVING, SPREAD)}
    floors = dict.fromkeys(query.graph.names, 0)
    computed = 0
    for number, batch in enumerate(load.batches(np.random.default_rng(setting.seed), change + AFTER, query)):
        for way in list(runs)[:: -1 if number % 2 else 1]:
            course = runs[way]
            gc.collect()
            started = process_time()
            if number == change and way != STILL:
                course.engine.migrate(NEW, strategy_named(way))
            found = _step(course.engine, batch, floors)
            course.seconds.append(process_time() - started)
            course.results.append(found)
            course.changing.append(course.engine.is_migrating)
            if number == change and way == MOVING:
                computed = course.engine.only.track.intermediates["(b c)"].ring.live
        floors = {name: int(rows.times[-1]) if len(rows) else floors[name] for name, rows in batch.items()}
    still = runs[STILL]
    return Found(
        median(still.seconds[change - 3 :]),
        {
            way: Paused(
                tuple(runs[way].seconds[change:]),
                sum(runs[way].changing) + 1,
                computed,
                runs[way].results == still.results,
            )
            for way in (MOVING, SPREAD)
        },
    )


def _step(engine: Engine, rows: Mapping[str, RelationBatch], floors: Mapping[str, int]) -> int:
    return sum(batch.num_rows for _, batch in engine.step(rows, floors))


def present(found: Found) -> Outcome:
    spread, moving = found.longest(SPREAD), found.longest(MOVING)
    rows: list[tuple[Cell, ...]] = [
        (way, each.rows, each.batches, max(each.seconds[: each.batches]), found.median, found.longest(way))
        for way, each in found.ways.items()
    ]
    verdicts = (
        Verdict(
            f"our own bar: spread, the longest batch of the change is at most {MOST:g} times the median batch",
            f"{spread:.2f} times over {found.ways[SPREAD].batches} batches; moving state {moving:.2f} times",
            {f"{MOST:g} times": spread <= MOST},
        ),
        Verdict(
            "our own bar: every batch has the results that it has without the change",
            "in both" if all(each.is_same for each in found.ways.values()) else "results differ",
            {"the same results": all(each.is_same for each in found.ways.values())},
        ),
    )
    notes = (f"{found.ways[MOVING].rows:,} combinations are computed; seconds are processor time",)
    columns = ("strategy", "combinations", "batches", "longest s", "median s", "longest in medians")
    return Outcome(columns, tuple(rows), lambda figure: draw(figure, found), verdicts, notes)


def draw(figure: Figure, found: Found) -> None:
    axes = figure.subplots()
    for way, each in found.ways.items():
        axes.plot(range(len(each.seconds)), each.seconds, "o-", label=way)
    axes.axhline(found.median, color="grey", linewidth=0.8)
    axes.axhline(MOST * found.median, color="grey", linewidth=0.8, linestyle="--")
    axes.set(xlabel="batches since the change", ylabel="processor seconds", ylim=(0, None))
    axes.legend()


EXPERIMENTS = (Experiment("migration-pause", "The longest batch of a migration of a million rows", measured, present),)
