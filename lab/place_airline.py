"""The airline of the placement experiments at work: its network, streams and queries, and operators in this process.

Streams are Poisson with uniform values, at the rates and numbers of values that the planner is given. `AtWork` runs a
deployment over them and adds up bytes times distance on its links.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.lang.schema import TIMESTAMP
from anabranch.place.landscape import Landscape, SinkQuery, bare
from anabranch.place.statistics import Statistics, StreamStatistics
from anabranch.place.topology import Topology, from_dict
from anabranch.plan.physical import JoinNode, Leaf
from anabranch.sites.local import LocalDeployment, LocalOperator
from anabranch.sites.operators import DELIVERY, GATE, OperatorSpec, Program

MINUTE = 60
WARM = 5 * MINUTE
"""Seconds until the longest window is full."""
STEP = 30
"""Seconds of event time that a gate takes at once."""
FLIGHTS, CITIES = 120, 40

COLUMNS = {
    "flights": "num bigint, gate bigint, dest bigint, terminal bigint, ts timestamp",
    "checkins": "flight bigint, status bigint, ts timestamp",
    "baggage": "flight bigint, area bigint, ts timestamp",
    "weather": "city bigint, forecast bigint, ts timestamp",
}
VALUES = {
    "num": FLIGHTS,
    "flight": FLIGHTS,
    "dest": CITIES,
    "city": CITIES,
    "terminal": 4,
    "gate": 50,
    "status": 5,
    "area": 9,
    "forecast": 7,
}
RATES = {"flights": 5.0, "checkins": 4.0, "baggage": 8.0, "weather": 1.5}
SITES = {"flights": "centre", "checkins": "desks", "baggage": "bags", "weather": "office"}
QUERIES = {
    "display-1": ("hall-a", "flights weather checkins baggage", "fl.terminal = 1"),
    "display-2": ("hall-b", "flights weather checkins baggage", "fl.terminal = 2"),
    "gate-1": ("gate-a", "flights checkins baggage", "fl.num < 20"),
    "gate-2": ("gate-b", "flights checkins baggage", "fl.num < 30"),
    "departures": ("centre", "flights checkins weather", "fl.dest < 10"),
    "monitor": ("hub-b", "flights weather", "fl.terminal = 3"),
}
WATCHES = {
    "loads": ("centre", "flights baggage", "fl.num < 100"),
    "desks": ("centre", "flights checkins", "fl.num < 110"),
    "skies": ("hub-b", "flights weather", "fl.num < 100"),
}
"""Queries over two streams with windows of two seconds: their joins reduce, so rates decide where they run."""
ALIASES = {"flights": "fl", "checkins": "ci", "baggage": "bg", "weather": "wr"}
RANGES = {"flights": 5, "checkins": 1, "baggage": 1, "weather": 5}
EQUALITIES = {"checkins": "fl.num = ci.flight", "baggage": "fl.num = bg.flight", "weather": "fl.dest = wr.city"}


def topology() -> Topology:
    links = [("centre", "hub-a", 20), ("centre", "hub-b", 25), ("hub-a", "hub-b", 30), ("office", "centre", 8)]
    links += [("hall-a", "hub-a", 2), ("gate-a", "hall-a", 1), ("bags", "hall-a", 1), ("desks", "hall-a", 1)]
    links += [("hall-b", "hub-b", 2), ("gate-b", "hall-b", 1)]
    names = sorted({end for one, other, _ in links for end in (one, other)})
    return from_dict(
        {
            "sites": [{"name": name} for name in names],
            "links": [{"ends": [one, other], "cost": float(cost)} for one, other, cost in links],
        }
    )


def catalog_of_streams() -> Catalog:
    catalog = Catalog()
    for name, columns in COLUMNS.items():
        catalog.register(StreamDeclaration(name, parse_schema(columns), "ts"))
    return catalog


def landscape_at(rates: Mapping[str, float]) -> Landscape:
    streams = {}
    for name, columns in COLUMNS.items():
        fields = parse_schema(columns).names
        streams[name] = StreamStatistics(
            SITES[name],
            rates[name],
            column_bytes=dict.fromkeys(fields, 8.0),
            distinct={field: float(VALUES[field]) for field in fields if field in VALUES},
        )
    shares = {f"terminal = {n}": 1 / VALUES["terminal"] for n in range(VALUES["terminal"])}
    shares |= {f"num < {n}": n / FLIGHTS for n in range(FLIGHTS)} | {f"dest < {n}": n / CITIES for n in range(CITIES)}
    schemas = {name: parse_schema(columns).names for name, columns in COLUMNS.items()}
    return bare(topology(), Statistics(streams, shares), schemas)


def airline_queries(catalog: Catalog) -> list[SinkQuery]:
    return bound(catalog, QUERIES, {stream: f"{minutes} MINUTES" for stream, minutes in RANGES.items()})


def bound(catalog: Catalog, queries: Mapping[str, tuple[str, str, str]], ranges: Mapping[str, str]) -> list[SinkQuery]:
    found = []
    for name, (sink, streams, condition) in queries.items():
        listed = streams.split()
        items = ", ".join(f"{s} [RANGE {ranges[s]}] AS {ALIASES[s]}" for s in listed)
        where = " AND ".join([*(EQUALITIES[s] for s in listed if s in EQUALITIES), condition])
        selected = ", ".join(f"{ALIASES[s]}.{shown(s)}" for s in listed)
        text = f"SELECT {selected} FROM {items} WHERE {where}"
        found.append(SinkQuery(name, compile_query(text, catalog), sink))
    return found


def shown(stream: str) -> str:
    return {"flights": "gate", "checkins": "status", "baggage": "area", "weather": "forecast"}[stream]


def poisson_rows(rates: Mapping[str, float], seconds: float, seed: int) -> dict[str, pa.Table]:
    """Poisson streams of uniform values."""
    tables = {}
    for number, (name, columns) in enumerate(COLUMNS.items()):
        random = np.random.default_rng([seed, number])
        times = np.sort(random.uniform(0, seconds, random.poisson(rates[name] * seconds)))
        arrays = {
            field: pa.array(random.integers(0, VALUES[field], len(times)))
            for field in parse_schema(columns).names
            if field in VALUES
        }
        arrays["ts"] = pa.array((1e6 * times).astype(np.int64)).cast(pa.timestamp("us")).cast(TIMESTAMP)
        tables[name] = pa.table(arrays)
    return tables


class Stretches:
    """The rows of a stream, `STEP` seconds of event time at once, up to where the run may go."""

    def __init__(self, stream: str, rows: pa.Table) -> None:
        self._stream, self._rows = stream, rows
        self._times = rows.column("ts").cast(pa.int64()).to_numpy()
        self.until = 0.0

    @property
    def nothing(self) -> None:
        return None

    def latest(self, start: int | None, most: int) -> int:
        before = start or 0
        at = self._times[before] / 1e6 if before < len(self._times) else np.inf
        end = int(np.searchsorted(self._times, 1e6 * min(self.until, (at // STEP + 1) * STEP)))
        return max(before, end)

    def batch(self, start: int | None, end: int) -> tuple[Mapping[str, pa.Table], Mapping[str, int]]:
        return {self._stream: self._rows.slice(start or 0, end - (start or 0))}, {}

    def commit(self, end: object) -> None: ...


class AtWork(LocalDeployment):
    """A deployment over streams in memory; `advance_to` takes all of them up to an event time."""

    def __init__(self, program: Program, network: Topology, rows: Mapping[str, pa.Table], folder: Path) -> None:
        super().__init__(program, str(folder / "links"), self._operator)
        self._network, self._rows, self._folder = network, rows, folder
        self._streams: dict[str, Stretches] = {}
        self._until = 0.0
        self._carried: dict[str, float] = {}
        self.answers: dict[str, list[pa.Table]] = {}
        """The results of each query so far."""
        self.follow()

    def _operator(self, spec: OperatorSpec) -> LocalOperator:
        names = spec.query.graph.names
        if spec.kind == GATE:
            self._streams[spec.name] = Stretches(spec.query.graph.relations[0].stream, self._rows[spec.serves])
            self._streams[spec.name].until = self._until
        return LocalOperator(
            spec,
            str(self._folder / self.wanted.folder(spec.name)),
            self._streams[spec.name] if spec.kind == GATE else self.inlets(spec),
            Leaf(names[0]) if len(names) == 1 else JoinNode(tuple(Leaf(name) for name in names)),
            outlet=self.outlet(spec),
            results=self._taking(spec.serves) if spec.kind == DELIVERY else None,
        )

    def _taking(self, query: str) -> Callable[[int, pa.Table], None]:
        return lambda batch, answer: self.answers.setdefault(query, []).append(answer)

    def advance_to(self, seconds: float) -> None:
        """Takes the rows before an event time, and follows a change as far as they allow."""
        self._until = seconds
        for stream in self._streams.values():
            stream.until = seconds
        moved = True
        while moved:
            moved = any([one.advance() for one in list(self.running.values())])  # noqa: C419 - every operator each time
            self._count()
            moved |= self.look()

    def _count(self) -> None:
        for wire in self.wanted.wiring.wires.values():
            for stretch in wire.stretches:
                ends = [self.wanted.operators[name].site for name in (stretch.producer, wire.reader)]
                origin, end = (self._network.position(site) for site in ends)
                link = wire.link(stretch)
                self._carried[link] = self.link(link).status().bytes * self._network.distance(origin, end)

    @property
    def carried(self) -> float:
        """Bytes times distance on all links so far, also on those that are gone."""
        return sum(self._carried.values())

    @property
    def late(self) -> int:
        return sum(count for one in self.running.values() for count in one.host.late.values())

    def results(self, query: str) -> int:
        return sum(table.num_rows for table in self.answers.get(query, ()))
