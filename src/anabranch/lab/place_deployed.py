"""`place-deployed`: placements at work. Bytes times distance on real links against the plan, and after rates changed.

The airline of the paper (Fig. 5): gate agents, displays and monitors on a network of ten sites. Every planner's
placement is compiled into operators; they run in this process, joined by links, over generated streams whose rates and
values are those that the planner was given. The usage of a run is the sum over all links of bytes per second of event
time, times the distance that they cross, once the longest window is full.

Limit: operators run in one process, so times are those of planning, compiling and starting, not of a network. Rates are
Poisson, so a filter for one flight out of many sees few rows; the run is long enough for the sum to settle.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.cql import compile_query
from anabranch.ddl import parse_schema
from anabranch.host.links.place import open_link
from anabranch.lab.registry import Experiment, Outcome, Setting, Verdict
from anabranch.place.landscape import Landscape, SinkQuery, bare
from anabranch.place.run import Options, planner_named
from anabranch.place.statistics import Statistics, StreamStatistics
from anabranch.place.topology import Topology, from_dict
from anabranch.plan.physical import JoinNode, Leaf
from anabranch.schema import TIMESTAMP
from anabranch.sites.compile import compile_program
from anabranch.sites.local import LinkSource, LocalOperator
from anabranch.sites.operators import GATE, Program
from anabranch.sites.wiring import first_wiring

PLANNERS = ("top-down", "bottom-up", "npc", "in-network", "relaxation")
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


@dataclass(frozen=True)
class Usage:
    """Network usage of one placement: planned and measured, in bytes per second times distance."""

    planned: float
    measured: float
    seconds: float
    """To plan all queries, compile them and start their operators."""
    operators: int


@dataclass(frozen=True)
class Found:
    """By planner at the given rates; and after one stream became ten times as fast."""

    usage: Mapping[str, Usage]
    kept: float
    replanned: float


def _topology() -> Topology:
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


def _catalog() -> Catalog:
    catalog = Catalog()
    for name, columns in COLUMNS.items():
        catalog.register(StreamDeclaration(name, parse_schema(columns), "ts"))
    return catalog


def _landscape(rates: Mapping[str, float]) -> Landscape:
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
    return bare(_topology(), Statistics(streams, shares), schemas)


def _queries(catalog: Catalog) -> list[SinkQuery]:
    return _bound(catalog, QUERIES, {stream: f"{minutes} MINUTES" for stream, minutes in RANGES.items()})


def _bound(catalog: Catalog, queries: Mapping[str, tuple[str, str, str]], ranges: Mapping[str, str]) -> list[SinkQuery]:
    found = []
    for name, (sink, streams, condition) in queries.items():
        listed = streams.split()
        items = ", ".join(f"{s} [RANGE {ranges[s]}] AS {ALIASES[s]}" for s in listed)
        where = " AND ".join([*(EQUALITIES[s] for s in listed if s in EQUALITIES), condition])
        selected = ", ".join(f"{ALIASES[s]}.{_shown(s)}" for s in listed)
        text = f"SELECT {selected} FROM {items} WHERE {where}"
        found.append(SinkQuery(name, compile_query(text, catalog), sink))
    return found


def _shown(stream: str) -> str:
    return {"flights": "gate", "checkins": "status", "baggage": "area", "weather": "forecast"}[stream]


def _rows(rates: Mapping[str, float], seconds: float, seed: int) -> dict[str, pa.Table]:
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


class _Stretches:
    """The rows of a stream, `STEP` seconds of event time at once, up to where the run may go."""

    def __init__(self, stream: str, rows: pa.Table) -> None:
        self._stream, self._rows = stream, rows
        self._times = rows.column("ts").cast(pa.int64()).to_numpy()
        self.until = 0.0

    def latest(self, start: int | None, most: int) -> int:
        before = start or 0
        at = self._times[before] / 1e6 if before < len(self._times) else np.inf
        end = int(np.searchsorted(self._times, 1e6 * min(self.until, (at // STEP + 1) * STEP)))
        return max(before, end)

    def batch(self, start: int | None, end: int) -> tuple[Mapping[str, pa.Table], Mapping[str, int]]:
        return {self._stream: self._rows.slice(start or 0, end - (start or 0))}, {}

    def commit(self, end: object) -> None: ...


def _measured(program: Program, landscape: Landscape, rows: Mapping[str, pa.Table], seconds: float) -> float:
    """Bytes per second times distance on all links, after the longest window is full."""
    wiring = first_wiring(program)
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder) / "links")
        sources: list[_Stretches] = []
        operators = []
        for spec in program.operators.values():
            source: _Stretches | LinkSource
            if spec.kind == GATE:
                source = _Stretches(spec.query.graph.relations[0].stream, rows[spec.serves])
                sources.append(source)
            else:
                inlets = wiring.inlets(spec)
                source = LinkSource(spec.name, place, lambda inlets=inlets: inlets)  # type: ignore[misc]
            names = spec.query.graph.names
            plan = Leaf(names[0]) if len(names) == 1 else JoinNode(tuple(Leaf(name) for name in names))
            readers = wiring.readers(spec.name)
            operators.append(
                LocalOperator(
                    spec,
                    Path(folder) / spec.name,
                    source,
                    plan,
                    place=place,
                    readers=lambda readers=readers: readers,  # type: ignore[misc]
                )
            )
        totals = []
        for until in (WARM, WARM + seconds):
            for source in sources:
                source.until = until
            while any([operator.advance() for operator in operators]):  # noqa: C419 - every operator, each time
                pass
            totals.append(_total(program, landscape, place))
    return (totals[1] - totals[0]) / seconds


def _total(program: Program, landscape: Landscape, place: str) -> float:
    wiring, topology = first_wiring(program), landscape.topology
    total = 0.0
    for wire in wiring.wires.values():
        (stretch,) = wire.stretches
        origin, end = (program.operators[name].site for name in (stretch.producer, wire.reader))
        size = open_link(place, wire.link(stretch)).status().bytes
        total += size * topology.distance(topology.position(origin), topology.position(end))
    return total


def _planned(planner: str, landscape: Landscape, queries: Sequence[SinkQuery]) -> tuple[Landscape, float]:
    started = perf_counter()
    chosen = planner_named(planner, landscape.topology, Options(max_cs=4, zones=3, iterations=1000, seed=1))
    for query in queries:
        landscape = chosen.plan(landscape, query).landscape
    return landscape, perf_counter() - started


def measure(setting: Setting) -> Found:
    """Every planner's placement, planned and at work; and one at work after a stream became ten times as fast."""
    seconds = 5 * MINUTE if setting.quick else 30 * MINUTE
    catalog = _catalog()
    queries = _queries(catalog)
    rows = _rows(RATES, WARM + seconds, setting.seed)
    usage = {}
    for planner in PLANNERS[:2] if setting.quick else PLANNERS:
        landscape, spent = _planned(planner, _landscape(RATES), queries)
        started = perf_counter()
        program = compile_program(landscape, catalog)
        spent += perf_counter() - started
        measured = _measured(program, landscape, rows, seconds)
        usage[planner] = Usage(landscape.cost, measured, spent, len(program.operators))
    changed = {**RATES, "flights": 10 * RATES["flights"]}
    fast = _rows(changed, WARM + 5 * MINUTE, setting.seed)
    watches = _bound(catalog, WATCHES, dict.fromkeys(RATES, "2 SECONDS"))
    old, _ = _planned("top-down", _landscape(RATES), watches)
    new, _ = _planned("top-down", _landscape(changed), watches)
    kept, replanned = (_measured(compile_program(one, catalog), one, fast, 5 * MINUTE) for one in (old, new))
    return Found(usage, kept, replanned)


