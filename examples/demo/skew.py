"""The second act: six skewed streams, joined by the best single plan and by a mesh, in turn.

A company watches the sessions of its staff and looks for those in which everything comes together and the risks add up.
Every office has something that hardly ever happens there: the bank blocks uploads, the lab has no mail. So rows of the
bank are best looked up among the uploads first, those of the lab among the mails; one order for all serves one office
and leaves the others with hundreds of combinations that come to nothing. The number of a session begins with its
office, which is all that a classifier needs. `plan: auto` learns it from a sample.

The comparison is fair: the single plan is the fastest of the best mjoin, tree and plan between the two, as the first
files of the streams show; those runs also warm the machine up. Then single plan and mesh run twice each, in the order
plan, mesh, mesh, plan, and the screen shows means. Beside the seconds of the engine in the slots, which the plan
decides, stands the time of the whole run, most of which is Spark's.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from textwrap import indent

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table

from anabranch.api import QueryHandle
from anabranch.console.live import follow
from anabranch.console.picture import RouteNote
from anabranch.console.runs import LiveRun
from anabranch.lang.schema import TIMESTAMP
from anabranch.optimize import Choice
from anabranch.optimize.proposals import Candidate, kind
from anabranch.plan.classify import assign_routes
from anabranch.plan.mesh import Mesh, Plan, RelationRoutes, checked_relation, is_existence_probe
from anabranch.plan.physical import PhysicalPlan
from anabranch.planning.choosing import first_plan, headline, proposal
from anabranch.planning.explain import Explanation, choice_svg
from anabranch.spark.session import SparkSession
from anabranch.spec.file import load
from anabranch.spec.launch import prepare
from anabranch.spec.model import Spec
from anabranch.stats.mesh.routes import RouteStatistics
from anabranch.stats.step import StepStatistics, merge
from examples.demo.check import Check, compare
from examples.demo.screen import command

NAMES = ("logins", "mails", "downloads", "uploads", "prints", "calls")
OFFICES = ("bank", "lab", "hotline", "shop", "plant", "kiosk")
LACKING = ("uploads", "mails", "downloads", "prints", "calls", "logins")
"""The stream that has next to no rows in each office."""
OFFICE = 1_000_000_000
"""Sessions of the first office are numbered from here, those of the next from twice that."""
USUAL = 6.0
"""How often a thing happens in a session, on average."""
EXCEPTIONS = 0.001
"""The share of sessions in which it happens although it hardly ever does."""
ORDER = ("plan", "mesh", "mesh", "plan")
"""Neither way is always the first, nor always the later."""
WARM_FILES = 2
"""Files of each stream on which plans are timed beforehand."""
WARM_UP = "skewed-warm-up.yaml"
MOST_MEMORY = 500e6
"""Bytes of state that a single plan may need by the model."""
BATCHES = 8
ROWS = 30_000
"""About so many rows of each stream are in a file, and a batch takes one file of each."""
SESSIONS = round(BATCHES * ROWS / USUAL * len(OFFICES) / (len(OFFICES) - 1))
BATCH_TIME, SPREAD = 6_000_000, 6_000_000
"""Microseconds of event time that a file covers, and the mean time from the beginning of a session to what happens."""
START = 1_767_225_600_000_000
ALIASES = dict(zip("lmdupc", NAMES, strict=True))

QUERY = """\
SELECT l.session, l.risk + m.risk + d.risk + u.risk + p.risk + c.risk AS risk
FROM logins [RANGE 20 SECONDS] AS l,    mails [RANGE 20 SECONDS] AS m,
     downloads [RANGE 20 SECONDS] AS d, uploads [RANGE 20 SECONDS] AS u,
     prints [RANGE 20 SECONDS] AS p,    calls [RANGE 20 SECONDS] AS c
WHERE l.session = m.session AND l.session = d.session AND l.session = u.session
  AND l.session = p.session AND l.session = c.session
  AND l.risk + m.risk + d.risk + u.risk + p.risk + c.risk >= 480
