"""The workloads of the regret suite: streams that stay, change, are skewed, or are real, as batches of Arrow tables.

Invariant: a workload is a value. Its rows follow from the seed and the number of a batch alone, so every plan and every
way of choosing sees the same rows in the same batches. A batch has `BATCH` seconds of event time: the streams are fast
enough to keep a good part of a core busy, because a query that needs a thousandth of a core has nothing to gain. A
batch is large enough that its rows cost more than its calls, as those of a query on Spark are.

Each change happens at a share of the run, so that a short run and a long one have the same story. Fan-outs are the
partners that a row meets in one window of the other stream; domains of keys follow from them. Which settings were
chosen because some method wins there is said in `why`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from anabranch import cql
from anabranch.lang.arrays import Integers
from anabranch.lang.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.plan.query import Query

BATCH = 0.1
"""Seconds of event time in a batch of a drawn workload."""
WINDOW = 10
"""Batches in a window."""
ALONE = 1 << 40
"""The domain of a key that meets nothing."""
START = 1_700_000_000_000_000

Kind: TypeAlias = Literal["steady", "changing", "restless", "skewed", "real"]
"""Restless streams change too often to be followed: standing still is right there, and no gain is asked."""
Columns: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Moment:
    """A place in a run."""

    share: float
    """The share of the run that has passed."""
    held: int
    """Rows in the window of a stream of rate 1; domains of keys are proportional to it."""

    def domain(self, fan_out: float) -> int:
        """Values of a key by which a row meets so many partners in a window."""
        return max(1, round(self.held / fan_out))


Draw: TypeAlias = Callable[[np.random.Generator, str, int, Moment], Columns]
"""Draws columns of a stream: a generator, the stream, how many rows, and when."""
Batches: TypeAlias = Iterator[dict[str, pa.Table]]


@dataclass(frozen=True)
class Size:
    """How long and how broad a run is."""

    batches: int = 160
    rows: int = 10_000
    """Rows of a stream of rate 1 in a batch."""
    every_shape: int = 5
    """Relations up to which every shape of a static plan is tried."""
    most_plans: int | None = None
    """How many static plans are tried, the most promising first; all when None."""


@dataclass(frozen=True)
class Workload:
    """A query, its streams, and how their rows are drawn."""

    name: str
    kind: Kind
    why: str
    text: str
    types: Mapping[str, pa.DataType]
    """The columns of every stream, beside its event time."""
    draw: Draw
    streams: tuple[str, ...]
    rate: Callable[[str, float], float] = lambda stream, share: 1.0
    """The rate of a stream when a share of the run has passed."""
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    batch: float = BATCH

    @property
    def query(self) -> Query:
        catalog = Catalog()
        columns = pa.schema([("ts", TIMESTAMP), *self.types.items()])
        for name in self.streams:
            catalog.register(StreamDeclaration(name, Schema.from_arrow(columns), "ts"))
        for name, table in self.tables.items():
            catalog.register_table(TableDeclaration(name, Schema.from_arrow(table.schema)))
        return cql.compile_query(self.text, catalog)

    def batches(self, seed: int, size: Size) -> Batches:
        rng = np.random.default_rng(seed)
        length = round(BATCH * 1e6)
        for number in range(size.batches):
            share = number / size.batches
            batch = {}
            for name in self.streams:
                count = round(size.rows * self.rate(name, share))
                times = START + number * length + np.sort(rng.integers(0, length, count))
                columns = self.draw(rng, name, count, Moment(share, size.rows * WINDOW))
                batch[name] = pa.table({"ts": pa.array(times).cast(TIMESTAMP), **columns})
            yield batch


# --- queries ----------------------------------------------------------------------------------------------------------


def window(name: str) -> str:
    return f"{name} [RANGE {round(WINDOW * BATCH * 1000)} MILLISECONDS]"


def windows(names: str) -> str:
    return ", ".join(map(window, names))


def chain(names: str, beyond: str = "") -> str:
    """Neighbours join, each pair by a key of its own."""
    keys = " AND ".join(f"{left}.r = {right}.l" for left, right in pairwise(names))
    return f"SELECT {names[0]}.v AS x, {names[-1]}.v AS y FROM {windows(names)} WHERE {keys}{beyond}"


def star(hub: str, others: str) -> str:
    """Every stream joins the hub by a column of its own."""
    keys = " AND ".join(f"{hub}.k{number} = {name}.k0" for number, name in enumerate(others))
    return f"SELECT {hub}.v AS x, {others[-1]}.v AS y FROM {windows(hub + others)} WHERE {keys}"


def one_key(names: str) -> str:
    """All streams join by one key; the class of a row is among the outputs."""
    keys = " AND ".join(f"{names[0]}.k = {name}.k" for name in names[1:])
    outputs = ", ".join(f"{name}.c AS c{name}" for name in names)
    return f"SELECT {outputs} FROM {windows(names)} WHERE {keys}"


# --- rows -------------------------------------------------------------------------------------------------------------

INTEGERS = {"l": pa.int64(), "r": pa.int64(), "v": pa.int64()}
RARE = 0.01
"""The share of the rows of a class that find partners in the stream that is rare there."""
FanOuts: TypeAlias = Callable[[float], tuple[float, ...]]


def chained(names: str, fan_outs: FanOuts) -> Draw:
    """Rows of a chain; `fan_outs` of its edges, by the share of the run."""

    def draw(rng: np.random.Generator, name: str, count: int, at: Moment) -> Columns:
        domains = (ALONE, *map(at.domain, fan_outs(at.share)), ALONE)
        place = names.index(name)
        return {
            "l": rng.integers(0, domains[place], count),
            "r": rng.integers(0, domains[place + 1], count),
            "v": rng.integers(0, 1_000, count),
        }

    return draw


def steps(*phases: tuple[float, ...]) -> FanOuts:
    """Phases of equal length."""
    return lambda share: phases[min(len(phases) - 1, int(share * len(phases)))]


def texts(draw: Draw, *columns: str) -> Draw:
    """Integer columns as texts of some length."""

    def drawn(rng: np.random.Generator, name: str, count: int, at: Moment) -> Columns:
        found = dict(draw(rng, name, count, at))
        for column in columns:
            found[column] = np.char.add("customer-", found[column].astype(str))
        return found

    return drawn


def skewed(names: str, classes: int, since: float = 0.0, turn_at: float = 2.0) -> Draw:
    """All streams share a key. Each class of rows has keys of its own, and in each class one stream is rare.

    Before `since`, no stream is rare in any class; from `turn_at` on, streams are rare in other classes.
    """

    def draw(rng: np.random.Generator, name: str, count: int, at: Moment) -> Columns:
        group = rng.integers(0, classes, count)
        keys = rng.integers(0, max(1, at.domain(3.0) // classes), count) * classes + group
        rare = (names.index(name) + (1 if at.share >= turn_at else 0)) % classes
        if at.share >= since:
            lost = (group == rare) & (rng.random(count) >= RARE)
            keys[lost] = -1 - rng.integers(0, ALONE, int(lost.sum())) * len(names) - names.index(name)
        else:
            lost = rng.random(count) >= 0.45
            keys[lost] = -1 - rng.integers(0, ALONE, int(lost.sum())) * len(names) - names.index(name)
        return {"k": keys, "c": group}

    return draw


def zipf(rng: np.random.Generator, values: int, count: int, exponent: float) -> Integers:
    """Values from 0 on, the first the most frequent."""
    weights = 1 / np.arange(1, values + 1) ** exponent
    return np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(count)).astype(np.int64)
