"""`place-changes`: queries that join and leave, a site that is lost, and what reuse is worth to a query that joins.

The airline of `place-deployed`, at work in this process. While streams flow, a display joins, another leaves, and a
site loses its joins. Each change is a hand-over at a cut in event time; the usage of the network is measured before it,
while it lasts and after it. All results are then compared with those of each query run whole.

A query that joins and finds its join running has results as soon as the next row meets anything in the windows. One
that has to start its own join waits until rows from after its beginning meet. The time to the first result is counted
in seconds of event time, so it depends on no machine.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from anabranch.cql import compile_query
from anabranch.place.landscape import Landscape, SinkQuery
from anabranch.place.planner import Planner
from anabranch.place.removal import removed, tightened
from anabranch.place.replan import beside
from anabranch.place.run import Options, planner_named
from anabranch.plan.physical import JoinNode, Leaf
from anabranch.run.local import LocalHost
from anabranch.sites.compile import compile_program
from lab.place_airline import (
    MINUTE,
    RATES,
    VALUES,
    WARM,
    AtWork,
    airline_queries,
    catalog_of_streams,
    landscape_at,
    poisson_rows,
)
from lab.registry import Experiment, Outcome, Setting, Verdict

STEP = 30.0
"""Seconds of event time between two looks at the deployment."""
PAUSE = 2 * MINUTE
"""Seconds over which the usage is measured before and after a change."""
MOST_STEPS = 40


@dataclass(frozen=True)
class Change:
    """One change of a running deployment; usage in bytes per second times distance."""

    name: str
    started: int
    stopped: int
    seconds: float
    """Of event time, until the last operator was handed over."""
    before: float
    during: float
    after: float


@dataclass(frozen=True)
class First:
    """Seconds of event time from joining to the first result of one query."""

    reusing: float
    alone: float


@dataclass(frozen=True)
class Found:
    """All changes, what is wrong with the results after them, and the times to first results."""

    changes: tuple[Change, ...]
    results: int
    missing: int
    repeated: int
    late: int
    first: tuple[First, ...]


def _planner(landscape: Landscape) -> Planner:
    return planner_named("top-down", landscape.topology, Options(max_cs=4, seed=1))


def _with(landscape: Landscape, query: SinkQuery) -> Landscape:
    return tightened(_planner(landscape).plan(landscape, query).landscape)


def _without_site(landscape: Landscape, site: int) -> Landscape:
    """All queries with their joins elsewhere."""
    sites = tuple(replace(s, cpu=0.0) if at == site else s for at, s in enumerate(landscape.topology.sites))
    shut = landscape.under(landscape.statistics, replace(landscape.topology, sites=sites))
    return beside(shut, _planner(shut))


class _Story:
    """A deployment, the event time that it has reached, and the changes so far."""

    def __init__(self, work: AtWork, landscape: Landscape) -> None:
        self.work, self.landscape = work, landscape
        self.at = 0.0
        self.changes: list[Change] = []

    def run(self, seconds: float) -> float:
        """Goes on for some seconds; returns the usage."""
        before = self.work.carried
        self.at += seconds
        self.work.advance_to(self.at)
        return (self.work.carried - before) / seconds

    def change(self, name: str, landscape: Landscape) -> None:
        before = self.run(PAUSE)
        known = set(self.work.wanted.operators)
        self.work.change(compile_program(landscape, catalog_of_streams()))
        started = len(set(self.work.wanted.operators) - known)
        begun, carried = self.at, self.work.carried
        for _ in range(MOST_STEPS):
            self.run(STEP)
            if not self.work.wanted.is_changing:
                break
        during = (self.work.carried - carried) / (self.at - begun)
        seconds = self.at - begun
        stopped = len((known | set(self.work.wanted.operators)) - set(self.work.wanted.operators))
        self.run(WARM)
        self.landscape = landscape
        self.changes.append(Change(name, started, stopped, seconds, before, during, self.run(PAUSE)))


def _whole(query: SinkQuery, rows: Mapping[str, pa.Table]) -> Counter[str]:
    """The answer of a query that runs whole, in one batch."""
    names = query.query.graph.names
    plan = Leaf(names[0]) if len(names) == 1 else JoinNode(tuple(Leaf(name) for name in names))
    streams = {relation.stream for relation in query.query.graph.relations}
    return _counted([LocalHost(query.query, plan).step({name: rows[name] for name in streams})])


def _counted(tables: list[pa.Table]) -> Counter[str]:
    return Counter(str(row) for table in tables for row in table.to_pylist())


def _between(rows: Mapping[str, pa.Table], start: float, end: float) -> dict[str, pa.Table]:
    found = {}
    for name, table in rows.items():
        times = table.column("ts").cast(pa.int64())
        found[name] = table.filter(pc.and_(pc.greater_equal(times, int(start)), pc.less(times, int(end))))
    return found


def _expected(query: SinkQuery, work: AtWork, rows: Mapping[str, pa.Table], end: float) -> Counter[str]:
    """All results whose newest row is from the event time on at which the query joined."""
    since, oldest = work.wanted.since[query.name], work.wanted.rows_from[query.name]
    answer = _whole(query, _between(rows, oldest, 1e6 * end))
    answer -= _whole(query, _between(rows, oldest, since))
    return answer


def _changes(setting: Setting) -> Found:
    catalog = catalog_of_streams()
    queries = {query.name: query for query in airline_queries(catalog)}
    rows = poisson_rows(RATES, 120 * MINUTE, setting.seed)
    landscape = landscape_at(RATES)
    for name in ("display-1", "gate-1", "departures"):
        landscape = _with(landscape, queries[name])
    with tempfile.TemporaryDirectory() as folder:
        work = AtWork(compile_program(landscape, catalog), landscape.topology, rows, Path(folder))
        story = _Story(work, landscape)
        story.run(WARM)
        story.change("display-2 joins", _with(story.landscape, queries["display-2"]))
        if not setting.quick:
            story.change("gate-2 joins", _with(story.landscape, queries["gate-2"]))
            story.change("display-1 leaves", removed(story.landscape, "display-1"))
        joins = Counter(one.site for one in story.landscape.operators.values() if one.is_join)
        lost, _ = joins.most_common(1)[0]
        name = landscape.topology.sites[lost].name
        story.change(f"joins leave {name}", _without_site(story.landscape, lost))
        missing = repeated = results = 0
        for query in story.landscape.queries.values():
            expected, given = _expected(query, work, rows, story.at), _counted(work.answers.get(query.name, []))
            results += given.total()
            missing += (expected - given).total()
            repeated += (given - expected).total()
        return Found(tuple(story.changes), results, missing, repeated, work.late, ())


def _first_result(landscape: Landscape, query: SinkQuery, rows: Mapping[str, pa.Table]) -> float:
    """Seconds of event time from joining a deployment to the first result."""
    with tempfile.TemporaryDirectory() as folder:
        work = AtWork(compile_program(landscape, catalog_of_streams()), landscape.topology, rows, Path(folder))
        work.advance_to(WARM + MINUTE)
        work.change(compile_program(_with(landscape, query), catalog_of_streams()))
        work.look()
        for second in range(1, 30 * MINUTE):
            work.advance_to(WARM + MINUTE + second)
            if work.results(query.name):
                return float(second)
    return float("inf")


def _display(gate: int) -> SinkQuery:
    """A display for one gate, with the windows of the paper."""
    text = (
        "SELECT fl.num, ci.status FROM flights [RANGE 5 MINUTES] AS fl, checkins [RANGE 1 MINUTE] AS ci "
        f"WHERE fl.num = ci.flight AND fl.gate = {gate}"
    )
    return SinkQuery(f"gate-{gate}", compile_query(text, catalog_of_streams()), "hall-a")


def _first_results(setting: Setting) -> tuple[First, ...]:
    """Displays that join a deployment that has the join of all flights, and one that has none."""
    catalog = catalog_of_streams()
    rows = poisson_rows(RATES, 60 * MINUTE, setting.seed)
    bare = landscape_at(RATES)
    text = (
        "SELECT fl.num, fl.gate, ci.status FROM flights [RANGE 5 MINUTES] AS fl, checkins [RANGE 1 MINUTE] AS ci "
        "WHERE fl.num = ci.flight"
    )
    running = _with(bare, SinkQuery("board", compile_query(text, catalog), "hall-a"))
    # Another query keeps the gates of both streams at work; its join is of no use to the displays.
    other = (
        "SELECT fl.gate FROM flights [RANGE 1 SECOND] AS fl, checkins [RANGE 1 SECOND] AS ci WHERE fl.gate = ci.status"
    )
    alone = _with(bare, SinkQuery("other", compile_query(other, catalog), "hall-a"))
    gates = np.random.default_rng(setting.seed).integers(0, VALUES["gate"], 3 if setting.quick else 10)
    return tuple(
        First(_first_result(running, _display(int(gate)), rows), _first_result(alone, _display(int(gate)), rows))
        for gate in gates
    )


def measure(setting: Setting) -> Found:
    """Changes under load, and the times to first results with and without reuse."""
    return replace(_changes(setting), first=_first_results(setting))


def present(found: Found) -> Outcome:
    rows = tuple(
        (one.name, one.started, one.stopped, one.seconds, one.before, one.during, one.after) for one in found.changes
    )
    reusing, alone = (fmean(values) for values in zip(*((one.reusing, one.alone) for one in found.first), strict=True))
    verdicts = (
        Verdict(
            "nothing is missing, repeated or late after queries came and went and a site lost its joins (our own bar)",
            f"{found.results:,} results of the queries that stayed or joined: {found.missing} missing, "
            f"{found.repeated} too many, {found.late} rows late",
            {"none missing": found.missing == 0, "none repeated": found.repeated == 0, "none late": found.late == 0},
        ),
        Verdict(
            "a query that finds its join running has its first result in half the time (our own bar)",
            f"{reusing:.1f} s of event time against {alone:.1f} s: {reusing / alone:.2f}",
            {"0.5": reusing <= 0.5 * alone},
        ),
        Verdict(
            "a hand-over costs no more than both plans together",
            ", ".join(
                f"{one.name}: {one.during / max(one.before, one.after):.2f} of the dearer" for one in found.changes
            ),
            {"the sum of both": all(one.during <= 1.1 * (one.before + one.after) for one in found.changes)},
        ),
    )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        at = np.arange(len(found.changes))
        for offset, part in ((-0.25, "before"), (0.0, "during"), (0.25, "after")):
            axes.bar(at + offset, [getattr(one, part) for one in found.changes], width=0.22, label=part)
        axes.set_xticks(at, [one.name for one in found.changes])
        axes.set(title="bytes per second times distance, around changes of a running deployment")
        axes.legend()

    columns = ("change", "operators started", "stopped", "seconds of event time", "usage before", "during", "after")
    return Outcome(columns, rows, draw, verdicts)


EXPERIMENTS = (Experiment("place-changes", "Queries join and leave, a site is lost", measure, present),)