"""

STREAM = """\
  {name}:
    {{format: parquet, path: skewed/streams/{name}, event_time: ts, options: {{maxFilesPerTrigger: 1}},
     schema: "ts timestamp, session bigint, risk bigint"}}
"""

SPEC = f"""\
# Sessions in which everything comes together within 20 seconds, and the risks add up.
streams:
{"".join(STREAM.format(name=name) for name in NAMES)}query: |
{indent(QUERY, "  ")}sink: {{format: parquet, path: skewed/mesh}}
checkpoint: skewed/mesh-checkpoint
trigger: available_now
slots: 2
plan: auto
name: skewed
"""

# Only a session that is in all streams can have a result; apart from that it is the plain join.
BATCH_ANSWER = """
SELECT l.session, l.risk + m.risk + d.risk + u.risk + p.risk + c.risk AS risk
FROM (FROM logins WHERE session IN (
       SELECT session FROM mails INTERSECT SELECT session FROM downloads INTERSECT SELECT session FROM uploads
       INTERSECT SELECT session FROM prints INTERSECT SELECT session FROM calls)) l
  JOIN mails m USING (session) JOIN downloads d USING (session) JOIN uploads u USING (session)
  JOIN prints p USING (session) JOIN calls c USING (session)
WHERE l.risk + m.risk + d.risk + u.risk + p.risk + c.risk >= 480
  AND greatest(l.ts, m.ts, d.ts, u.ts, p.ts, c.ts) - least(l.ts, m.ts, d.ts, u.ts, p.ts, c.ts) <= INTERVAL 20 SECONDS
