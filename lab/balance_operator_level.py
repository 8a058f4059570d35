"""Joins on different machines change their order: Zhu 2006, Chapter 19, both protocols, and the choice between them.

((A B) C) becomes (A (B C)). Under the old plan the lower join and its states are on one machine, the upper join on
another; under the new plan the other way round. The chapter has no figures: it says which bytes each strategy ships,
and that the strategy with fewer bytes should be taken. The choice knows the rates of the streams only. The bytes are
counted from drawn rows: Poisson arrivals and random keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lab.papers.operator_migration import (
    Layout,
    Machine,
    Manager,
    Strategy,
    Traffic,
    bytes_to_ship,
    choose_strategy,
    deliver,
)
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

OLD = Layout({"A": "m1", "B": "m1", "AB": "m2", "C": "m2"})
NEW = Layout({"A": "m1", "B": "m2", "C": "m2", "BC": "m1"})
STRATEGIES: tuple[Strategy, ...] = ("moving-state", "parallel-track")
LATENCY = 0.001
"""Seconds for a message between two machines of one network."""
BANDWIDTH = 12.5e6
"""Bytes per second: 100 Mbit, as a cluster of 2006 had."""
SELECTIVITY = 0.001
"""Of two rows within a window; the paper prints none."""
ROW = 40.0
"""Bytes of a base row; the paper prints none."""
CLOSE = 1 / 3
"""How near counted bytes must be to those that the choice expects. The new box of a parallel track starts empty, so in
two windows it makes three quarters of the pairs that full states would make."""

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Migration:
    """One migration by one strategy."""

    messages: int
    seconds: float
    shipped: float
    """Bytes of the states that were moved, or of the rows that were sent to another machine for the new plan."""
    expected: float
    """The same bytes, by the rates of the streams."""


@dataclass(frozen=True)
class Case:
    """One setting and both ways."""

    by: dict[Strategy, Migration]
    chosen: Strategy


@dataclass(frozen=True)
class Rows:
    """The rows of one stream: arrival times, the migration being at 0, and the keys of both joins."""

    times: Floats
    keys: Integers

    def between(self, start: float, end: float) -> Rows:
        chosen = (self.times > start) & (self.times <= end)
        return Rows(self.times[chosen], self.keys[chosen])


def traffic(rate: float, window: float, now: float | None = None) -> Traffic:
    """Three equally fast streams; `now` is the rate from the migration on, if it is another."""
    rates, later = _rates(rate, window), None if now is None else _rates(now, window)
    return Traffic(rates, {name: ROW * len(name) for name in rates}, window, later)


def _rates(rate: float, window: float) -> dict[str, float]:
    pairs = 2 * rate * rate * window * SELECTIVITY
    return {"A": rate, "B": rate, "C": rate, "AB": pairs, "BC": pairs}


def measure(setting: Setting) -> dict[tuple[float, float, float], Case]:
    """By the rate that filled the states, the window, and the rate from the migration on."""
    windows = (15.0, 60.0) if setting.quick else (15.0, 30.0, 45.0, 60.0)
    rng = np.random.default_rng(setting.seed)
    return {
        (rate, window, now): _case(traffic(rate, window, now), _drawn(rng, rate, window, now))
        for rate in (30.0, 100.0)
        for window in windows
        for now in (rate, 5.0)
    }


def _drawn(rng: np.random.Generator, rate: float, window: float, now: float) -> dict[str, Rows]:
    """Draws two windows of rows before the migration and two after it."""
    found = {}
    for name in "ABC":
        before = rng.uniform(-2 * window, 0.0, rng.poisson(2 * window * rate))
        after = rng.uniform(0.0, 2 * window, rng.poisson(2 * window * now))
        times = np.concatenate([before, after])
        found[name] = Rows(times, rng.integers(0, round(1 / SELECTIVITY), times.size))
    return found


def pairs_born(left: Rows, right: Rows, window: float, start: float) -> int:
    """Counts the pairs with equal keys, at most a window apart, whose later row came after `start`."""
    order = np.argsort(right.keys, kind="stable")
    keys, times = right.keys[order], right.times[order]
    first, last = np.searchsorted(keys, left.keys, "left"), np.searchsorted(keys, left.keys, "right")
    counts = last - first
    mine = np.repeat(left.times, counts)
    theirs = times[np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)]
    return int(((np.abs(mine - theirs) <= window) & (np.maximum(mine, theirs) > start)).sum())


def _case(given: Traffic, rows: Mapping[str, Rows]) -> Case:
    by = {strategy: _migrate(given, rows, strategy) for strategy in STRATEGIES}
    return Case(by, choose_strategy(OLD, NEW, given))


def _migrate(given: Traffic, rows: Mapping[str, Rows], strategy: Strategy) -> Migration:
    window = given.window
    held = {name: ROW * each.between(-window, 0.0).times.size for name, each in rows.items()}
    before = {name: rows[name].between(-2 * window, 0.0) for name in "AB"}
    held["AB"] = 2 * ROW * pairs_born(before["A"], before["B"], window, -window)
    machines = [
        Machine(name, {state: held[state] for state in OLD.on(name)}, time=float(number))
        for number, name in enumerate(OLD.machines)
    ]
    log = deliver(Manager(OLD, NEW, strategy), machines, latency=LATENCY, bandwidth=BANDWIDTH, purging=2 * window)
    shipped = sum(machine.shipped for machine in machines)
    if strategy == "parallel-track":
        new = {name: rows[name].between(0.0, 2 * window) for name in "BC"}
        # B's rows go to the machine of the new plan, and the pairs made there go to the other machine.
        shipped = ROW * new["B"].times.size + 2 * ROW * pairs_born(new["B"], new["C"], window, 0.0)
    return Migration(len(log), log[-1].at, shipped, bytes_to_ship(OLD, NEW, given, strategy))


def present(found: dict[tuple[float, float, float], Case]) -> Outcome:
    rows: list[tuple[Cell, ...]] = [
        (*setting, strategy, each.messages, each.seconds, each.shipped, each.expected, case.chosen == strategy)
        for setting, case in found.items()
        for strategy, each in case.by.items()
    ]
    right = sum(case.by[case.chosen].shipped == min(e.shipped for e in case.by.values()) for case in found.values())
    fallen = {case.chosen for (rate, _, now), case in found.items() if now < rate}
    steady = {case.chosen for (rate, _, now), case in found.items() if now == rate}
    ratios = [each.shipped / each.expected for case in found.values() for each in case.by.values()]
    verdicts = (
        Verdict(
            "compare the bytes of states to move with 2W of new rows and of intermediate rows that cross machines, and "
            "take the strategy that ships less (Section 19.3)",
            f"the choice ships less in {right} of {len(found)} settings: {' and '.join(sorted(steady))} with steady "
            f"rates, {' and '.join(sorted(fallen))} where rates have fallen to 5/s; counted bytes are "
            f"{min(ratios):.2f} to {max(ratios):.2f} times the expected ones",
            {
                "less, as counted, in every setting": right == len(found),
                "counted bytes within a third of the expected ones": all(abs(each - 1) <= CLOSE for each in ratios),
            },
        ),
    )
    notes = (
        f"messages take {1000 * LATENCY:g} ms, states {BANDWIDTH / 1e6:g} MB/s, rows {ROW:g} bytes; none is printed",
        "the chapter does not say what the last two handshakes carry, nor where a lacking state is computed",
    )
    columns = ("rows/s before", "W s", "rows/s now", "strategy", "messages", "seconds", "bytes", "expected", "chosen")
    return Outcome(columns, tuple(rows), lambda figure: _draw(figure, found), verdicts, notes)


def _draw(figure: Figure, found: dict[tuple[float, float, float], Case]) -> None:
    axes = figure.subplots()
    labels = [f"{rate:g}/s, {window:g} s, then {now:g}/s" for rate, window, now in found]
    for strategy in STRATEGIES:
        axes.plot(labels, [case.by[strategy].shipped / 1e6 for case in found.values()], "o-", label=strategy)
    axes.set(ylabel="MB shipped", yscale="log")
    axes.tick_params(axis="x", rotation=60)
    axes.legend()


TITLE = "Joins on different machines change their order (Zhu 2006, Chapter 19)"
EXPERIMENTS = (Experiment("balance-operator-level", TITLE, measure, present),)
