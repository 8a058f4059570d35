"""Moving state against parallel track for moves of groups: Zhu 2006, Section 23.3, Figures 23.9 to 23.15.

Twelve settings: 30, 40 or 50 rows per second and stream, windows of 15, 30, 45 or 60 s. Each runs without moves, and
with moves by either strategy; results are given over those without moves, and each move has a length.

The paper's runs of 30,000 ms can contain no window of 60 s, let alone the 2W that its parallel track takes, so runs
here are longer. The speed of the servers is one for all settings, as the paper's machines were.

`balance-parallel-track-wins` is the case that the paper made for parallel track: states are large and rates have just
fallen. The most loaded server changes its plan, then groups move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TypeAlias

import numpy as np
from matplotlib.figure import Figure

from anabranch.adapt.course import STRATEGIES, MoveStrategy
from lab.balance_cluster import LOOKS, SERVERS, Adaptation, Load, Run, run, slowed
from lab.balance_local_and_load import CHANGED, KEYS, streams
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

RATES, WINDOWS = (30.0, 40.0, 50.0), (15.0, 30.0, 45.0, 60.0)
SECONDS = 180.0
"""How long the streams last: three times the longest window."""
OVERLOAD = 2.0
"""Seconds that the loaded server needs for a second of the fastest streams with the shortest window."""
ALIKE = 0.05
"""A smaller difference between two ratios is none."""


@dataclass(frozen=True)
class Case:
    """One setting: results over those without moves, and the mean length of a move, by strategy."""

    ratio: Mapping[MoveStrategy, float]
    seconds: Mapping[MoveStrategy, float]

    @property
    def lead(self) -> float:
        """How much more moving state gives than parallel track, in parts of the results without moves."""
        return self.ratio["moving-state"] - self.ratio["parallel-track"]


Found: TypeAlias = Mapping[tuple[float, float], Case]
"""By rows per second and window."""


def measure(setting: Setting) -> dict[tuple[float, float], Case]:
    """Means of five runs each; one run of the corners where it has to be quick."""
    runs, windows, length = (1, (15.0, 60.0), 5.0) if setting.quick else (5, WINDOWS, 3.0)
    fullest = _load(RATES[-1], WINDOWS[0], setting.seed, length)
    slowdown = slowed(fullest, OVERLOAD, 2 * WINDOWS[0]).slowdown
    return {
        (rate, window): _case(
            [replace(_load(rate, window, setting.seed + number, length), slowdown=slowdown) for number in range(runs)]
        )
        for rate in RATES
        for window in windows
    }


def _load(rate: float, window: float, seed: int, length: float) -> Load:
    return Load(lambda _: dict.fromkeys("abc", rate), SECONDS, window, KEYS, seed, length)


def _case(loads: Sequence[Load]) -> Case:
    ratios: dict[MoveStrategy, list[float]] = {strategy: [] for strategy in STRATEGIES}
    lengths: dict[MoveStrategy, list[float]] = {strategy: [] for strategy in STRATEGIES}
    for load in loads:
        base = run(load, Adaptation()).results[-1]
        for strategy in STRATEGIES:
            each = run(load, Adaptation(moves=strategy))
            ratios[strategy].append(each.results[-1] / base)
            lengths[strategy] += [move.seconds for move in each.moves] or [0.0]
    return Case({name: fmean(each) for name, each in ratios.items()}, {n: fmean(each) for n, each in lengths.items()})


def present(found: Found) -> Outcome:
    rows: list[tuple[Cell, ...]] = [
        (*key, strategy, case.ratio[strategy], case.seconds[strategy])
        for key, case in found.items()
        for strategy in STRATEGIES
    ]
    verdicts = (*(_growing(found, rate) for rate in RATES[:2]), _at_the_highest(found), _lengths(found))
    given = f"{KEYS:,} keys, {SECONDS:g} s of streams, a look every {LOOKS:g} s"
    notes = (
        (
            f"virtual clock, {SERVERS} servers at the engine's unit costs, slowed until the loaded one needs "
            f"{OVERLOAD:g} s for a second of {RATES[-1]:g} rows/s with the shortest window; no network"
        ),
        f"{given}; the paper prints none of these, and runs of 30 s",
        "parallel track ends here when the last row before the mark has left its window; the paper expects 2W",
    )
    columns = ("rows/s", "W s", "strategy", "results over No-Adapt", "seconds of a move")
    return Outcome(columns, tuple(rows), lambda figure: _draw(figure, found), verdicts, notes)


def _of(found: Found, rate: float) -> list[Case]:
    """The settings of a rate, from the shortest window to the longest."""
    return [case for (each, _), case in sorted(found.items()) if each == rate]


def _ratios(cases: list[Case]) -> str:
    names: Mapping[MoveStrategy, str] = {"moving-state": "MSLB", "parallel-track": "PTLB"}
    return "; ".join(f"{n} {', '.join(f'{case.ratio[each]:.2f}' for case in cases)}" for each, n in names.items())


def _growing(found: Found, rate: float) -> Verdict:
    cases = _of(found, rate)
    first, last = cases[0], cases[-1]
    figure = {30.0: "Fig. 23.9", 40.0: "Fig. 23.10"}[rate]
    lead = "to about 25 %" if rate == RATES[0] else "more than with 30 rows/s"
    enough = 0.15 if rate == RATES[0] else max(ALIKE, _of(found, RATES[0])[-1].lead)
    return Verdict(
        f"{rate:g} rows/s: the longer the window, the more both win over No-Adapt, and moving state's lead grows from "
        f"nothing {lead} ({figure})",
        f"from the shortest window to the longest {_ratios(cases)}; the lead grows from {first.lead:+.0%} to "
        f"{last.lead:+.0%}",
        {
            "both win more with the longest window": all(last.ratio[s] > first.ratio[s] for s in STRATEGIES),
            "no lead with the shortest": abs(first.lead) <= ALIKE,
            "a lead of 15 % with the longest" if rate == RATES[0] else "a larger lead": last.lead >= enough,
        },
    )


def _at_the_highest(found: Found) -> Verdict:
    cases = _of(found, RATES[-1])
    first, last = cases[0], cases[-1]
    return Verdict(
        "50 rows/s: with the shortest window PTLB 1.9 and MSLB 2.0 times No-Adapt; with longer ones PTLB's gain gets "
        "smaller, MSLB stays ahead (Fig. 23.11)",
        f"from the shortest window to the longest {_ratios(cases)}",
        {
            "1.9 and 2.0 with the shortest, within 25 %": abs(first.ratio["parallel-track"] / 1.9 - 1) <= 0.25
            and abs(first.ratio["moving-state"] / 2.0 - 1) <= 0.25,
            "PTLB's gain gets smaller": last.ratio["parallel-track"] < max(c.ratio["parallel-track"] for c in cases),
            "MSLB ahead with the longest": last.lead > ALIKE,
        },
    )


def _lengths(found: Found) -> Verdict:
    in_windows = [case.seconds["parallel-track"] / window for (_, window), case in found.items()]
    moving = [case.seconds["moving-state"] for case in found.values()]
    shorter = [case.seconds["moving-state"] < case.seconds["parallel-track"] / 2 for case in found.values()]
    return Verdict(
        "PTLB takes about 2W, MSLB is far shorter (Figs 23.12 to 23.14)",
        f"PTLB {min(in_windows):.2f} to {max(in_windows):.2f} W; MSLB {min(moving):.2f} to {max(moving):.2f} s, with "
        f"the wait for the sender's queue; less than half of PTLB's in {sum(shorter)} of {len(shorter)} settings",
        {
            "2W, within 15 %": all(1.7 <= each <= 2.3 for each in in_windows),
            "MSLB less than half as long": all(shorter),
        },
    )


def _draw(figure: Figure, found: Found) -> None:
    axes = figure.subplots(2, len(RATES), sharex=True, sharey="row")
    for column, rate in enumerate(RATES):
        windows = [window for each, window in sorted(found) if each == rate]
        for strategy in STRATEGIES:
            axes[0][column].plot(windows, [case.ratio[strategy] for case in _of(found, rate)], "o-", label=strategy)
            axes[1][column].plot(windows, [case.seconds[strategy] for case in _of(found, rate)], "o-", label=strategy)
        axes[0][column].set(title=f"{rate:g} rows/s")
        axes[1][column].set(xlabel="W in seconds")
    axes[0][0].set(ylabel="results over No-Adapt")
    axes[1][0].set(ylabel="seconds of a move")
    axes[0][0].legend()


# --- the case for parallel track -------------------------------------------------------------------------------------


def measure_fallen(setting: Setting) -> dict[str, Run]:
    load = streams(setting)
    local = Adaptation(replans_at=CHANGED, replans=(0,), moves_from=CHANGED)
    return {strategy or "no moves": run(load, replace(local, moves=strategy)) for strategy in (None, *STRATEGIES)}


def present_fallen(found: Mapping[str, Run]) -> Outcome:
    moving, parallel = found["moving-state"], found["parallel-track"]
    rows: list[tuple[Cell, ...]] = [
        (name, (number + 1) * each.length, each.results[number], each.waiting[number])
        for name, each in found.items()
        for number in range(len(each.results))
    ]
    after = slice(round(CHANGED / moving.length), None)
    ahead = float(np.mean([p > m for p, m in zip(parallel.results[after], moving.results[after], strict=True)]))
    behind = float(np.mean([p < m for p, m in zip(parallel.results[after], moving.results[after], strict=True)]))
    end = parallel.results[-1] / moving.results[-1]
    first = {name: found[name].moves[:1] for name in ("parallel-track", "moving-state")}
    lengths = {name: f"{moves[0].seconds:.1f} s" if moves else "longer than the run" for name, moves in first.items()}
    verdicts = (
        Verdict(
            "states are large and rates have fallen: after the moves have begun, parallel track has more results than "
            "moving state (Fig. 23.15)",
            f"ahead in {ahead:.0%} of the time after {CHANGED:g} s, behind in {behind:.0%}; {end:.3f} times the "
            f"results at the end; the first move takes {' and '.join(lengths.values())}",
            {"ahead at the end": end > 1.0, "ahead more often than behind": ahead > behind},
        ),
        Verdict(
            "(own bar) the results of all runs are the same in the end",
            f"{moving.total:,} and {parallel.total:,} results",
            {"the same results": len({each.total for each in found.values()}) == 1},
        ),
    )
    notes = ("moving state reads rows and fills states here; the paper also ships states over its network",)
    columns = ("setting", "second", "results", "rows waiting")
    return Outcome(columns, tuple(rows), lambda figure: _draw_fallen(figure, found), verdicts, notes)


def _draw_fallen(figure: Figure, found: Mapping[str, Run]) -> None:
    upper, lower = figure.subplots(2, sharex=True)
    for name, each in found.items():
        seconds = [(number + 1) * each.length for number in range(len(each.results))]
        upper.plot(seconds, each.results, label=name)
        lower.plot(seconds, each.waiting, label=name)
    upper.set(ylabel="results that have left")
    lower.set(xlabel="seconds", ylabel="rows that wait")
    upper.legend()


EXPERIMENTS = (
    Experiment("balance-strategies", "Moves of groups: two strategies (Zhu 2006, Section 23.3)", measure, present),
    Experiment(
        "balance-parallel-track-wins",
        "The case for parallel track (Zhu 2006, Figure 23.15)",
        measure_fallen,
        present_fallen,
    ),
)