"""


@dataclass(frozen=True)
class Run:
    """The figures of one run of the query."""

    rows: int
    seconds: float
    """From first to last batch, with all that Spark does."""
    engine: float
    """Seconds of the engine in the slots."""
    combinations: int
    """Combinations that probes made, results among them."""
    routes: tuple[RouteStatistics, ...]

    @property
    def per_million(self) -> float:
        """Seconds of the engine per million rows."""
        return 1e6 * self.engine / self.rows


def perform(folder: Path, spark: SparkSession, console: Console, shown: list[LiveRun], seed: int) -> bool:
    """Runs the query by plan and by mesh in turn; true when all results equal the batch answer."""
    spec = prepared_folder(folder, seed)
    console.print("\n[bold]second act[/bold]: six skewed streams, by one plan for all rows and by a mesh\n")
    console.print(QUERY.strip(), style="cyan", highlight=False)
    console.print("\nsampling the first rows of the streams, and searching routes …", style="dim")
    auto = _choice(spec, spark)
    console.print(f"'plan: auto' takes {headline(auto)}", highlight=False)
    choice = auto
    if not isinstance(first_plan(auto), Mesh):
        console.print("so it keeps one plan; the mesh runs all the same, by 'plan: mesh'", style="yellow")
        choice = _choice(_with(spec, "mesh"), spark)
    mesh, single = first_plan(choice), _fastest(folder, auto, spark, console)
    runs: dict[str, list[Run]] = {"plan": [], "mesh": []}
    results: dict[str, list[Path]] = {"plan": [], "mesh": []}
    for way in ORDER:
        number = len(runs[way]) + 1
        plan = mesh if way == "mesh" else single
        console.print(f"run {number} by {'the mesh' if way == 'mesh' else plan}", style="bold", highlight=False)
        results[way].append(folder / "skewed" / f"{way}-{number}")
        handle = _start(spec, plan, results[way][-1], spark)
        shown.append(LiveRun(handle))
        runs[way].append(_run(handle, console))
    (folder / "mesh.svg").write_text(_picture(spec, choice, runs["mesh"][0]), encoding="utf-8")
    checks = {
        way: compare(folder / "skewed" / "streams", NAMES, BATCH_ANSWER, *several) for way, several in results.items()
    }
    console.print(_closing_screen(folder, runs, mesh if isinstance(mesh, Mesh) else None, checks))
    return all(check.has_passed for several in checks.values() for check in several)


def _choice(spec: Spec, spark: SparkSession) -> Choice:
    (choice,) = prepare(spec, spark).choices().values()
    return choice


def _with(spec: Spec, plan: str) -> Spec:
    """The spec with another plan."""
    return spec.each(lambda query: replace(query, plan_options=replace(query.plan_options, plan=plan)))


def _start(spec: Spec, plan: Plan, folder: Path, spark: SparkSession) -> QueryHandle:
    """Starts the query with a plan, and with results and checkpoint in places of their own."""
    assert spec.only.sink is not None
    sink = replace(spec.only.sink, path=str(folder))
    there = spec.each(lambda query: replace(query, sink=sink))
    return prepare(replace(_with(there, str(plan)), checkpoint=f"{folder}-checkpoint"), spark).start()


def candidates(choice: Choice) -> list[PhysicalPlan]:
    """The cheapest plan of each kind by the model; a plan whose states would not fit a small machine is left out."""
    best: dict[str, Candidate] = {}
    for each in sorted(proposal(choice).considered, key=lambda each: each.cost.cpu):
        if each.cost.memory <= MOST_MEMORY:
            best.setdefault(kind(each.plan), each)
    return [each.plan for each in best.values()]


def _fastest(folder: Path, choice: Choice, spark: SparkSession, console: Console) -> PhysicalPlan:
    """The candidate that needs the engine least for the first files; the first run only warms up."""
    few = load(folder / WARM_UP)
    plans = candidates(choice)
    left_out = {kind(each.plan) for each in proposal(choice).considered} - {kind(plan) for plan in plans}
    missing = f" (no {' or '.join(sorted(left_out))}: its states need too much memory)" if left_out else ""
    console.print(f"warming up, and timing {len(plans)} plans on the first files{missing} …", style="dim")
    quiet, seconds = Console(quiet=True), {}
    for number, plan in enumerate((plans[0], *plans)):
        place = folder / "skewed" / f"warm-up-{number}"
        seconds[plan] = _run(_start(few, plan, place, spark), quiet).engine
    for plan, spent in seconds.items():
        console.print(f"  {spent:6.2f} s of the engine by {plan}", style="dim", highlight=False)
    return min(seconds, key=lambda plan: seconds[plan])


def prepared_folder(folder: Path, seed: int) -> Spec:
    """The files of the streams, an empty place for results and checkpoints, and the spec."""
    shutil.rmtree(folder / "skewed", ignore_errors=True)
    for name, tables in generate(BATCHES, SESSIONS, seed).items():
        place = folder / "skewed" / "streams" / name
        place.mkdir(parents=True)
        for number, table in enumerate(tables):
            file = place / f"{number:05}.parquet"
            pq.write_table(table, file)
            # Spark takes files by age, and these are written too quickly to differ in it.
            os.utime(file, (START // 1_000_000 + number,) * 2)
        first = folder / "skewed" / "warm-up" / name
        first.mkdir(parents=True)
        for file in sorted(place.iterdir())[:WARM_FILES]:
            shutil.copy2(file, first)
    (folder / WARM_UP).write_text(SPEC.replace("skewed/streams", "skewed/warm-up"), encoding="utf-8")
    file = folder / "skewed.yaml"
    file.write_text(SPEC, encoding="utf-8")
    return load(file)


def generate(batches: int, count: int, seed: int) -> dict[str, list[pa.Table]]:
    """Per stream its files in order of event time, one for each batch, with what happens in so many sessions."""
    random = np.random.default_rng(seed)
    horizon = batches * BATCH_TIME
    begun = np.sort(random.integers(0, horizon, count))
    office = random.integers(0, len(OFFICES), count)
    session = (office + 1) * OFFICE + random.permutation(count)
    streams = {}
    for name in NAMES:
        times = random.poisson(USUAL, count)
        times[(office == LACKING.index(name)) & (random.random(count) >= EXCEPTIONS)] = 0
        whose = np.repeat(np.arange(count), times)
        happened = begun[whose] + random.exponential(SPREAD, len(whose)).astype(np.int64)
        order = np.argsort(happened, kind="stable")
        happened, whose = happened[order], whose[order]
        table = pa.table(
            {
                "ts": pa.array(START + happened, pa.int64()).cast(TIMESTAMP),
                "session": session[whose],
                "risk": random.integers(0, 100, len(whose)),
            }
        )
        cuts = np.searchsorted(happened, BATCH_TIME * np.arange(batches + 1))
        streams[name] = [table.slice(begin, end - begin) for begin, end in pairwise(cuts)]
    return streams


def _run(handle: QueryHandle, console: Console) -> Run:
    """Follows the query from its first to its last row."""
    follow(handle, console)
    ours = [each["adaptive"] for each in handle.recentProgress if each["adaptive"] is not None]
    steps, report = merge(StepStatistics.from_json(each["statistics"]) for each in ours), handle.report()
    return Run(
        rows=report["rows_in"],
        seconds=report["duration_ms"] / 1000,
        engine=sum(steps.seconds.values()),
        # The probes of a mesh are among the probes of the step; its routes would count them a second time.
        combinations=sum(probe.kept for probe in steps.probes if not is_existence_probe(probe.target)),
        routes=steps.routes,
    )


def _closing_screen(
    folder: Path, runs: Mapping[str, Sequence[Run]], mesh: Mesh | None, checks: Mapping[str, Sequence[Check]]
) -> Panel:
    """All figures within 80 columns; times are means of the runs."""
    one, other = runs["plan"], runs["mesh"]
    has_passed = all(check.has_passed for several in checks.values() for check in several)
    figures = _table()
    for heading in ("", "one plan", "mesh", ""):
        figures.add_column(heading, justify="right" if heading else "left")
    figures.add_row("rows", f"{one[0].rows:,}", f"{other[0].rows:,}")
    figures.add_row("results", *(f"{several[0].results:,}" for several in checks.values()))
    figures.add_row("combinations made by probes", f"{one[0].combinations:,}", f"{other[0].combinations:,}")
    figures.add_row(*_compared("engine, s per million rows", one, other, lambda run: run.per_million, strong=True))
    figures.add_row(*_compared("whole run, with all of Spark, s", one, other, lambda run: run.seconds))
    closing = Table.grid(padding=(0, 2))
    closing.add_column(style="dim", justify="right")
    closing.add_column()
    for words, several in zip(("one plan", "mesh"), checks.values(), strict=True):
        failed = [check for check in several if not check.has_passed]
        closing.add_row(words, (failed or several)[0].verdict)
    closing.add_row("picture", f"[bold]{folder / 'mesh.svg'}[/bold]")
    closing.add_row("next", f"{command()} explain {folder / 'skewed.yaml'} --sample")
    parts = [figures, f"[dim]means of {len(one)} runs each, in turn[/dim]", "", *_routes(mesh, other[0]), "", closing]
    title = "second act: rows of different offices take different routes"
    return Panel(Group(*parts), title=title, border_style="green" if has_passed else "red", expand=False)


def _compared(
    words: str, one: Sequence[Run], other: Sequence[Run], figure: Callable[[Run], float], *, strong: bool = False
) -> tuple[str, str, str, str]:
    """A row of the figures: the means of both, and their ratio."""
    means = [fmean(map(figure, runs)) for runs in (one, other)]
    return words, f"{means[0]:.2f}", f"{means[1]:.2f}", _factor(means[0] / means[1], strong=strong)


def _factor(factor: float, *, strong: bool = False) -> str:
    """How much less the second of two amounts is, or how much more."""
    words = f"{factor:.1f} times less" if factor >= 1 else f"{1 / factor:.1f} times as much"
    return f"[{'bold ' if strong else ''}{'green' if factor >= 1 else 'red'}]{words}[/]"


def _routes(mesh: Mesh | None, run: Run) -> list[Table | str]:
    """Where rows of each office look first, and one relation's routes with what became of their rows."""
    if mesh is None:
        return ["[red]no mesh was found, so all runs had one plan[/red]"]
    if all(len(way.routes) == 1 for way in mesh.ways):
        words = "Rows first ask other streams for their session; those that lack it somewhere join nothing."
        return [words, "", *_one_relation(mesh, run)]
    first = _table()
    for heading in ("rows of", *OFFICES):
        first.add_column(heading)
    first.add_row("where are few", *LACKING, style="dim")
    for way in mesh.ways:
        stream = ALIASES[way.relation]
        looked = [_stream(way.routes[route].operators[0]) for route in _routes_by_office(way)]
        cells = [
            "[dim]-[/dim]" if few == stream else f"[green]{found}[/green]" if found == few else found
            for found, few in zip(looked, LACKING, strict=True)
        ]
        first.add_row(stream, *cells)
    return [
        "The classifier reads the office off the session's number. Looked up first:",
        first,
        "",
        *_one_relation(mesh, run),
    ]


