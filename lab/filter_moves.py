"""A dear filter whose data change: checked before the joins, by the joins, or moved while the query runs.

In the first part of the stream the filter rejects nearly every row and the rows would have many partners: before the
joins it spares them nearly everything. In the second part nearly every row passes and hardly any has a partner: by the
joins it is checked on a few rows instead of on all. The same rows go through both fixed places and through a run that
begins with the filter by the joins, weighs the places as it goes, and moves it (`adapt/filter_moves`); a move is a
change of the checkpoint and a new start from it, and counts. CPU is processor seconds of this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from anabranch.adapt.filter_moves import FilterRules, filter_loop
from anabranch.adapt.gate import Gate
from anabranch.adapt.policy import Interval
from anabranch.adapt.settings import Settings
from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.choosing import AUTO, decide, proposal
from anabranch.cql import compile_query
from anabranch.host.changing import change_set
from anabranch.host.local import LocalHost
from anabranch.host.store import Store
from anabranch.optimize import Choice
from anabranch.plan.mesh import Plan
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, alone
from anabranch.schema import TIMESTAMP, Schema
from anabranch.stats.filters import SeenFilter
from anabranch.stats.view import FixedStatistics
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("note", pa.string())])
DEAR = "RLIKE(REGEXP_REPLACE(a.note, '[0-9]+', '#'), '.*lot # was.*')"
TEXT = (
    "SELECT a.k AS k, b.ts AS at FROM a [RANGE 1 SECONDS], b [RANGE 1 SECONDS], c [RANGE 1 SECONDS] "
    "WHERE a.k = b.k AND b.k = c.k AND REGEXP_REPLACE(a.note, '[0-9]+', '#') RLIKE '.*lot # was.*'"
)
ROWS, OTHERS, BATCH = 20_000, 1_000, 100_000
"""Rows of `a` and of each other stream in a batch, and its microseconds."""
WAYS = ("before the joins", "by the joins", "moved")
PHASES = ("rejects nearly all", "passes nearly all")
MOVE = 0.1
"""Seconds of a core that a move is taken to need here, where no query of Spark's has to be started."""


@dataclass(frozen=True)
class Course:
    """One run: processor seconds of each part, the moves, and a fingerprint of its answers."""

    cpu: tuple[float, ...]
    moves: tuple[int, ...]
    """The batches after which filters moved."""
    results: int
    answers: str


def measure(setting: Setting) -> dict[str, Course]:
    """All ways over the same rows."""
    batches = 40 if setting.quick else 600
    follow(WAYS[0], 4, setting.seed)
    return {way: follow(way, batches, setting.seed) for way in WAYS}


def present(found: Mapping[str, Course]) -> Outcome:
    rows: list[tuple[Cell, ...]] = [
        (way, *(round(each, 3) for each in course.cpu), round(sum(course.cpu), 3), len(course.moves), course.results)
        for way, course in found.items()
    ]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for place, phase in enumerate(PHASES):
            below = [sum(course.cpu[:place]) for course in found.values()]
            axes.bar(list(found), [course.cpu[place] for course in found.values()], bottom=below, label=phase)
        axes.set(ylabel="seconds of CPU", title="Where a dear filter is checked")
        axes.legend()

    early, late, moved = (found[way] for way in WAYS)
    cheaper = min(sum(early.cpu), sum(late.cpu))
    verdicts = (
        Verdict(
            "each place is the better one for a part of the stream (our own bar)",
            f"{early.cpu[0]:.2f} s before the joins and {late.cpu[0]:.2f} s by them while the filter rejects, "
            f"{early.cpu[1]:.2f} and {late.cpu[1]:.2f} s while it passes",
            {"early while it rejects": early.cpu[0] < late.cpu[0], "late while it passes": late.cpu[1] < early.cpu[1]},
        ),
        Verdict(
            "a filter that moves costs less than the better of both places (our own bar)",
            f"{sum(moved.cpu):.2f} s with {len(moved.moves)} moves, the better fixed place {cheaper:.2f} s",
            {"less CPU": sum(moved.cpu) < cheaper, "at most three moves": len(moved.moves) <= 3},
        ),
        Verdict(
            "the answer does not change (our own bar)",
            f"{moved.results:,} results of each way",
            {"same answers": len({course.answers for course in found.values()}) == 1, "some": moved.results > 0},
        ),
    )
    return Outcome(("filter", *PHASES, "CPU seconds", "moves", "results"), tuple(rows), draw, verdicts)


