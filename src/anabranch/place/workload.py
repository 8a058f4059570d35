"""Workloads over a network: random ones, and the airline's.

The random workload draws rates, selectivities, sources and sinks uniformly (section 4.1.1 of the paper). All its
streams share one join attribute, as the airline's share the flight number, so that every join order is free of cross
products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import pyarrow as pa

from anabranch.expr import Column
from anabranch.place.landscape import Landscape, SinkQuery, bare
from anabranch.place.statistics import Statistics, StreamStatistics
from anabranch.place.topology import Topology
from anabranch.plan.join_graph import JoinGraph, KeyClass, Relation
from anabranch.plan.logical import Output
from anabranch.plan.query import Query
from anabranch.schema import TIMESTAMP, Field, Schema
from anabranch.window import UNITS, Window


@dataclass(frozen=True)
class Workload:
    """Streams, and queries over them in the order in which they arrive."""

    statistics: Statistics
    schemas: Mapping[str, tuple[str, ...]]
    queries: tuple[SinkQuery, ...]

    def landscape(self, topology: Topology) -> Landscape:
        """The network with the sources only."""
        return bare(topology, self.statistics, self.schemas)


@dataclass(frozen=True)
class Ranges:
    """What a random workload is drawn from; a query joins between `fewest` and `most` streams."""

    streams: int = 10
    fewest: int = 3
    most: int = 6
    rate: tuple[float, float] = (1.0, 100.0)
    selectivity: tuple[float, float] = (0.005, 0.05)
    seconds: float = 0.5


USUAL_RANGES = Ranges()
_SCHEMA = Schema((Field("key", pa.int64()), Field("value", pa.int64()), Field("ts", TIMESTAMP)))


def random_workload(topology: Topology, queries: int, seed: int, ranges: Ranges = USUAL_RANGES) -> Workload:
    """Queries over uniformly drawn streams at uniformly drawn sites."""
    random = Random(seed)
    names = [f"s{index}" for index in range(ranges.streams)]
    sites = [site.name for site in topology.sites]
    streams = {
        name: StreamStatistics(
            site=random.choice(sites),
            rate=random.uniform(*ranges.rate),
            distinct={"key": 1.0 / random.uniform(*ranges.selectivity)},
        )
        for name in names
    }
    drawn = []
    for number in range(queries):
        chosen = random.sample(names, random.randint(ranges.fewest, ranges.most))
        drawn.append(SinkQuery(f"q{number}", star_query(chosen, ranges.seconds), random.choice(sites)))
    return Workload(Statistics(streams), dict.fromkeys(names, _SCHEMA.names), tuple(drawn))


def star_query(streams: list[str], seconds: float) -> Query:
    """A join of all the streams on the column `key`, under equal windows."""
    window = Window(round(seconds * UNITS["second"]))
    relations = tuple(Relation(name, name, _SCHEMA, "ts", window) for name in streams)
    key = KeyClass("k", tuple((name, Column(name, "key", pa.int64())) for name in streams), pa.int64())
    outputs = tuple(Output(f"{name}_value", Column(name, "value", pa.int64())) for name in streams)
    text = f"SELECT ... FROM {', '.join(f'{name} {window}' for name in streams)} WHERE keys are equal"
    return Query(text, JoinGraph(relations, (key,) if len(streams) > 1 else ()), outputs)
