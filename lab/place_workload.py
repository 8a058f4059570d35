"""Workloads over a network: random ones, and the airline's.

The random workload draws rates, selectivities, sources and sinks uniformly (section 4.1.1 of the paper). All its
streams share one join attribute, as the airline's share the flight number, so that every join order is free of cross
products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import pyarrow as pa

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.lang.expr import Column
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.lang.window import UNITS, Window
from anabranch.place.landscape import Landscape, SinkQuery, bare
from anabranch.place.statistics import Statistics, StreamStatistics
from anabranch.place.topology import Topology
from anabranch.plan.join_graph import JoinGraph, KeyClass, Relation
from anabranch.plan.logical import Output
from anabranch.plan.query import Query


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
    """The ranges of a random workload; a query joins between `fewest` and `most` streams."""

    streams: int = 10
    fewest: int = 3
    most: int = 6
    rate: tuple[float, float] = (1.0, 100.0)
    selectivity: tuple[float, float] = (0.005, 0.05)
    seconds: float = 0.5
    record_bytes: float | None = None
    """The width of every row, joined or not; by default a joined row is as wide as its parts together."""


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
    statistics = Statistics(streams, record_bytes=ranges.record_bytes)
    return Workload(statistics, dict.fromkeys(names, _SCHEMA.names), tuple(drawn))


def star_query(streams: list[str], seconds: float) -> Query:
    """A join of all the streams on the column `key`, under equal windows."""
    window = Window(round(seconds * UNITS["second"]))
    relations = tuple(Relation(name, name, _SCHEMA, "ts", window) for name in streams)
    key = KeyClass("k", tuple((name, Column(name, "key", pa.int64())) for name in streams), pa.int64())
    outputs = tuple(Output(f"{name}_value", Column(name, "value", pa.int64())) for name in streams)
    text = f"SELECT ... FROM {', '.join(f'{name} {window}' for name in streams)} WHERE keys are equal"
    return Query(text, JoinGraph(relations, (key,) if len(streams) > 1 else ()), outputs)


AIRLINE_SCHEMAS = {
    "flights": "num bigint, gate string, dest string, terminal string, carrier_code string, ts timestamp",
    "checkins": "flight bigint, status string, ts timestamp",
    "baggage": "flight bigint, status string, area string, ts timestamp",
    "weather": "city string, forecast string, ts timestamp",
    "sales": "dest string, amount double, ts timestamp",
}
ACTIVE_FLIGHTS = 120
TERMINALS = "ABCDEF"


def airline_statistics(sites: Mapping[str, str], flights: int = ACTIVE_FLIGHTS) -> Statistics:
    """The sources of the paper's Fig. 5 at the given sites; every record has 100 bytes, joined ones too.

    Distinct values follow from the figure: 240 check-ins a minute at two per flight are 120 flights, and so on. With as
    many `flights` as the flights' own line has (1,500), check-ins and baggage are of all of them.
    """
    ratio = flights / ACTIVE_FLIGHTS

    def source(stream: str, rate: float, **distinct: float) -> StreamStatistics:
        return StreamStatistics(sites[stream], rate, distinct=distinct)

    return Statistics(
        {
            "flights": source("flights", 1500 / 300, num=1500, dest=450, terminal=len(TERMINALS), carrier_code=10),
            "checkins": source("checkins", 240 / 60, flight=ratio * 240 / 2),
            "baggage": source("baggage", 500 / 60, flight=ratio * 500 / 4),
            "weather": source("weather", 450 / 300, city=450),
            "sales": source("sales", 70 / 60, dest=70),
        },
        record_bytes=100.0,
    )


def airline_catalog() -> Catalog:
    """The airline's streams, for the binder."""
    catalog = Catalog()
    for name, columns in AIRLINE_SCHEMAS.items():
        catalog.register(StreamDeclaration(name, parse_schema(columns), "ts"))
    return catalog


