"""Group-by below a join: when it pays to merge rows before they join (Zhu 2006, Section 14.1, Query 1).

The paper rewrites SUM over a many-to-many join into a group-by in two stages and leaves open when that pays. Here the
number of rows that share a key and a slide is varied at a constant rate, and the same rows go through the join of
single rows, with one input merged, with both, and through a run that starts with single rows and moves the group-by
below the join half-way. Combinations are counted; CPU is processor seconds of this process during steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import process_time

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.plan.physical import JoinNode, shape
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

SLIDE, WINDOW, BATCH = 4, 20, 2
"""Seconds."""
RATE = 400
"""Rows per second of each stream."""
COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("v", pa.int64())])
PLANS = ("(a b)", "([a] b)", "([a] [b])", "(a b), then ([a] [b])")


@dataclass(frozen=True)
class Course:
    """One run: its work and its answers."""

    matches: int
    cpu: float
    join_rows: int
    """Rows at the end in the states that the join probes."""
    answers: frozenset[tuple[object, ...]]


def measure(setting: Setting) -> dict[int, dict[str, Course]]:
    """Every plan, by the number of rows that share a key and a slide."""
    seconds = 40 if setting.quick else 80
    shared = (1, 8, 32) if setting.quick else (1, 2, 4, 8, 16, 32)
    follow(seconds=3 * SLIDE, keys=8, plan=PLANS[2], seed=setting.seed)
    return {
        rows: {plan: follow(seconds, max(1, RATE * SLIDE // rows), plan, setting.seed) for plan in PLANS}
        for rows in shared
    }


def present(found: Mapping[int, Mapping[str, Course]]) -> Outcome:
    shared = tuple(found)
    rows: list[tuple[Cell, ...]] = [
        (count, plan, course.matches, round(course.cpu, 3), course.join_rows)
        for count, courses in found.items()
        for plan, course in courses.items()
    ]

    def draw(figure: Figure) -> None:
        counted, timed = figure.subplots(1, 2)
        for plan in PLANS:
            counted.loglog(shared, [found[rows][plan].matches for rows in shared], "o-", label=plan)
            timed.loglog(shared, [found[rows][plan].cpu for rows in shared], "o-", label=plan)
        counted.set(xlabel="rows per key and slide", ylabel="combinations", title="What the join makes")
        timed.set(xlabel="rows per key and slide", ylabel="seconds of CPU", title="What the run costs")
        counted.legend()

    fewest, most = found[shared[0]], found[shared[-1]]
    single, both = PLANS[0], PLANS[2]
    fewer = {count: courses[single].matches / courses[both].matches for count, courses in found.items()}
    verdicts = (
        Verdict(
            "a lower group-by decreases the rows that enter the join and may decrease the total cost",
            f"with {shared[-1]} rows per key and slide the join makes {fewer[shared[-1]]:.0f} times fewer combinations "
            f"and the run takes {most[single].cpu / most[both].cpu:.1f} times less CPU",
            {
                "fewer rows to join": most[both].join_rows < most[single].join_rows,
                "fewer combinations": fewer[shared[-1]] > 1,
                "less CPU": most[both].cpu < most[single].cpu,
            },
        ),
        Verdict(
            "it pays only under certain conditions",
            f"with {shared[0]} row per key and slide the join makes {fewer[shared[0]]:.1f} times fewer combinations, "
            f"and the run takes {fewest[both].cpu / fewest[single].cpu:.2f} times the CPU",
            {
                "less gained in combinations": fewer[shared[0]] < fewer[shared[-1]],
                "no CPU saved": fewest[both].cpu >= fewest[single].cpu,
            },
        ),
        Verdict(
            "the answer does not change, also when the group-by moves below the join half-way (our own bar)",
            f"{sum(len(courses[single].answers) for courses in found.values()):,} answers compared in "
            f"{len(PLANS)} runs each",
            {
                "same answers": all(
                    len({course.answers for course in courses.values()}) == 1 for courses in found.values()
                ),
                "some answers": all(course.answers for courses in found.values() for course in courses.values()),
            },
        ),
    )
    columns = ("rows per key and slide", "plan", "combinations", "CPU seconds", "rows the join looks into")
    return Outcome(columns, tuple(rows), draw, verdicts)


def follow(seconds: int, keys: int, plan: str, seed: int) -> Course:
    """Runs the query over some seconds of both streams, with a change of plan half-way if a second one is named."""
    catalog = Catalog()
    for name in "ab":
        catalog.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts", 0))
    window = f"[RANGE {WINDOW} SECONDS SLIDE {SLIDE} SECONDS]"
    query = compile_query(
        f"SELECT WINDOW_END() AS at, b.k AS k, SUM(b.v) AS total, AVG(a.v) AS mean, COUNT(*) AS n "
        f"FROM a {window}, b {window} WHERE a.k = b.k GROUP BY b.k",
        catalog,
    )
    first, _, second = plan.partition(", then ")
    host = LocalHost(query, parse(first))
    rng = np.random.default_rng(seed)
    matches, cpu, answers = 0, 0.0, []
    for start in range(0, seconds, BATCH):
        if second and start == seconds // 2:
            host.migrate(parse(second), "parallel-track")
        batch = {name: _rows(rng, start, keys) for name in "ab"}
        began = process_time()
        answers += host.step(batch).to_pylist()
        cpu += process_time() - began
        matches += sum(probe.matches for probe in host.statistics.probes)
    assert isinstance(host.plan, JoinNode)
    looked_into = {shape(child) for child in host.plan.inputs}
    join_rows = sum(state.rows for state in host.statistics.states if state.state in looked_into)
    return Course(matches, cpu, join_rows, frozenset(tuple(answer.values()) for answer in answers))


def _rows(rng: np.random.Generator, start: int, keys: int) -> pa.Table:
    count = RATE * BATCH
    times = np.sort(rng.integers(start * 1_000_000, (start + BATCH) * 1_000_000, count))
    moments = pa.array(times).cast(pa.timestamp("us")).cast(TIMESTAMP)
    return pa.table([moments, pa.array(rng.integers(0, keys, count)), pa.array(rng.integers(0, 100, count))], COLUMNS)


EXPERIMENTS = (Experiment("group-by-below", "Group-by below a join (Zhu 2006, Section 14.1)", measure, present),)
