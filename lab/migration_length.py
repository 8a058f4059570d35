"""How long a migration lasts: Zhu 2006, Section 16.2, Figures 16.1-16.4, with the parameters of Table 16.1.

A parallel track is measured in event time, from the change to the batch in which the old plan is removed. Beside it
stands the length that the paper's rule would give on the same rows: a combination that keeps only its newest time is
purged a window after its newest row, and one with an old row may be born a whole window after the change. Moving state
is measured twice: on the virtual clock, which charges a nested loop for the pairs and insertions of the engine's real
states, and in seconds of a core, which the engine's own lookups took.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure

from anabranch.engine.tracks.parallel import ParallelTrack
from lab.migration_common import COMPARE, INSERT, NEW, OLD, Configuration, Feed, slope, steps
from lab.papers.migration_costs import moving_state_length, parallel_track_length
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

LOW = (0.1, 0.05, 0.02)
SLICE = 0.02
"""Seconds of event time in a batch."""


@dataclass(frozen=True)
class Lengths:
    """One point: seconds, predicted and measured, averaged over some runs."""

    predicted_moving: float
    moving: float
    core_moving: float
    predicted_parallel: float
    parallel: float
    parallel_by_newest: float


def set_1(window: float) -> Configuration:
    return Configuration(window, dict.fromkeys("abcd", 100.0), LOW)


def set_2(gap: float) -> Configuration:
    return Configuration(1000.0, {"a": 50.0, "b": gap, "c": 50.0, "d": 50.0}, LOW)


def set_3(window: float) -> Configuration:
    return Configuration(window, {"a": 100.0, "b": 12.0, "c": 12.0, "d": 12.0}, (0.1, 0.1, 0.1))


def measure_all(setting: Setting) -> dict[int, dict[float, Lengths]]:
    """All points of the three sets: window, gap of B, window."""
    runs = 2 if setting.quick else 5
    sets = {
        1: (set_1, [1000.0, 2000.0, 4000.0] if setting.quick else [500.0, 1000.0, 2000.0, 3000.0, 4000.0, 5000.0]),
        2: (set_2, [100.0, 20.0] if setting.quick else [100.0, 50.0, 33.0, 25.0, 20.0, 12.0]),
        3: (set_3, [200.0, 600.0, 1200.0] if setting.quick else [200.0, 400.0, 600.0, 800.0, 1000.0, 1200.0, 1400.0]),
    }
    return {
        number: {value: measure(make(value), runs, setting.seed) for value in values}
        for number, (make, values) in sets.items()
    }


def present(found: dict[int, dict[float, Lengths]]) -> Outcome:
    rows: list[tuple[Cell, ...]] = [
        (number, value, *astuple(at)) for number, points in found.items() for value, at in points.items()
    ]
    columns = (
        "set",
        "W or I_B (ms)",
        "T_MS predicted",
        "T_MS virtual",
        "T_MS core",
        "T_PT predicted",
        "T_PT",
        "T_PT by newest time",
    )
    note = (
        f"virtual clock: {COMPARE * 1e6:.0f} µs per pair and {INSERT * 1e6:.0f} µs per insertion, with the sizes that "
        "the engine's states had"
    )
    return Outcome(columns, tuple(rows), lambda figure: _draw(figure, found), _verdicts(found), (note,))


def measure(configuration: Configuration, runs: int, seed: int) -> Lengths:
    """The mean over runs that differ in their rows."""
    measured = [_once(configuration, seed * 1000 + number) for number in range(runs)]
    moving, real, parallel, newest = (float(np.mean(column)) for column in zip(*measured, strict=True))
    predicted = moving_state_length(OLD, NEW, configuration.streams)
    return Lengths(predicted, moving, real, parallel_track_length(OLD, configuration.window / 1e3), parallel, newest)


def _once(configuration: Configuration, seed: int) -> tuple[float, float, float, float]:
    window = configuration.window / 1e3
    start = 2.5 * window
    rows = configuration.rows(start + 3 * window, seed)
    moving = Feed(configuration, rows, str(OLD))
    for second in steps(0.0, start, max(SLICE, window / 50)):
        moving.until(second)
    migrated = moving.change(str(NEW), "moving-state")
    charged = migrated.pairs * COMPARE + migrated.rows * INSERT
    parallel = Feed(configuration, rows, str(OLD))
    for second in steps(0.0, start, max(SLICE, window / 50)):
        parallel.until(second)
    marks = {name: base.ring.next for name, base in parallel.engine.bases.items()}
    parallel.change(str(NEW), "parallel-track")
    last_born = start
    ended = start
    for second in steps(start, start + 3 * window, SLICE):
        parallel.until(second)
        track = parallel.engine.only.track
        if not isinstance(track, ParallelTrack):
            ended = second
            break
        for state in track.retiring.values():
            found = state.everything()
            old = np.any([found.rows[name] < marks[name] for name in state.relations], axis=0)
            if old.any():
                last_born = max(last_born, float(found.newest[old].max()) / 1e6)
    return charged, migrated.seconds, ended - start, last_born + window - start


def _verdicts(found: dict[int, dict[float, Lengths]]) -> tuple[Verdict, ...]:
    first, second, third = found[1], found[2], found[3]
    windows = np.array(list(first)) / 1e3
    ours = np.array([at.parallel for at in first.values()]) / windows
    theirs = np.array([at.parallel_by_newest for at in first.values()]) / windows
    linear = float(np.corrcoef(windows, [at.parallel for at in first.values()])[0, 1])
    growths = {
        1: slope(windows, np.array([at.moving for at in first.values()])),
        3: slope(np.array(list(third)), np.array([at.moving for at in third.values()])),
    }
    last = [points[max(points)] for points in (first, third)]
    lengths = [at.parallel for at in second.values()]
    moving = [at.moving for at in second.values()]
    spread = max(lengths) / min(lengths) - 1
    crossing = _crossing(third)
    real = max(at.core_moving for points in found.values() for at in points.values())
    shortest = min(at.parallel for points in found.values() for at in points.values())
    is_slower_on_a_core = any(at.core_moving > at.parallel for at in third.values())
    return (
        Verdict(
            "T_PT grows linearly with W and is 2W for plans higher than one join (Figure 16.1)",
            f"correlation {linear:.3f} with W; {ours.mean():.2f} W, because a combination here expires with its oldest "
            f"row; on the same rows, with the paper's rule that only the newest time is kept, {theirs.mean():.2f} W",
            {
                "linear, correlation of 0.99": linear >= 0.99,
                "2 W, within 15 %": bool(np.all(abs(ours / 2 - 1) <= 0.15)),
                "2 W by the paper's rule, within 15 %": abs(theirs.mean() / 2 - 1) <= 0.15,
            },
        ),
        Verdict(
            "T_MS is polynomial in W (Figure 16.2; Eq. 16.1 has terms in W² and W³)",
            f"T_MS ~ W^{growths[1]:.1f} in set 1 and W^{growths[3]:.1f} in set 3; at the largest windows "
            + " and ".join(f"{at.moving / at.predicted_moving:.2f}" for at in last)
            + " times the seconds of Eq. 16.1",
            {"exponents between 2 and 3": all(2 <= growth <= 3 for growth in growths.values())},
        ),
        Verdict(
            "T_MS grows with the rate of B, T_PT hardly changes (Figure 16.3)",
            f"with I_B from {max(second):g} to {min(second):g} ms T_MS grows {moving[-1] / moving[0]:.1f}-fold, T_PT "
            f"stays between {min(lengths):.2f} and {max(lengths):.2f} s (W = 1 s)",
            {
                "T_MS grows at every step": all(b > a for a, b in pairwise(moving)),
                "T_PT within 15 %": spread <= 0.15,
            },
        ),
        Verdict(
            "moving state is faster for small W and overtaken by parallel track at a certain W (Figure 16.4)",
            (f"overtaken at W = {crossing:.0f} ms" if crossing else "not overtaken in this range")
            + " on the virtual clock; in seconds of a core moving state needs "
            f"{real * 1e3:.1f} ms at most, because this engine probes states by index, while parallel track lasts "
            f"{shortest:.2f} s or more",
            {
                "overtaken on the virtual clock": crossing is not None,
                "overtaken in seconds of a core": is_slower_on_a_core,
            },
        ),
    )


def _crossing(points: dict[float, Lengths]) -> float | None:
    """The window at which T_MS overtakes T_PT, interpolated."""
    windows = list(points)
    gaps = [at.moving - at.parallel for at in points.values()]
    for i in range(1, len(gaps)):
        if gaps[i - 1] < 0 <= gaps[i]:
            share = -gaps[i - 1] / (gaps[i] - gaps[i - 1])
            return windows[i - 1] + share * (windows[i] - windows[i - 1])
    return None


def _draw(figure: Figure, found: dict[int, dict[float, Lengths]]) -> None:
    panels = figure.subplots(1, 3)
    labels = {1: "W (ms), set 1", 2: "rate of B (rows/s), set 2", 3: "W (ms), set 3"}
    for axes, (number, points) in zip(panels, found.items(), strict=True):
        x = [1e3 / value if number == 2 else value for value in points]
        axes.plot(x, [at.parallel for at in points.values()], "o-", label="T_PT")
        axes.plot(x, [at.parallel_by_newest for at in points.values()], "o:", label="T_PT, newest time only")
        axes.plot(x, [at.moving for at in points.values()], "s-", label="T_MS, virtual clock")
        axes.plot(x, [at.predicted_moving for at in points.values()], "s:", label="T_MS, Eq. 16.1")
        axes.set(xlabel=labels[number], yscale="log" if number == 3 else "linear")
    panels[0].set_ylabel("seconds")
    panels[0].legend()


EXPERIMENTS = (
    Experiment("migration-length", "How long a migration lasts (Zhu 2006, Figures 16.1-16.4)", measure_all, present),
)
