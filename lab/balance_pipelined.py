"""The operators of one plan in two slots (Zhu 2006, Section 26.3.2), against two slots that each have all operators.

A pipeline puts the lower join of ((a b) c) into one slot and the upper join into another. Its rows are counted in a run
with one slot and divided by join, and sending the rows between the slots costs nothing: no pipeline does less. The
partitioned run is the product's own with two slots, which hold copies where the query has two keys. Both are charged
with the engine's unit costs; the slower slot limits the rows per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from anabranch import cql
from anabranch.cost.units import UnitCosts
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from anabranch.stats.step import StepStatistics, in_turn
from lab.balance_common import charged, engine_units
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

COLUMNS = pa.schema([("ts", TIMESTAMP), *((name, pa.int64()) for name in "xyz")])
CONDITIONS = {1: "a.x = b.x AND b.x = c.x", 2: "a.x = b.x AND b.y = c.y"}
"""By the number of keys."""
WINDOW = 10
"""Batches, of a second each."""
MEASURED = 5
"""The last batches of a run count."""


@dataclass(frozen=True)
class Case:
    """A query, the matches of a row in a full window by join, and the rows of c for each row of a and b."""

    keys: int
    lower: float
    upper: float
    c: float = 1.0
    kept: int = 100
    """The percentage of the matches of the lower join that a predicate keeps."""

    @property
    def name(self) -> str:
        keys = "one key" if self.keys == 1 else "two keys"
        kept = "" if self.kept == 100 else f" ({self.kept} % kept)"
        return f"{keys}, {self.lower:g}{kept} and {self.upper:g} matches, {self.c:g} rows of c"


CASES = (
    *(Case(1, 2.0, 2.0, c) for c in (0.1, 1.0, 4.0)),
    Case(2, 8.0, 0.1),
    Case(2, 2.0, 0.5),
    Case(2, 1.0, 1.0),
    Case(2, 0.5, 2.0),
    Case(2, 0.5, 0.5, 4.0),
    *(Case(keys, 20.0, 2.0, c, kept=5) for keys in (1, 2) for c in (0.5, 2.0)),
    Case(2, 20.0, 2.0, 6.0, kept=5),
)


@dataclass(frozen=True)
class Work:
    """Core seconds by slot, bytes of state by slot, and results."""

    seconds: tuple[float, ...]
    bytes: tuple[int, ...]
    results: int

    @property
    def slowest(self) -> float:
        return max(self.seconds)


Both = tuple[Work, Work]
"""The pipeline and the partitioned run."""


def measure(setting: Setting) -> dict[str, Both]:
    rows = 400 if setting.quick else 2_000
    return {case.name: _compared(case, rows, setting.seed) for case in setting.each(CASES)}


def _compared(case: Case, rows: int, seed: int) -> Both:
    units = engine_units()
    whole = _run(case, rows, seed, 1)[0]
    lower, upper = _divided(whole, units)
    below = {state.state for state in whole.states} & {"a", "b"}
    sizes = (
        sum(state.bytes for state in whole.states if state.state in below),
        sum(state.bytes for state in whole.states if state.state not in below),
    )
    slots = _run(case, rows, seed, 2)
    partitioned = Work(
        tuple(charged(each, units) for each in slots),
        tuple(each.state_bytes for each in slots),
        sum(each.rows_out for each in slots),
    )
    return Work((lower, upper), sizes, whole.rows_out), partitioned


def _run(case: Case, rows: int, seed: int, slots: int) -> list[StepStatistics]:
    """Returns what each slot did in the measured batches."""
    counts = {"a": rows, "b": rows, "c": round(rows * case.c)}
    host = LocalHost(_query(case), parse("((a b) c)"), slots=slots, traffic=counts)
    drawn = np.random.default_rng(seed)
    kept: list[list[StepStatistics]] = [[] for _ in range(slots)]
    for batch in range(2 * WINDOW + MEASURED):
        host.step({name: _rows(drawn, case, rows, count, batch) for name, count in counts.items()})
        for slot in range(slots):
            kept[slot].append(host.reports[slot].statistics)
    return [in_turn(each[-MEASURED:]) for each in kept]


def _query(case: Case) -> Query:
    catalog = Catalog()
    for name in "abc":
        catalog.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts", 0))
    streams = ", ".join(f"{name} [RANGE {WINDOW} SECONDS]" for name in "abc")
    condition = CONDITIONS[case.keys] + (f" AND (a.z + b.z) % 100 < {case.kept}" if case.kept < 100 else "")
    return cql.compile_query(f"SELECT a.x, c.y FROM {streams} WHERE {condition}", catalog)


def _rows(drawn: np.random.Generator, case: Case, rows: int, count: int, batch: int) -> pa.Table:
    """Draws keys of such ranges that a row of c or a combination of a and b has the wanted matches."""
    window = rows * WINDOW
    ranges = round(window / case.lower), round(window / case.upper), 100
    times = np.sort(drawn.integers(batch * 1_000_000, (batch + 1) * 1_000_000, count))
    columns = [pa.array(times).cast(pa.timestamp("us")).cast(TIMESTAMP)]
    columns += [pa.array(drawn.integers(0, most, count)) for most in ranges]
    return pa.table(columns, schema=COLUMNS)


def _divided(whole: StepStatistics, units: UnitCosts) -> tuple[float, float]:
    """Divides the work of a slot between the lower join with its streams, and the upper join with c."""
    base = {name: count for name, count in whole.rows_in.items() if name != "c"}
    lower = replace(
        whole,
        rows_in=base,
        rows_out=0,
        probes=tuple(probe for probe in whole.probes if "c" not in probe.join),
        states=tuple(state for state in whole.states if state.state in base),
    )
    return charged(lower, units), charged(whole, units) - charged(lower, units)


def present(found: Mapping[str, Both]) -> Outcome:
    gains = {name: pipeline.slowest / slots.slowest for name, (pipeline, slots) in found.items()}
    table: list[tuple[Cell, ...]] = [
        (name, way, *(round(1e3 * each, 2) for each in work.seconds), max(work.bytes), work.results)
        for name, both in found.items()
        for way, work in zip(("pipeline", "partitions"), both, strict=True)
    ]
    memory = max(max(slots.bytes) / max(pipeline.bytes) for pipeline, slots in found.values())
    uneven = [gains[name] for name, (pipeline, _) in found.items() if pipeline.slowest > 1.3 * min(pipeline.seconds)]
    verdicts = (
        Verdict(
            "operators of a plan in different slots (Section 26.3.2) where a machine cannot hold the plan",
            f"partitions take {min(uneven):.2f} to {max(uneven):.2f} times the rows per second of a pipeline that "
            f"sends for nothing, {min(gains.values()):.2f} times where both joins take equally long; the fuller slot "
            f"holds at most {memory:.2f} times the bytes",
            {
                "faster where one join takes 1.3 times the other": min(uneven) >= 1.0,
                "at least 0.9 in every setting": min(gains.values()) >= 0.9,
                "at most 1.3 times the bytes": memory <= 1.3,
            },
        ),
        Verdict(
            "both have the same results (own bar)",
            f"{len(found)} settings",
            {"the same results": all(pipeline.results == slots.results for pipeline, slots in found.values())},
        ),
    )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.barh(list(gains), list(gains.values()))
        axes.axvline(1.0, color="grey")
        axes.set(xlabel="rows per second of partitions over those of a pipeline")

    columns = ("setting", "way", "slot 0 ms", "slot 1 ms", "bytes of the fuller slot", "results")
    return Outcome(columns, tuple(table), draw, verdicts)


EXPERIMENTS = (
    Experiment("balance-pipelined", "Operators of one plan in two slots (Zhu 2006, Section 26.3.2)", measure, present),
)
