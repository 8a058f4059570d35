"""Joins on different machines change their order: Zhu 2006, Chapter 19, both protocols, and the choice between them.

((A B) C) becomes (A (B C)). Under the old plan the lower join and its states are on one machine, the upper join on
another; under the new plan the other way round. The chapter has no figures: it says which bytes each strategy ships,
and that the one with fewer should be taken. The rates of intermediate results follow from those of the streams.
"""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure

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


@dataclass(frozen=True)
class Migration:
    """One migration by one strategy."""

    messages: int
    seconds: float
    shipped: float
    """Bytes that it shipped, by the messages (moving state) or by the rows sent twice (parallel track)."""
    ended: bool
    recomputed: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """One setting and both ways."""

    by: dict[Strategy, Migration]
    chosen: Strategy


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
    return {
        (rate, window, now): _case(traffic(rate, window, now))
        for rate in (30.0, 100.0)
        for window in windows
        for now in (rate, 5.0)
    }


def _case(given: Traffic) -> Case:
    return Case({strategy: _migrate(given, strategy) for strategy in STRATEGIES}, choose_strategy(OLD, NEW, given))


def _migrate(given: Traffic, strategy: Strategy) -> Migration:
    machines = [
        Machine(name, {state: given.state_bytes(state) for state in OLD.on(name)}, time=float(number))
        for number, name in enumerate(OLD.machines)
    ]
    manager = Manager(OLD, NEW, strategy)
    log = deliver(manager, machines, latency=LATENCY, bandwidth=BANDWIDTH, purging=2 * given.window)
    shipped = sum(machine.shipped for machine in machines)
    if strategy == "parallel-track":
        shipped = bytes_to_ship(OLD, NEW, given, strategy)
    recomputed = tuple(state for machine in machines for state in machine.recomputed)
    return Migration(len(log), log[-1].at, shipped, manager.is_over, recomputed)


def present(found: dict[tuple[float, float, float], Case]) -> Outcome:
    rows: list[tuple[Cell, ...]] = [
        (*setting, strategy, each.messages, each.seconds, each.shipped, case.chosen == strategy)
        for setting, case in found.items()
        for strategy, each in case.by.items()
    ]
    least = [min(each.shipped for each in case.by.values()) for case in found.values()]
    right = sum(case.by[case.chosen].shipped == few for case, few in zip(found.values(), least, strict=True))
    fallen = {case.chosen for (rate, _, now), case in found.items() if now < rate}
    steady = {case.chosen for (rate, _, now), case in found.items() if now == rate}
    lengths = [case.by["parallel-track"].seconds / (2 * setting[1]) for setting, case in found.items()]
    moving = max(case.by["moving-state"].seconds for case in found.values())
    ended = all(each.ended for case in found.values() for each in case.by.values())
    made = {case.by["moving-state"].recomputed for case in found.values()}
    verdicts = (
        Verdict(
            "compare the bytes of states to move with 2W of new rows and of intermediate rows that cross machines, and "
            "take the strategy that ships less (Section 19.3)",
            f"the choice ships less in {right} of {len(found)} settings: {' and '.join(sorted(steady))} with steady "
            f"rates, {' and '.join(sorted(fallen))} where rates have fallen to 5/s with large states",
            {
                "less in every setting": right == len(found),
                "moving state with steady rates": steady == {"moving-state"},
                "parallel track where rates have fallen": "parallel-track" in fallen,
            },
        ),
        Verdict(
            "parallel track lasts 2W, moving state as long as its messages and states take (Sections 19.1 and 19.2)",
            f"parallel track {min(lengths):.2f} to {max(lengths):.2f} times 2W, moving state {moving:.2f} s at most",
            {
                "2W, within 5 %": all(abs(length - 1) <= 0.05 for length in lengths),
                "moving state is shorter": all(
                    case.by["moving-state"].seconds < case.by["parallel-track"].seconds for case in found.values()
                ),
            },
        ),
        Verdict(
            "every machine answers every phase, and only the state that no machine has is computed",
            f"all protocols ended: {ended}; computed: {', '.join(sorted({state for each in made for state in each}))}",
            {"all ended": ended, "only BC is computed": made == {("BC",)}},
        ),
    )
    notes = (
        f"messages take {1000 * LATENCY:g} ms, states {BANDWIDTH / 1e6:g} MB/s, rows {ROW:g} bytes; none is printed",
        "the chapter does not say what the last two handshakes carry, nor where a lacking state is computed",
    )
    columns = ("rows/s before", "W s", "rows/s now", "strategy", "messages", "seconds", "bytes", "chosen")
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