def present(found: Found) -> Outcome:
    rows = tuple(
        (name, one.planned, one.measured, one.measured / one.planned - 1, one.operators, one.seconds)
        for name, one in found.usage.items()
    )
    off = {name: abs(one.measured / one.planned - 1) for name, one in found.usage.items()}
    worst = max(off, key=lambda name: off[name])
    best = min(found.usage, key=lambda name: found.usage[name].measured)
    ratio = found.replanned / found.kept
    verdicts = (
        Verdict(
            "the cost model is what links carry (our own bar: within 10 %)",
            f"at most {100 * off[worst]:.1f} % off ({worst})",
            {"within 10 %": off[worst] <= 0.1},
        ),
        Verdict(
            "integrated planning uses less of the network than phased (4.4)",
            f"least measured: {best}",
            {
                "Top-Down at most 5 % above the least": found.usage["top-down"].measured
                <= 1.05 * found.usage[best].measured
            },
        ),
        Verdict(
            "replanning by measured rates pays (our own bar: 0.7 of the usage)",
            f"flights ten times as fast: {ratio:.2f} of the usage of the plan that was kept",
            {"0.7": ratio <= 0.7},
        ),
    )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        at = np.arange(len(found.usage))
        axes.bar(at - 0.2, [one.planned for one in found.usage.values()], width=0.36, label="planned")
        axes.bar(at + 0.2, [one.measured for one in found.usage.values()], width=0.36, label="measured on links")
        axes.set_xticks(at, list(found.usage))
        axes.set(title="bytes per second times distance")
        axes.legend()

    columns = ("planner", "planned", "measured", "off", "operators", "seconds to plan and compile")
    return Outcome(columns, rows, draw, verdicts)


EXPERIMENTS = (Experiment("place-deployed", "Placements at work: bytes on links against the plan", measure, present),)