def follow(way: str, batches: int, seed: int) -> Course:
    """Runs the query over the stream, half of it of each kind."""
    late = () if way == WAYS[0] else (DEAR,)
    rng, cpu, moves, results = np.random.default_rng(seed), [0.0, 0.0], list[int](), 0
    answers = list[bytes]()
    with TemporaryDirectory() as folder:
        rules = _rules() if way == WAYS[2] else None
        host = _host(compiled(late), first_plan(late), folder, rules)
        for number in range(batches):
            place = int(number >= batches // 2)
            batch = rows_of(rng, number, place)
            began = process_time()
            answer = host.step(batch)
            loop = host.steering.filters
            if loop is not None and loop.wanted is not None:
                wanted, query = loop.wanted, compiled(loop.wanted.late)
                examples = {"a": batch["a"].combine_chunks().to_batches()[0]}
                change_set(Store(folder), host.queries, alone(query), host.partitioning, examples)
                host = _host(query, wanted.plans[ALONE], folder, rules)
                assert host.steering.filters is not None
                host.steering.filters.go_on_from(loop)
                moves.append(number)
            cpu[place] += process_time() - began
            results += answer.num_rows
            answers += [repr(row).encode() for row in answer.to_pylist()]
    return Course(tuple(cpu), tuple(moves), results, sha256(b"\n".join(sorted(answers))).hexdigest())


def compiled(late: Sequence[str]) -> Query:
    """The query with some late filters."""
    catalog = Catalog()
    for name in "abc":
        catalog.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts"))
    return compile_query(TEXT, catalog, late_filters=late)


def first_plan(late: Sequence[str]) -> Plan:
    """The plan that is chosen where nothing is known."""
    return proposal(decide(compiled(late))).plan


def rows_of(rng: np.random.Generator, number: int, place: int) -> dict[str, pa.Table]:
    """A batch of the three streams: of few keys and notes that fail, or of many keys and notes that pass."""
    found = {}
    for name in "abc":
        count = ROWS if name == "a" else OTHERS
        times = np.sort(rng.integers(0, BATCH, count)) + number * BATCH
        is_passing = rng.random(count) < (0.95 if place else 0.001)
        notes = np.where(is_passing, "the lot 17 was sent on its way by the clerk", "the clerk sent nothing on its way")
        keys = rng.integers(0, 1_000_000 if place else 2_000, count)
        moments = pa.array(times).cast(pa.timestamp("us")).cast(TIMESTAMP)
        found[name] = pa.table([moments, pa.array(keys), pa.array(notes.tolist())], COLUMNS)
    return found


def _rules() -> FilterRules:
    settings = Settings(gate=Gate(cool_down=Interval(batches=4)), remember=4)
    seen = SeenFilter("a", DEAR, 0.5, 1e-6)
    return FilterRules((seen,), lambda late: {ALONE: compiled(late)}, _choice, settings, move=MOVE)


def _choice(name: str, query: Query, known: FixedStatistics, batch: float) -> Choice:
    return decide(query, AUTO, seen=known, batch=batch)


def _host(query: Query, plan: Plan, folder: str, rules: FilterRules | None) -> LocalHost:
    assert rules is None or filter_loop(alone(query), rules) is not None
    return LocalHost(query, plan, checkpoint=str(Path(folder)), filters=rules)


EXPERIMENTS = (Experiment("filter-moves", "A dear filter that moves while the query runs", measure, present),)
