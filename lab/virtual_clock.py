"""Real operators on a clock that charges each operation a given cost.

The papers' machines were slower than their input; this engine is not. So rows go through the engine's own joins, and
what those joins did is charged to a server that works through its queue in order: a row that arrives at a is done at
max(a, the row before is done) + cost. Two settings of servers are offered: every join of a tree has its own, as the
operators of Niagara had a thread each (`run_tree`); or all joins of a plan share one, as in D-CAPE (`run_query`).
Nothing here reads a real clock, so the same rows give the same times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch import cql
from anabranch.calibrate.engine_costs import stream
from anabranch.errors import PlanError
from anabranch.lang.arrays import Integers
from anabranch.lang.catalog import Catalog
from anabranch.lang.schema import TIMESTAMP
from anabranch.plan.physical import InputOperator, JoinNode, Leaf, PhysicalPlan, Shared
from anabranch.plan.query import Query
from anabranch.run.local import LocalHost
from anabranch.stats.step import StepStatistics

Floats = NDArray[np.float64]
Pair = frozenset[str]


def served(arrivals: Floats, costs: Floats | float) -> Floats:
    """When each of some rows, in order of arrival, leaves a server that handles one at a time."""
    total = np.cumsum(np.broadcast_to(costs, arrivals.shape))
    before = np.concatenate([[0.0], total[:-1]])
    return total + np.maximum.accumulate(arrivals - before)


@dataclass(frozen=True)
class SourceRows:
    """The rows of one stream: arrival times in seconds, and a key for each predicate it takes part in."""

    times: Floats
    keys: Mapping[Pair, Integers]


def poisson_rows(
    rng: np.random.Generator, count: int, rate: float, name: str, selectivities: Mapping[Pair, float]
) -> SourceRows:
    """Rows at random moments; keys are uniform, so a pair agrees with the chance of its predicate's selectivity."""
    times = np.cumsum(rng.exponential(1 / rate, count))
    keys = {
        pair: rng.integers(0, round(1 / selectivity), count)
        for pair, selectivity in selectivities.items()
        if name in pair
    }
    return SourceRows(times, keys)


@dataclass(frozen=True)
class Emitted:
    """Combinations that have left an operator: when, and of which row of each stream each consists."""

    times: Floats
    rows: Mapping[str, Integers]


def run_tree(plan: PhysicalPlan, sources: Mapping[str, SourceRows], handling: Callable[[JoinNode], float]) -> Emitted:
    """The results of a binary tree of symmetric joins, each join a server that needs so long for a row of any side.

    A result leaves when the join has handled the later of its two rows.
    """
    if isinstance(plan, Leaf):
        times = sources[plan.relation].times
        return Emitted(times, {plan.relation: np.arange(times.size)})
    if isinstance(plan, InputOperator | Shared):
        raise PlanError(f"plan '{plan}' merges or shares rows", hint="give a tree of joins of single rows")
    left, right = (run_tree(child, sources, handling) for child in plan.inputs)
    arrivals = np.concatenate([left.times, right.times])
    order = np.argsort(arrivals, kind="stable")
    done = np.empty_like(arrivals)
    done[order] = served(arrivals[order], handling(plan))
    left_done, right_done = done[: left.times.size], done[left.times.size :]
    pairs = _joined(_keys(left, right, sources), _keys(right, left, sources))
    times = np.maximum(left_done[pairs[0]], right_done[pairs[1]])
    rows = {name: numbers[pairs[0]] for name, numbers in left.rows.items()}
    rows |= {name: numbers[pairs[1]] for name, numbers in right.rows.items()}
    in_time = np.argsort(times, kind="stable")
    return Emitted(times[in_time], {name: numbers[in_time] for name, numbers in rows.items()})


def _keys(side: Emitted, other: Emitted, sources: Mapping[str, SourceRows]) -> Integers:
    """The key of each combination of one side under the predicate that connects the two."""
    for name, numbers in side.rows.items():
        for pair, keys in sources[name].keys.items():
            if pair & set(other.rows):
                return keys[numbers]
    raise AssertionError("the sides of a join share no predicate")


def _joined(left: Integers, right: Integers) -> tuple[Integers, Integers]:
    """All pairs of equal keys, found by the engine's own join."""
    host = LocalHost(_pairs_query(), JoinNode((Leaf("l"), Leaf("r"))))
    found = host.step({"l": _table(left), "r": _table(right)})
    return found.column("l").to_numpy(), found.column("r").to_numpy()


def _table(keys: Integers) -> pa.Table:
    instants = pa.array(np.zeros(keys.size, dtype=np.int64)).cast(pa.timestamp("us")).cast(TIMESTAMP)
    return pa.table({"ts": instants, "k": keys, "number": np.arange(keys.size)})


def _pairs_query() -> Query:
    catalog = Catalog()
    for name in ("l", "r"):
        catalog.register(stream(name, ("k", "number")))
    text = "SELECT l.number AS l, r.number AS r FROM l [UNBOUNDED], r [UNBOUNDED] WHERE l.k = r.k"
    return cql.compile_query(text, catalog, allow_unbounded=True)


@dataclass(frozen=True)
class Moment:
    """A plan after it has taken one slice of its streams; times in seconds since the start."""

    arrived: float
    """When the last row of the slice was there."""
    done: float
    """When the plan was through with it."""
    rows: int
    """Rows taken so far."""
    results: int
    state_rows: int


def run_query(
    query: Query,
    plan: PhysicalPlan,
    slices: Iterator[tuple[float, Mapping[str, pa.Table]]],
    charge: Callable[[StepStatistics], float],
) -> Iterator[Moment]:
    """A plan on one server, slice by slice; `charge` says how long what was done takes."""
    host = LocalHost(query, plan)
    now, rows, results = 0.0, 0, 0
    for arrived, tables in slices:
        results += host.step(tables).num_rows
        rows += sum(table.num_rows for table in tables.values())
        now = max(now, arrived) + charge(host.statistics)
        yield Moment(arrived, now, rows, results, host.statistics.state_rows)
