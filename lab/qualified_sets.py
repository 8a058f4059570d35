"""Which plans keep up, and at what cost in memory: the four settings of Zhu, Raghavan and Rundensteiner 2010 (Table 2).

Two constants differ from the paper, and `qualified-four-sets` says how much of its verdicts hangs on them. C_j of Table
3 is charged per comparison, because only then does the mjoin of set 2 saturate as reported, and divided by five,
because at full price every plan of set 3 saturates. Set 4 as printed (W = 50 s) asks for 80 to 450 million comparisons
a second from any plan, a hundred times the other sets; it runs with W = 10 s, which keeps the order and the ratios of
its plans. The experiment repeats the model's verdicts for C_j divided by 1 to 10, so a reader sees for which divisors
the paper's nine verdicts hold. Memory counts rows of 10 kB, in states and in queues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from anabranch import cql
from anabranch.calibrate.engine_costs import stream
from anabranch.cost.estimates import from_edges
from anabranch.cost.resources import ResourceModel
from anabranch.cost.units import UnitCosts
from anabranch.lang.catalog import Catalog
from anabranch.lang.schema import TIMESTAMP
from anabranch.optimize.min_state import min_state
from anabranch.optimize.proposals import Budget, Proposal
from anabranch.optimize.ranking import ranked_orderer
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Query
from anabranch.stats.step import StepStatistics
from lab.papers.printed_costs import NESTED
from lab.papers.two_layer import two_layer
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict
from lab.virtual_clock import Moment, run_query

DIVISOR = 5.0
DIVISORS = (1.0, 2.0, 3.0, 4.0, DIVISOR, 6.0, 8.0, 10.0)
"""By how much the price of a comparison is divided: the one that runs, and those that only the model judges."""
UNITS = replace(NESTED, compare=NESTED.compare / DIVISOR)
ROW_BYTES = 10_000.0
FALLING_BEHIND = 0.04
"""A plan keeps up when its lateness grows by less than this share of the time; bursts alone make a plan late too."""
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


@dataclass(frozen=True)
class Fate:
    """One plan of one set: the moments of its run, and whether it ran out of memory."""

    plan: str
    moments: tuple[Moment, ...]
    is_out_of_memory: bool
    seconds: float

    @property
    def late(self) -> float:
        """Seconds by which the plan is behind its input at the end."""
        return _late(self.moments[-1])

    @property
    def is_qualified(self) -> bool:
        middle = _late(self.moments[len(self.moments) // 2])
        return not self.is_out_of_memory and self.late - middle < FALLING_BEHIND * self.seconds / 2

    def __str__(self) -> str:
        words = "qualified" if self.is_qualified else f"{self.late:.0f} s behind"
        return f"{self.plan} {'out of memory' if self.is_out_of_memory else words}"


@dataclass(frozen=True)
class Sets:
    """Every plan of every set, by set and kind; a plan that the optimizer did not find is absent."""

    fates: Mapping[tuple[int, str], Fate]
    agreeing: Mapping[float, int]
    """How many of the paper's verdicts the model gives, by the divisor of C_j."""


def measure(setting: Setting) -> Sets:
    """Runs every plan on the virtual clock, and asks the model with other prices."""
    seconds = 40.0 if setting.quick else 60.0
    fates = {}
    for number, given in SETS.items():
        for name, plan in plans(given).items():
            moments, ended = _measure(given, plan, seconds, setting.seed)
            fates[number, name] = Fate(str(plan), tuple(moments), ended, seconds)
    return Sets(fates, {divisor: _agreeing(divisor) for divisor in DIVISORS})


def _agreeing(divisor: float) -> int:
    """How many verdicts of the paper the model gives when a comparison costs C_j / divisor."""
    units = replace(NESTED, compare=NESTED.compare / divisor)
    agreeing = 0
    for given in SETS.values():
        priced = model(given, units)
        found = plans(given, units)
        for name, expected in given.expected.items():
            cost = priced.price(found[name]) if name in found else None
            is_qualified = cost is not None and cost.cpu <= 1.0 and cost.memory <= given.memory
            agreeing += is_qualified == expected
    return agreeing


