"""The query of the migration experiments: four streams in a chain, from one linear tree to another.

Zhu 2006, Figure 10.1: the old plan joins a and b first, the new one b and c. Streams are Poisson with the printed gaps,
keys are uniform so that pairs agree with the printed selectivities. The engine is the product's own and is driven in
small batches; on the virtual clock each comparison of a nested loop and each insertion is charged as in Section 12.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import thread_time

import numpy as np
import pyarrow as pa

from anabranch import cql
from anabranch.calibrate.engine_costs import stream
from anabranch.engine.batch import RelationBatch
from anabranch.engine.engine import Engine
from anabranch.lang.catalog import Catalog
from anabranch.lang.expr import columns as columns_of
from anabranch.lang.schema import TIMESTAMP
from anabranch.migrate.strategies.registry import strategy_named
from anabranch.plan.physical import nodes
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.stats.step import StepStatistics
from lab.papers.migration_costs import Streams
from lab.virtual_clock import Floats, SourceRows, poisson_rows

OLD, NEW = parse("(((a b) c) d)"), parse("(((b c) d) a)")
PAIRS = (("a", "b"), ("b", "c"), ("c", "d"))
COMPARE, INSERT = 2e-5, 2e-6
"""Seconds on the virtual clock; the paper prints neither. A tenth for an insertion, as in Table 8.1."""


@dataclass(frozen=True)
class Configuration:
    """A column of Table 16.1: window and mean gaps in milliseconds, selectivities of the three predicates."""

    window: float
    gaps: Mapping[str, float]
    selectivities: tuple[float, float, float]

    @property
    def streams(self) -> Streams:
        rates = {name: 1e3 / gap for name, gap in self.gaps.items()}
        return Streams(rates, self.window / 1e3, dict(zip(PAIRS, self.selectivities, strict=True)), COMPARE, INSERT)

    @property
    def query(self) -> Query:
        catalog = Catalog()
        for name in self.gaps:
            catalog.register(stream(name, tuple("".join(pair) for pair in PAIRS if name in pair)))
        windows = ", ".join(f"{name} [RANGE {self.window:g} MILLISECONDS]" for name in self.gaps)
        equal = " AND ".join(f"{x}.{x}{y} = {y}.{x}{y}" for x, y in PAIRS)
        return cql.compile_query(f"SELECT a.ab AS answer FROM {windows} WHERE {equal}", catalog)

    def rows(self, seconds: float, seed: int) -> dict[str, SourceRows]:
        rng = np.random.default_rng(seed)
        chances = {frozenset(pair): value for pair, value in zip(PAIRS, self.selectivities, strict=True)}
        return {
            name: poisson_rows(rng, int(1.2e3 * seconds / gap) + 50, 1e3 / gap, name, chances)
            for name, gap in self.gaps.items()
        }


@dataclass(frozen=True)
class Changed:
    """The work of moving state: pairs that a nested loop compares, rows that new states got, seconds of a core."""

    pairs: int
    rows: int
    seconds: float


class Feed:
    """An engine that is given its rows slice by slice, up to a moment of event time."""

    def __init__(self, configuration: Configuration, rows: Mapping[str, SourceRows], plan: str) -> None:
        self.query = configuration.query
        self.engine = Engine.alone(self.query, parse(plan))
        self.now = 0.0
        self._rows = rows
        self._floors = dict.fromkeys(rows, 0)

    def until(self, second: float) -> tuple[int, StepStatistics]:
        """Takes the rows that arrive by then; the results they bring, and what was done for them."""
        batches = {}
        floors = dict(self._floors)
        for name, source in self._rows.items():
            low, high = np.searchsorted(source.times, [self.now, second])
            if high > low:
                batches[name] = self._batch(name, source, int(low), int(high))
                self._floors[name] = int(batches[name].times[-1])
        self.now = second
        results = sum(batch.num_rows for _, batch in self.engine.step(batches, floors))
        return results, self.engine.statistics().total

    def change(self, plan: str, strategy: str) -> Changed:
        """Changes the plan before the next slice."""
        started = thread_time()
        recomputed = self.engine.migrate(parse(plan), strategy_named(strategy)).recomputed
        seconds = thread_time() - started
        sizes = {name: base.ring.live for name, base in self.engine.bases.items()} | dict(recomputed)
        pairs = 0
        for node in nodes(parse(plan)):
            if node.shape in recomputed:
                left, right = (sizes[str(child)] for child in node.inputs)
                pairs += left * right
        return Changed(pairs, sum(recomputed.values()), seconds)

    def _batch(self, name: str, source: SourceRows, low: int, high: int) -> RelationBatch:
        times = np.rint(source.times[low:high] * 1e6).astype(np.int64)
        columns = {"".join(sorted(pair)): keys[low:high] for pair, keys in source.keys.items()}
        codes = {
            key.name: columns[column.name]
            for key in self.query.graph.keys_of([name])
            for column in columns_of(key.expression(name))
        }
        schema = self.query.graph.relation(name).schema
        payload = {field.name: columns.get(field.name, _instants(times)) for field in schema}
        return RelationBatch(times, codes, pa.RecordBatch.from_pydict(payload))


def charged(step: StepStatistics) -> float:
    """Seconds on the virtual clock for what a step did."""
    compared = sum(probe.state_rows for probe in step.probes)
    moved = sum(state.inserted + state.dropped for state in step.states)
    return compared * COMPARE + moved * INSERT


def slope(x: Floats, y: Floats) -> float:
    """The exponent b of the best fit y = c x^b."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def steps(start: float, stop: float, width: float) -> Iterator[float]:
    """Ends of slices of that width."""
    yield from (start + width * (i + 1) for i in range(round((stop - start) / width)))


def _instants(times: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> pa.Array:
    return pa.array(times).cast(pa.timestamp("us")).cast(TIMESTAMP)