def airline_workload(topology: Topology, queries: int, seed: int, flights: int = ACTIVE_FLIGHTS) -> Workload:
    """Gate agents (80 %), terminal displays (15 %) and monitoring (5 %), as in section 4.1.1 of the paper.

    The queries are those that the product plans: the binder infers that a condition on the flight number holds for
    check-ins and baggage too. (The paper filters flights only.)
    """
    random = Random(seed)
    names = [site.name for site in topology.sites]
    statistics = airline_statistics({stream: random.choice(names) for stream in AIRLINE_SCHEMAS}, flights)
    catalog = airline_catalog()
    drawn = []
    for number in range(queries):
        kind = random.random()
        if kind < 0.80:
            text = gate_query(random.randrange(flights))
        elif kind < 0.95:
            text = terminal_query(random.choice(TERMINALS))
        else:
            text = monitoring_query(random)
        drawn.append(SinkQuery(f"q{number}", compile_query(text, catalog), random.choice(names)))
    schemas = {stream: parse_schema(columns).names for stream, columns in AIRLINE_SCHEMAS.items()}
    return Workload(statistics, schemas, tuple(drawn))


def gate_query(flight: int) -> str:
    """The paper's template Q1."""
    return (
        "SELECT fl.gate, bg.status AS baggage, ci.status AS checkin FROM flights [RANGE 5 MINUTES] AS fl, "
        "baggage [RANGE 1 MINUTE] AS bg, checkins [RANGE 1 MINUTE] AS ci "
        f"WHERE fl.num = ci.flight AND fl.num = bg.flight AND fl.num = {flight}"
    )


def terminal_query(terminal: str) -> str:
    """The paper's template Q2."""
    return (
        "SELECT fl.num, fl.gate, bg.area, ci.status, wr.forecast FROM flights [RANGE 5 MINUTES] AS fl, "
        "weather [RANGE 5 MINUTES] AS wr, checkins [RANGE 1 MINUTE] AS ci, baggage [RANGE 1 MINUTE] AS bg "
        "WHERE fl.dest = wr.city AND fl.num = ci.flight AND fl.num = bg.flight "
        f"AND fl.terminal = '{terminal}' AND fl.carrier_code = 'DL'"
    )


def monitoring_query(random: Random) -> str:
    """Any combination of the sources that predicates connect, with windows between one and five minutes.

    The paper lets monitoring queries have selections of their own; here each asks for one flight or one destination.
    """
    chosen = set(random.sample(sorted(AIRLINE_SCHEMAS), random.randint(2, len(AIRLINE_SCHEMAS))))
    if chosen & {"checkins", "baggage"} and chosen & {"weather", "sales"}:
        chosen.add("flights")
    keys = {"checkins": "flight", "baggage": "flight", "weather": "city", "sales": "dest"}
    windows = {stream: random.randint(1, 5) for stream in sorted(chosen)}
    listed = ", ".join(f"{s} [RANGE {n} MINUTE{'S' if n > 1 else ''}] AS {s[:2]}" for s, n in windows.items())
    others = [stream for stream in sorted(chosen) if stream != "flights"]
    if "flights" in chosen:
        by = {"flight": "num", "city": "dest", "dest": "dest"}
        joins = [f"fl.{by[keys[stream]]} = {stream[:2]}.{keys[stream]}" for stream in others]
    else:
        joins = [f"{a[:2]}.{keys[a]} = {b[:2]}.{keys[b]}" for a, b in pairwise(others)]
    if "flights" in chosen:
        joins.append(f"fl.dest = 'city {random.randrange(450)}'")
    elif "checkins" in chosen or "baggage" in chosen:
        joins.append(f"{others[0][:2]}.flight = {random.randrange(ACTIVE_FLIGHTS)}")
    else:
        joins.append(f"{others[0][:2]}.{keys[others[0]]} = 'city {random.randrange(70)}'")
    outputs = ", ".join(f"{stream[:2]}.ts AS {stream}_ts" for stream in sorted(chosen))
    return f"SELECT {outputs} FROM {listed} WHERE {' AND '.join(joins)}"