def present(found: Sets) -> Outcome:
    seconds = max(fate.seconds for fate in found.fates.values())
    rows: list[tuple[Cell, ...]] = [
        _row(number, name, fate.moments, second)
        for (number, name), fate in found.fates.items()
        for second in np.arange(5.0, seconds + 1, 5.0)
    ]
    verdicts = []
    for number, given in SETS.items():
        expected = ", ".join(f"{name} {'' if good else 'not '}qualified" for name, good in given.expected.items())
        fates = {name: found.fates.get((number, name)) for name in given.expected}
        words = [f"{name} {fate}" if fate else f"{name}: the optimizer found none" for name, fate in fates.items()]
        reached = {
            name: (fate is not None and fate.is_qualified) == given.expected[name] for name, fate in fates.items()
        }
        verdicts.append(Verdict(f"set {number}: {expected}", f"after {seconds:g} s {'; '.join(words)}", reached))
    nine = sum(len(given.expected) for given in SETS.values())
    verdicts.append(
        Verdict(
            f"Table 3's prices as printed give the {nine} verdicts",
            "by the model, with C_j divided by "
            + ", ".join(f"{divisor:g}: {count}" for divisor, count in found.agreeing.items())
            + f" of {nine}",
            {"as printed": found.agreeing[1.0] == nine},
        )
    )
    columns = ("set", "plan", "second", "results", "state rows", "queued rows", "memory MB")
    note = f"virtual clock, C_j / {DIVISOR:g} per comparison, set 4 with W = 10 s instead of 50 s"
    return Outcome(columns, tuple(rows), lambda figure: _draw(figure, found, seconds), tuple(verdicts), (note,))


def model(given: Set, units: UnitCosts = UNITS) -> ResourceModel:
    return ResourceModel(from_edges(given.rates, given.window, given.selectivities, ROW_BYTES), units, keyed=False)


def plans(given: Set, units: UnitCosts = UNITS) -> dict[str, PhysicalPlan]:
    """The best mjoin and tree, and where the paper needs one, the mixture that the optimizer finds, if it finds one."""
    orderer = ranked_orderer(model(given, units))
    found = {"mjoin": orderer.plan(orderer.mjoin()), "tree": orderer.plan(min_state(orderer))}
    if "jtree" in given.expected:
        answer = two_layer(orderer, Budget(cpu=1.0, memory=given.memory))
        if isinstance(answer, Proposal):
            found["jtree"] = answer.plan
    return found


def _measure(given: Set, plan: PhysicalPlan, seconds: float, seed: int) -> tuple[list[Moment], bool]:
    """The moments of one plan, and whether its states and queues ran out of memory."""
    slices = list(_slices(given, seconds, seed))
    arrived = np.array([end for end, _ in slices])
    taken = np.cumsum([sum(table.num_rows for table in tables.values()) for _, tables in slices])
    moments: list[Moment] = []
    for moment in run_query(_query(given), plan, iter(slices), _charge):
        moments.append(moment)
        # Rows that have arrived while the plan was busy wait in its queues.
        there = int(taken[min(int(np.searchsorted(arrived, moment.done, side="right")), len(taken)) - 1])
        if (moment.state_rows + there - moment.rows) * ROW_BYTES > given.memory:
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


def _row(number: int, name: str, moments: Sequence[Moment], second: float) -> tuple[Cell, ...]:
    """The plan at one second: results and states of the rows it has finished, and rows that wait."""
    done = [moment for moment in moments if moment.done <= second]
    last = done[-1] if done else Moment(0.0, 0.0, 0, 0, 0)
    arrived = [moment for moment in moments if moment.arrived <= second]
    queued = (arrived[-1].rows if arrived else 0) - last.rows
    memory = (last.state_rows + queued) * ROW_BYTES / 1e6
    return number, name, float(second), last.results, last.state_rows, queued, memory


def _draw(figure: Figure, found: Sets, seconds: float) -> None:
    panels = figure.subplots(2, len(SETS))
    for (number, name), fate in found.fates.items():
        upper, lower = panels[0][number - 1], panels[1][number - 1]
        shown = [moment for moment in fate.moments if moment.done <= seconds]
        upper.plot([moment.done for moment in shown], [moment.results for moment in shown], label=name)
        lower.plot([moment.done for moment in shown], [moment.state_rows for moment in shown], label=name)
        upper.set(title=f"set {number}", xlim=(0, seconds))
        lower.set(xlabel="seconds", xlim=(0, seconds))
        lower.axhline(SETS[number].memory / ROW_BYTES, color="grey", linewidth=0.8, linestyle=":")
        lower.set_yscale("log")
    panels[0][0].set_ylabel("results")
    panels[1][0].set_ylabel("rows in states")
    panels[0][-1].legend()


EXPERIMENTS = (Experiment("qualified-four-sets", "Mjoin, tree and jtree in four settings (Table 2)", measure, present),)
