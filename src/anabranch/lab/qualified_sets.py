"""Which plans keep up, and at what cost in memory: the four settings of Zhu, Raghavan and Rundensteiner 2010 (Table 2).

Charges are those of Table 3, with two things said openly. C_j is charged per comparison, because only then the mjoin of
set 2 saturates as reported; and a fifth of it, because otherwise every plan of set 3 would saturate as well. Set 4 as
printed (W = 50 s) asks for 80 to 450 million comparisons a second from any plan, a hundred times the other sets; it is
run with W = 10 s, which keeps the order and the ratios of its plans. Memory counts rows of 10 kB, in states and queues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from anabranch import cql
from anabranch.calibrate.measure import stream
from anabranch.catalog import Catalog
from anabranch.cost.estimates import from_edges
from anabranch.cost.resources import NESTED, ResourceModel
from anabranch.lab.registry import Cell, Experiment, Outcome, Setting, Verdict, misses
from anabranch.lab.virtual_clock import Moment, run_query
from anabranch.optimize.min_state import min_state
from anabranch.optimize.ranking import ranked_orderer
from anabranch.optimize.strategy import Budget, Proposal
from anabranch.optimize.two_layer import two_layer
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Query
from anabranch.schema import TIMESTAMP
from anabranch.stats.step import StepStatistics

UNITS = replace(NESTED, compare=NESTED.compare / 5)
ROW_BYTES = 10_000.0
FALLING_BEHIND = 0.04
"""A plan keeps up when what it is late by grows by less than this share of the time; bursts alone make it late too."""
SLICE = 0.5
"""Seconds of the streams that go through a plan at once."""


@dataclass(frozen=True)
class Set:
    """One column of Table 2; streams are joined in a chain."""

    rates: Mapping[str, float]
    selectivities: Mapping[tuple[str, str], float]
    window: float
    memory: float
    expected: Mapping[str, bool]
    """Whether the paper has each plan as qualified."""


SETS = {
    1: Set(dict.fromkeys("abc", 20.0), {("a", "b"): 0.05, ("b", "c"): 0.5}, 5, 300e6, {"mjoin": True, "tree": True}),
    2: Set(
        {"a": 20.0, "b": 20.0, "c": 50.0},
        {("a", "b"): 0.02, ("b", "c"): 0.5},
        15,
        300e6,
        {"mjoin": False, "tree": True},
    ),
    3: Set(
        dict.fromkeys("abcd", 10.0),
        {("a", "b"): 0.1, ("b", "c"): 0.15, ("c", "d"): 0.1},
        15,
        30e6,
        {"mjoin": True, "tree": False},
    ),
    4: Set(
        dict.fromkeys("abcd", 20.0),
        {("a", "b"): 0.02, ("b", "c"): 0.2, ("c", "d"): 0.05},
        10,
        30e6,
        {"mjoin": False, "tree": False, "jtree": True},
    ),
}


def run(setting: Setting) -> Outcome:
    seconds = 40.0 if setting.quick else 60.0
    rows: list[tuple[Cell, ...]] = []
    verdicts: list[Verdict] = []
    curves: dict[tuple[int, str], list[Moment]] = {}
    for number, given in SETS.items():
        words = []
        for name, plan in plans(given).items():
            moments, ended = _measure(given, plan, seconds, setting.seed)
            curves[number, name] = moments
            late, middle = _late(moments[-1]), _late(moments[len(moments) // 2])
            keeps_up, fits = late - middle < FALLING_BEHIND * seconds / 2, not ended
            rows += [_row(number, name, given, moments, second) for second in np.arange(5.0, seconds + 1, 5.0)]
            fate = "qualified" if keeps_up and fits else "out of memory" if ended else f"{late:.0f} s behind"
            agrees = (keeps_up and fits) == given.expected[name]
            words.append(f"{name} {plan} {fate}{misses({name: agrees})}")
        expected = ", ".join(f"{name} {'' if good else 'not '}qualified" for name, good in given.expected.items())
        verdicts.append(Verdict(f"set {number}: {expected}", f"after {seconds:g} s {'; '.join(words)}"))
    columns = ("set", "plan", "second", "results", "state rows", "queued rows", "memory MB")
    note = Verdict("Table 3 charges", "virtual clock, C_j / 5 per comparison, set 4 with W = 10 s (see the module)")
    return Outcome(columns, tuple(rows), lambda figure: _draw(figure, curves, seconds), (*verdicts, note))


def model(given: Set) -> ResourceModel:
    return ResourceModel(from_edges(given.rates, given.window, given.selectivities, ROW_BYTES), UNITS, keyed=False)


def plans(given: Set) -> dict[str, PhysicalPlan]:
    """The best mjoin and tree, and where the paper needs one, the mixture that the optimizer finds."""
    orderer = ranked_orderer(model(given))
    found = {"mjoin": orderer.plan(orderer.mjoin()), "tree": orderer.plan(min_state(orderer))}
    if "jtree" in given.expected:
        answer = two_layer(orderer, Budget(cpu=1.0, memory=given.memory))
        if isinstance(answer, Proposal):
            found["jtree"] = answer.plan
    return found


def _measure(given: Set, plan: PhysicalPlan, seconds: float, seed: int) -> tuple[list[Moment], bool]:
    """The moments of one plan, and whether it ran out of memory."""
    moments: list[Moment] = []
    for moment in run_query(_query(given), plan, _slices(given, seconds, seed), _charge):
        moments.append(moment)
        if moment.state_rows * ROW_BYTES > given.memory:
            return moments, True
    return moments, False


def _late(moment: Moment) -> float:
    return moment.done - moment.arrived


def _charge(step: StepStatistics) -> float:
    compared = sum(probe.state_rows for probe in step.probes)
    moved = sum(state.inserted * UNITS.insert + state.dropped * UNITS.delete for state in step.states)
    return compared * UNITS.compare + moved


def _query(given: Set) -> Query:
    catalog = Catalog()
    for name in given.rates:
        catalog.register(stream(name, tuple("".join(pair) for pair in given.selectivities if name in pair)))
    windows = ", ".join(f"{name} [RANGE {given.window} SECONDS]" for name in given.rates)
    equal = " AND ".join(f"{a}.{a}{b} = {b}.{a}{b}" for a, b in given.selectivities)
    return cql.compile_query(f"SELECT a.ab AS answer FROM {windows} WHERE {equal}", catalog)


def _slices(given: Set, seconds: float, seed: int) -> Iterator[tuple[float, Mapping[str, pa.Table]]]:
    rng = np.random.default_rng(seed)
    tables, times = {}, {}
    for name, rate in given.rates.items():
        arrivals = np.cumsum(rng.exponential(1 / rate, int(rate * seconds * 1.2) + 50))
        times[name] = arrivals
        instants = pa.array((arrivals * 1e6).astype(np.int64)).cast(pa.timestamp("us")).cast(TIMESTAMP)
        keys = {
            "".join(pair): rng.integers(0, round(1 / selectivity), arrivals.size)
            for pair, selectivity in given.selectivities.items()
            if name in pair
        }
        tables[name] = pa.table({"ts": instants, **keys})
    for end in np.arange(SLICE, seconds + SLICE / 2, SLICE):
        bounds = {name: np.searchsorted(arrivals, [end - SLICE, end]) for name, arrivals in times.items()}
        yield float(end), {name: tables[name].slice(low, high - low) for name, (low, high) in bounds.items()}


def _row(number: int, name: str, given: Set, moments: list[Moment], second: float) -> tuple[Cell, ...]:
    """The plan as it stands at one second: what it is through with, and what waits."""
    done = [moment for moment in moments if moment.done <= second]
    last = done[-1] if done else Moment(0.0, 0.0, 0, 0, 0)
    arrived = [moment for moment in moments if moment.arrived <= second]
    queued = (arrived[-1].rows if arrived else 0) - last.rows
    memory = (last.state_rows + queued) * ROW_BYTES / 1e6
    return number, name, float(second), last.results, last.state_rows, queued, memory


def _draw(figure: Figure, curves: Mapping[tuple[int, str], list[Moment]], seconds: float) -> None:
    panels = figure.subplots(2, len(SETS))
    for (number, name), moments in curves.items():
        upper, lower = panels[0][number - 1], panels[1][number - 1]
        shown = [moment for moment in moments if moment.done <= seconds]
        upper.plot([moment.done for moment in shown], [moment.results for moment in shown], label=name)
        lower.plot([moment.done for moment in shown], [moment.state_rows for moment in shown], label=name)
        upper.set(title=f"set {number}", xlim=(0, seconds))
        lower.set(xlabel="seconds", xlim=(0, seconds))
        lower.axhline(SETS[number].memory / ROW_BYTES, color="grey", linewidth=0.8, linestyle=":")
        lower.set_yscale("log")
    panels[0][0].set_ylabel("results")
    panels[1][0].set_ylabel("rows in states")
    panels[0][-1].legend()


EXPERIMENTS = (Experiment("qualified-four-sets", "Mjoin, tree and jtree in four settings (Table 2)", run),)