def _routes_by_office(way: RelationRoutes) -> list[int]:
    """The route of most numbers that sessions of each office have, at a risk in the middle."""
    numbers = np.arange(0, SESSIONS, 100)
    sessions = np.concatenate([(office + 1) * OFFICE + numbers for office in range(len(OFFICES))])
    columns = {"session": pa.array(sessions), "risk": pa.array(np.full(len(sessions), 50))}
    taken = assign_routes(way.classifier, columns, len(sessions)).reshape(len(OFFICES), -1)
    return [int(np.bincount(routes).argmax()) for routes in taken]


def _one_relation(mesh: Mesh, run: Run) -> list[Table | str]:
    way = max(mesh.ways, key=lambda way: len(way.routes))
    routes = [each for each in run.routes if each.relation == way.relation]
    rows = sum(each.rows for each in routes)
    table = _table()
    table.add_column("share", justify="right")
    table.add_column("route")
    for each in sorted(routes, key=lambda each: each.route):
        operators = way.routes[each.route].operators
        stops = [
            f"{_stream(operator)} [dim]{_count(100 * left)}[/dim]"
            for operator, left in zip(operators, _left(each, operators), strict=True)
        ]
        table.add_row(f"{each.rows / rows:.0%}", " > ".join(stops))
    return [f"Routes of {ALIASES[way.relation]}, with the rows left of 100 after each lookup:", table]


