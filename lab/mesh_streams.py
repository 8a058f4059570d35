"""Ten streams to be joined, skewed or uniform, and competitors that run the same join: the stage of the mesh labs.

The paper (Nehme et al. 2012, Tables 1-3) gives ten streams, Poisson arrivals half a second apart, Poisson or uniform
values, three skewed partitions per stream, and that each partition has another best order than the stream as a whole.
It does not print selectivities, windows or how partitions differ. Here all streams share one key. A content attribute
(Poisson with mean 1, or uniform over 0-100) decides the partition: 0, 1 or more. Each partition has keys of its own. In
one partition each stream mostly has keys that no other stream has: a probe into it then finds little, where it finds
`fan_out` rows elsewhere. `skew` is the share of keys that are common even there. Uniform data has one fan-out for all.

Every competitor gets the same rows in the same batches in turn; processor time of this process counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from time import perf_counter, process_time
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from anabranch import cql
from anabranch.engine.batch import RelationBatch
from anabranch.engine.engine import Engine
from anabranch.engine.fabric.profile import profile
from anabranch.lang.arrays import Integers
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.mesh.profiled import SEARCH
from anabranch.mesh.whole import QueryMesh, find_query_mesh
from anabranch.plan.mesh import Mesh, Plan, one_route
from anabranch.plan.physical import JoinNode, Leaf
from anabranch.plan.query import Query
from anabranch.stats.step import StepStatistics, merge

Batch: TypeAlias = dict[str, RelationBatch]

STREAMS = tuple(f"s{number}" for number in range(10))
PARTITIONS = 3
GAP = 500_000
"""Mean microseconds between two rows of a stream."""
UNIFORM_FAN_OUT = 0.95
SETTING = replace(SEARCH, early_out=False)
"""The search of the product: ten training rows after condensing, as in Table 1, from the route-driven start."""
SAMPLE = 1_000


@dataclass(frozen=True)
class Streams:
    """The properties of the ten streams."""

    skewed: bool = True
    skew: float = 0.05
    fan_out: float = 3.0
    batch: int = 40_000
    """Rows of each stream in a batch."""
    window: int = 80_000
    """Rows of each stream in a window."""

    @property
    def query(self) -> Query:
        catalog = Catalog()
        fields = [Field(name, pa.int64(), False) for name in ("k", "c", "u", "v", "w")]
        for name in STREAMS:
            catalog.register(StreamDeclaration(name, Schema((Field("ts", TIMESTAMP, False), *fields)), "ts"))
        contents = " + ".join(f"{name}.c" for name in STREAMS)
        windows = ", ".join(f"{name} [RANGE {self.window * GAP // 1_000_000} SECONDS]" for name in STREAMS)
        keys = " AND ".join(f"{STREAMS[0]}.k = {name}.k" for name in STREAMS[1:])
        return cql.compile_query(f"SELECT {contents} AS contents FROM {windows} WHERE {keys}", catalog)

    def batches(
        self, count: int, rng: np.random.Generator, turn: Callable[[int], int] = lambda _: 0
    ) -> Iterator[Batch]:
        code = self.query.graph.keys[0].name
        clocks = np.zeros(len(STREAMS), dtype=np.int64)
        for number in range(count):
            rows: Batch = {}
            for place, name in enumerate(STREAMS):
                times = clocks[place] + np.cumsum(np.ceil(rng.exponential(GAP, self.batch))).astype(np.int64)
                clocks[place] = times[-1]
                content, keys = self._content(rng, place + turn(number))
                payload = pa.record_batch({"c": content})
                rows[name] = RelationBatch(times, {code: keys}, payload)
            yield rows

    def _content(self, rng: np.random.Generator, place: int) -> tuple[Integers, Integers]:
        """The content attribute and the key of each row of one stream."""
        if not self.skewed:
            content = rng.integers(0, 101, self.batch)
            return content, rng.integers(0, int(self.window / UNIFORM_FAN_OUT), self.batch)
        content = rng.poisson(1.0, self.batch)
        partition = np.minimum(content, PARTITIONS - 1)
        shares = np.array([np.exp(-1), np.exp(-1), 1 - 2 * np.exp(-1)])
        domains = (self.window * shares / self.fan_out).astype(np.int64)
        keys = rng.integers(0, domains[partition]) + partition * 10 * self.window
        alone = (partition == place % PARTITIONS) & (rng.random(self.batch) >= self.skew)
        # A key that nobody else has: negative, and apart for each stream.
        keys[alone] = -1 - rng.integers(0, 1 << 40, int(alone.sum())) * len(STREAMS) - place
        return content, keys


PROCESSING = ("append", "insert", "probe", "check", "project", "drop")
"""Kinds of work that are query processing; all other time of a step counts as routing."""


@dataclass(frozen=True)
class Figures:
    """The work of one competitor: rows, results, processor and wall seconds, and wall seconds of query processing."""

    rows: int
    results: int
    seconds: float
    wall: float
    processing: float
    classifying: float
    """Seconds of deciding alone: classifying and cutting."""

    @property
    def rate(self) -> float:
        """Results per second of processor time."""
        return self.results / self.seconds

    @property
    def per_row(self) -> float:
        """Microseconds of processor time for each row that came in."""
        return 1e6 * self.seconds / self.rows

    @property
    def routing(self) -> float:
        """The share of a step that is not query processing: classifying, cutting, forwarding, gathering, glue."""
        return max(0.0, 1 - self.processing / self.wall)

    @property
    def deciding(self) -> float:
        return self.classifying / self.seconds


class Competitor:
    """An engine with a count of its work since `start`."""

    def __init__(self, query: Query, plan: Plan | None = None) -> None:
        self.engine = Engine.alone(query, plan or one_route(query.graph))
        self.start()

    def start(self) -> None:
        """Counts from here."""
        self._seconds, self._wall, self._results, self._rows = 0.0, 0.0, 0, 0
        self._steps: list[StepStatistics] = []

    def step(self, rows: Mapping[str, RelationBatch], floors: Mapping[str, int]) -> None:
        started, began = process_time(), perf_counter()
        self._results += sum(batch.num_rows for _, batch in self.engine.step(rows, floors))
        self._seconds += process_time() - started
        self._wall += perf_counter() - began
        self._rows += sum(len(batch) for batch in rows.values())
        self._steps.append(self.engine.statistics().total)

    @property
    def statistics(self) -> StepStatistics:
        return merge(self._steps)

    @property
    def figures(self) -> Figures:
        spent = self.statistics.seconds
        processing = sum(spent.get(kind, 0.0) for kind in PROCESSING)
        return Figures(self._rows, self._results, self._seconds, self._wall, processing, spent.get("classify", 0.0))


def floors_before(rows: Mapping[str, RelationBatch]) -> dict[str, int]:
    """Rows come in order, so nothing below the first of a batch will come any more."""
    return {name: int(batch.times[0]) for name, batch in rows.items()}


def learn(engine: Engine, rng: np.random.Generator, current: Mesh | None = None) -> QueryMesh:
    """Profiles the operators on the youngest rows of each stream, and searches."""
    graph = engine.queries.graph
    seen = [
        profile(graph, name, engine.bases, rows=SAMPLE, batch_starts=engine.only.batch_starts) for name in graph.names
    ]
    return find_query_mesh(graph, seen, rng, SETTING, current)


def single_plan(found: QueryMesh) -> JoinNode:
    """The mjoin in which rows of each stream take the best single order by the same statistics."""
    names = found.single.relations
    orders = [tuple(names.index(other) for other in found.single.of(name).routes[0].operators) for name in names]
    return JoinNode(tuple(Leaf(name) for name in names), tuple(orders))


def heirs(first: Engine, plans: Mapping[str, Plan]) -> dict[str, Competitor]:
    """Competitors with these plans that go on with the rows of an engine; there are only base states to take over."""
    found = {name: Competitor(first.queries.members[0].query, plan) for name, plan in plans.items()}
    for competitor in found.values():
        competitor.engine.restore(first.export(), None)
    return found


def plan_and_mesh(first: Engine, rng: np.random.Generator) -> dict[str, Competitor]:
    """The single plan and the mesh from the same statistics.

    The fabric runs the mesh even where the search left one route per stream. A query with `plan: auto` would run the
    single plan there, and a comparison would have the same plan on both sides.
    """
    found = learn(first, rng)
    return heirs(first, {"plan": single_plan(found), "mesh": found.mesh})
