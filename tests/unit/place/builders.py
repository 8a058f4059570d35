"""Small networks and landscapes for the tests of this room."""

from __future__ import annotations

from itertools import pairwise

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.place.landscape import Landscape, SinkQuery, bare
from anabranch.place.planner import Planner
from anabranch.place.run import COMPARED, Options, planner_named
from anabranch.place.statistics import Statistics, StreamStatistics
from anabranch.place.topology import Topology, from_dict

STREAMS = dict.fromkeys(("a", "b", "c", "d"), "k bigint, x bigint, y bigint, ts timestamp")


def line(length: int, **site: float) -> Topology:
    """Sites n0, n1, … in a row, one unit apart."""
    return from_dict(
        {
            "sites": [{"name": f"n{index}", **site} for index in range(length)],
            "links": [{"ends": [f"n{index}", f"n{index + 1}"], "cost": 1.0} for index in range(length - 1)],
        }
    )


def statistics(sites: dict[str, str], rate: float = 10.0, distinct: float = 100.0) -> Statistics:
    """Streams of equal rate whose columns all have as many values."""
    return Statistics(
        {
            name: StreamStatistics(site, rate, distinct={"k": distinct, "x": 10.0, "y": 10.0})
            for name, site in sites.items()
        }
    )


def landscape(topology: Topology, sites: dict[str, str], rate: float = 10.0, distinct: float = 100.0) -> Landscape:
    schemas = {name: parse_schema(STREAMS[name]).names for name in sites}
    return bare(topology, statistics(sites, rate, distinct), schemas)


def query(name: str, text: str, sink: str) -> SinkQuery:
    catalog = Catalog()
    for stream, columns in STREAMS.items():
        catalog.register(StreamDeclaration(stream, parse_schema(columns), "ts"))
    return SinkQuery(name, compile_query(text, catalog), sink)


def join(name: str, streams: str, sink: str, where: str = "", minutes: int = 1) -> SinkQuery:
    """A join of some streams (one letter each) on k, all under one window."""
    listed = ", ".join(f"{s} [RANGE {minutes} MINUTE{'S' if minutes > 1 else ''}]" for s in streams)
    keys = [f"{left}.k = {right}.k" for left, right in pairwise(streams)]
    conditions = " AND ".join([*keys, *([where] if where else [])])
    outputs = ", ".join(f"{s}.ts AS {s}_ts" for s in streams)
    return query(name, f"SELECT {outputs} FROM {listed}{' WHERE ' + conditions if conditions else ''}", sink)


def planner_for(name: str, topology: Topology, max_cs: int = 8) -> Planner:
    """A planner small enough for a test."""
    return planner_named(name, topology, Options(max_cs=max_cs, zones=4, iterations=200, seed=1))


def all_planners(topology: Topology, max_cs: int = 8) -> list[Planner]:
    """One of each but the integer program, the exhaustive first."""
    return [planner_for(name, topology, max_cs) for name in COMPARED]
