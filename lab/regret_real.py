"""Real rows for the regret suite: recorded once, replayed faster, so that they keep a part of a core busy.

A workload names the package that its rows come with. A suite without the package leaves the workload out; one that is
asked for by name says what to install.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from anabranch import cql
from anabranch.lang.arrays import Integers
from anabranch.lang.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.plan.query import Query
from lab.regret_workloads import START, Batches, Kind, Size

Recorded: TypeAlias = Sequence[Mapping[str, pa.Table]]
"""Batches of recorded rows, by stream."""


@dataclass(frozen=True)
class RealWorkload:
    """A query over rows that were recorded."""

    name: str
    why: str
    text: str
    streams: Mapping[str, pa.Schema]
    recorded: Callable[[], Recorded]
    batch: float
    """Seconds of event time that a batch takes when it is replayed."""
    kind: Kind = "real"
    beside: Callable[[], Mapping[str, pa.Table]] = dict
    """Reads the tables."""

    @property
    def tables(self) -> Mapping[str, pa.Table]:
        return self.beside()

    @property
    def query(self) -> Query:
        catalog = Catalog()
        for name, columns in self.streams.items():
            catalog.register(StreamDeclaration(name, Schema.from_arrow(columns), "ts"))
        for name, table in self.tables.items():
            catalog.register_table(TableDeclaration(name, Schema.from_arrow(table.schema)))
        return cql.compile_query(self.text, catalog)

    def batches(self, seed: int, size: Size) -> Batches:
        """The first batches; the rows are what they are, whatever the seed."""
        read = {relation.stream for relation in self.query.graph.streamed}
        for batch in self.recorded()[: size.batches]:
            yield {name: table for name, table in batch.items() if name in read}


def in_batches(
    passed: Integers, columns: Mapping[str, object], schema: pa.Schema, length: int, count: int
) -> list[pa.Table]:
    """Rows cut into batches of `length` microseconds, in the order of the microseconds that had `passed`."""
    order = np.argsort(passed, kind="stable")
    passed = passed[order]
    arrays = {name: pa.array(values).take(pa.array(order)) for name, values in columns.items()}
    times = pa.array(START + passed).cast(TIMESTAMP)
    table = pa.table({"ts": times, **{name: arrays[name].cast(schema.field(name).type) for name in arrays}}, schema)
    edges = np.searchsorted(passed, np.arange(count + 1) * length)
    return [table.slice(low, high - low) for low, high in pairwise(edges)]
