"""The number of slots follows the load: one to eight servers, a load that grows fourfold and falls again.

No paper of ours has this experiment. The same rows run with one server, with eight, and with as many as the rule of
`slots: {least: 1, most: 8}` asks for. The rule, its settings and the moves are those of a run; it is given the virtual
clock's CPU times instead of measured ones. A batch ends with its slowest server, as a micro-batch does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.figure import Figure

from anabranch.adapt.balancing import Balance
from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.loads import LoadHistory, even_loads
from anabranch.balance.scaling import rescale, spread_over
from anabranch.plan.slots import SlotRange
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from lab.balance_common import Servers, batches, engine_units, keyed_query
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

LIMITS = SlotRange(1, 8)
WINDOW, KEYS = 10.0, 2000
CALM, BUSY = 50.0, 200.0
"""Rows per second of each stream."""
UTILISATION = 0.3
"""How busy one server is with the calm load."""
PROMPT = 2.0
"""Seconds after its arrival by which a batch of one second should be done."""


@dataclass(frozen=True)
class Run:
    """One run: for each batch the slots in use and the seconds from its arrival to its end; the results in all."""

    slots: tuple[int, ...]
    late: tuple[float, ...]
    results: int
    phase: int
    """Batches of each of the three phases of load."""

    def of_phase(self, number: int) -> slice:
        """The second half of a phase, by when the number of slots should have followed."""
        return slice(number * self.phase + self.phase // 2, (number + 1) * self.phase)

    @property
    def slot_seconds(self) -> int:
        return sum(self.slots)


def measure(setting: Setting) -> dict[str, Run]:
    phase = 60 if setting.quick else 120
    slowdown = _slowdown(setting.seed)
    return {name: _run(slots, phase, slowdown, setting.seed) for name, slots in _SETTINGS.items()}


_SETTINGS: Mapping[str, SlotRange] = {"one": SlotRange.fixed(1), "eight": SlotRange.fixed(8), "elastic": LIMITS}


def _slowdown(seed: int) -> float:
    """How much slower than the engine servers are, so that the calm load keeps one as busy as it should."""
    host = LocalHost(keyed_query("ab", WINDOW), parse("(a b)"), slots=1)
    servers = Servers(host, 1.0, engine_units())
    rows = batches(np.random.default_rng(seed), 3 * WINDOW, 1.0, lambda _: dict.fromkeys("ab", CALM), _keys())
    costs = [float(servers.step(arrived, tables).sum()) for arrived, tables in rows]
    return UTILISATION / float(np.mean(costs[len(costs) // 2 :]))


def _keys() -> np.ndarray:
    return np.full(KEYS, 1 / KEYS)


def _run(slots: SlotRange, phase: int, slowdown: float, seed: int) -> Run:
    host = LocalHost(keyed_query("ab", WINDOW), parse("(a b)"), slots=LIMITS.most, balance=Balance("manual"))
    available = tuple(range(slots.start))
    host.spread(spread_over(host.partitioning, slots.start))
    servers = Servers(host, slowdown, engine_units(), together=True)
    watch = LoadHistory(Balance("auto"))
    used, late, results, began = [], [], 0, 0.0

    def rates(second: float) -> dict[str, float]:
        return dict.fromkeys("ab", BUSY if phase <= second < 2 * phase else CALM)

    for number, (arrived, tables) in enumerate(batches(np.random.default_rng(seed), 3 * phase, 1.0, rates, _keys())):
        begins = float(servers.begins(arrived).max())
        costs = servers.step(arrived, tables)
        results += host.statistics.rows_out
        used.append(len(available))
        late.append(float(servers.free.max()) - arrived)
        reports = {slot: replace(report, cpu=float(costs[slot])) for slot, report in host.reports.items()}
        period = begins - began if number else None
        watch = watch.after(BatchFacts(number, 1.0, period=period), reports)
        began = begins
        wanted = watch.other_number(available, slots) if slots.is_elastic else None
        if wanted is not None:
            available = tuple(range(wanted[0]))
            table = host.partitioning
            host.spread(rescale(table, even_loads(table), available).applied(table))
            watch = watch.decided()
    return Run(tuple(used), tuple(late), results, phase)


def present(found: Mapping[str, Run]) -> Outcome:
    elastic, one, eight = found["elastic"], found["one"], found["eight"]
    rows: list[tuple[Cell, ...]] = [
        (name, batch, run.slots[batch], run.late[batch])
        for name, run in found.items()
        for batch in range(len(run.late))
    ]
    before, during, after = (round(float(np.mean(elastic.slots[elastic.of_phase(n)])), 2) for n in range(3))
    behind = {name: max(run.late[run.of_phase(1)]) for name, run in found.items()}
    saved = 1 - elastic.slot_seconds / eight.slot_seconds
    reacts = next((n for n, late in enumerate(elastic.late[elastic.phase :]) if late <= PROMPT), None)
    worst = max(elastic.late)
    verdicts = (
        Verdict(
            "(own bar) the number of slots follows the load, up and down",
            f"{before:g} slots with the calm load, {during:g} with four times as many rows, {after:g} after it",
            {"more with more rows": during > before, "fewer again": after < during, "within the limits": during <= 8},
        ),
        Verdict(
            f"(own bar) batches are done within {PROMPT:g} s again while the load is high, as with eight slots",
            f"in the second half of it {behind['elastic']:.2f} s at most ({behind['eight']:.2f} s with eight slots, "
            f"{behind['one']:.0f} s with one); on the way up {worst:.1f} s at worst",
            {
                f"within {PROMPT:g} s": behind["elastic"] <= PROMPT,
                "one slot is too few": behind["one"] > PROMPT,
                "the wait is worked off": reacts is not None,
            },
        ),
        Verdict(
            "(own bar) slots that are not needed are not used, and the results are the same",
            f"{saved:.0%} fewer seconds of slots than with eight; {elastic.results:,} results",
            {
                "a third fewer seconds of slots": saved >= 1 / 3,
                "the same results": elastic.results == one.results == eight.results,
            },
        ),
    )
    note = (
        f"virtual clock, up to {LIMITS.most} servers charged with the engine's unit costs, slowed down until one is "
        f"busy for {UTILISATION:.0%} of the time with {CALM:g} rows/s; the settings of the rule are the defaults"
    )
    return Outcome(("setting", "batch", "slots", "late s"), tuple(rows), lambda f: _draw(f, found), verdicts, (note,))


def _draw(figure: Figure, found: Mapping[str, Run]) -> None:
    upper, lower = figure.subplots(2, sharex=True)
    for name, run in found.items():
        upper.step(range(len(run.slots)), run.slots, label=name)
        lower.plot(run.late, label=name)
    upper.set(ylabel="slots in use")
    upper.legend()
    lower.set(xlabel="seconds", ylabel="s from arrival to end", yscale="log")


EXPERIMENTS = (Experiment("balance-elastic", "The number of slots follows the load", measure, present),)