def _left(route: RouteStatistics, operators: Sequence[str]) -> tuple[float, ...]:
    """Returns the combinations after each operator of a route, per row on the route."""
    kept = {hop.operator: hop.kept for hop in route.hops}
    return tuple(kept.get(operator, 0) / max(1, route.rows) for operator in operators)


def _stream(operator: str) -> str:
    """The stream that an operator probes; with a question mark for an existence probe."""
    return f"{ALIASES[checked_relation(operator)]}?" if is_existence_probe(operator) else ALIASES[operator]


def _count(rows: float) -> str:
    return f"{rows:,.0f}" if rows >= 10 else f"{rows:.2g}"


def _table() -> Table:
    return Table(box=None, padding=(0, 1), header_style="dim")


def _picture(spec: Spec, choice: Choice, run: Run) -> str:
    """The mesh with the rows and results of its routes, or the plan if no mesh was found."""
    plan, query = first_plan(choice), Explanation(spec.only.query, spec.catalog()).query
    if not isinstance(plan, Mesh):
        return choice_svg(query, choice)
    rows = {alias: sum(each.rows for each in run.routes if each.relation == alias) for alias in ALIASES}
    notes = {}
    for each in run.routes:
        left = _left(each, plan.of(each.relation).routes[each.route].operators)
        notes[each.relation, each.route] = RouteNote(each.rows / rows[each.relation], f"{each.results:,} results", left)
    return choice_svg(query, choice, routes=notes)
