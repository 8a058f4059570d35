"""The first act: three streams with heavy joins drift; a query that adapts is compared with one that keeps its plan.

At first few depots ship everything, so payments meet many shipments and hardly any order; later few accounts order
everything, and it is the other way round. Both runs read the same files, one file of each stream per micro-batch: first
the query that keeps its first plan, then the query that adapts. Trigger times are Spark's own, of whole triggers.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from anabranch.console.picture import OUTPUT, ShownPlan, plans_svg
from anabranch.console.runs import LiveRun
from anabranch.lang.schema import TIMESTAMP
from anabranch.plan.physical import shape, subplans
from anabranch.plan.text import parse
from anabranch.planning.choosing import headline
from anabranch.planning.explain import Explanation
from anabranch.spark.handle import QueryHandle
from anabranch.spark.session import SparkSession
from anabranch.spec.file import load
from anabranch.spec.launch import prepare
from anabranch.spec.model import Spec
from anabranch.stats.step import StepStatistics
from examples.demo.check import Check, compare
from examples.demo.screen import command

ROWS = 16_000
"""Rows of each stream in a file; a micro-batch takes one file of each."""
BATCHES, DRIFT = 30, 10
"""Micro-batches of a run, and the one with which the streams drift."""
MATCHES = 80
"""Rows that a row meets in the window of the other stream where keys are few."""
MANY = 20_000_000
"""Values of a key where they are many: hardly any row meets another."""
BATCH_TIME = 10_000_000
"""Microseconds of event time that a file covers."""
WINDOW = 3
"""Files whose rows a window holds."""
START = 1_767_225_600_000_000
"""2026-01-01, where event time begins."""
FASTER = 1.5
"""The adapting query is expected to be so many times faster after its change, in whole triggers."""

NAMES = ("orders", "payments", "shipments")
WAYS = {"kept": "first plan kept", "adapting": "adapting"}

QUERY = """\
SELECT o.number AS ordered, p.number AS paid, s.number AS shipped
FROM orders [RANGE 30 SECONDS] AS o,
     payments [RANGE 30 SECONDS] AS p,
     shipments [RANGE 30 SECONDS] AS s
WHERE o.account = p.account AND p.depot = s.depot
"""

SPEC = f"""\
# Orders and shipments that a payment connects, within 30 seconds.
streams:
  orders:
    {{format: parquet, path: streams/orders, event_time: ts, options: {{maxFilesPerTrigger: 1}},
     schema: "ts timestamp, number bigint, account bigint"}}
  payments:
    {{format: parquet, path: streams/payments, event_time: ts, options: {{maxFilesPerTrigger: 1}},
     schema: "ts timestamp, number bigint, account bigint, depot bigint"}}
  shipments:
    {{format: parquet, path: streams/shipments, event_time: ts, options: {{maxFilesPerTrigger: 1}},
     schema: "ts timestamp, number bigint, depot bigint"}}
query: |
  {QUERY.strip().replace(chr(10), chr(10) + "  ")}
sink: {{format: parquet, path: results/adapting}}
checkpoint: checkpoint/adapting
trigger: available_now
slots: 2
plan: tree              # two-way joins, as Spark has them
adapt: true
name: adapting
"""

BATCH_ANSWER = """
SELECT o.number AS ordered, p.number AS paid, s.number AS shipped
FROM orders o JOIN payments p ON o.account = p.account JOIN shipments s ON p.depot = s.depot
WHERE greatest(o.ts, p.ts, s.ts) - least(o.ts, p.ts, s.ts) <= INTERVAL 30 SECONDS
"""


@dataclass(frozen=True)
class Ran:
    """One run of the query."""

    triggers: tuple[float, ...]
    """Seconds of each whole trigger."""
    progress: Sequence[Mapping[str, Any]]
    history: Sequence[Mapping[str, Any]]

    @property
    def changed_at(self) -> int | None:
        """The batch with which the plan changed, if it did."""
        return next((each["batch"] for each in self.history if each.get("phase") == "began"), None)


def prepared_folder(folder: Path, seed: int = 1) -> Spec:
    """Writes the files of the streams and the spec; results and checkpoints begin empty."""
    for name in ("streams", "results", "checkpoint"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name, tables in generate(BATCHES, seed).items():
        place = folder / "streams" / name
        place.mkdir(parents=True)
        for number, table in enumerate(tables):
            file = place / f"{number:05}.parquet"
            pq.write_table(table, file)
            # Spark takes files by age, and these are written too quickly to differ in it.
            os.utime(file, (START // 1_000_000 + number,) * 2)
    file = folder / "spec.yaml"
    file.write_text(SPEC, encoding="utf-8")
    return load(file)


def generate(batches: int, seed: int) -> dict[str, list[pa.Table]]:
    """Returns for each stream its files in order, one for each micro-batch."""
    random = np.random.default_rng(seed)
    few = max(2, WINDOW * ROWS // MATCHES)
    streams: dict[str, list[pa.Table]] = {name: [] for name in NAMES}
    for batch in range(batches):
        accounts, depots = (few, MANY) if batch >= DRIFT else (MANY, few)
        keys = {"orders": {"account": accounts}, "payments": {"account": accounts, "depot": depots}}
        keys["shipments"] = {"depot": depots}
        for name in NAMES:
            times = np.sort(random.integers(0, BATCH_TIME, ROWS)) + START + batch * BATCH_TIME
            columns = {key: random.integers(0, count, ROWS) for key, count in keys[name].items()}
            number = np.arange(batch * ROWS, (batch + 1) * ROWS)
            streams[name].append(pa.table({"ts": pa.array(times).cast(TIMESTAMP), "number": number, **columns}))
    return streams


def perform(folder: Path, spec: Spec, spark: SparkSession, console: Console, shown: list[LiveRun]) -> bool:
    """Runs both queries and shows how they went; true when the plan changed, and paid, and the answers are right."""
    (choice,) = prepare(spec, spark).choices().values()
    console.print(headline(choice), style="bold", highlight=False)
    runs: dict[str, Ran] = {}
    for way in WAYS:
        handle = _start(spec, way, spark, lambda record: _tell(console, record))
        shown.append(LiveRun(handle))
        runs[way] = _followed(handle, way, runs, console)
    (folder / "plan.svg").write_text(_picture(spec, stretches(runs["adapting"].progress)), encoding="utf-8")
    checks = compare(folder / "streams", NAMES, BATCH_ANSWER, *(folder / "results" / way for way in WAYS))
    console.print(_closing_screen(folder, runs, dict(zip(WAYS, checks, strict=True))))
    return runs["adapting"].changed_at is not None and all(check.has_passed for check in checks)


def _start(spec: Spec, way: str, spark: SparkSession, tell: Callable[[Mapping[str, Any]], None]) -> QueryHandle:
    """Starts one of the queries, with results and checkpoint in places of their own."""
    sink = spec.only.sink
    assert sink is not None
    place = replace(sink, path=str(Path(str(sink.path)).parent / way))
    own = spec.each(lambda query: replace(query, sink=place, adapt=query.adapt if way == "adapting" else None))
    checkpoint = str(Path(str(spec.checkpoint)).parent / way)
    return prepare(replace(own, checkpoint=checkpoint, name=way), spark).on_change(tell).start()


def _followed(handle: QueryHandle, way: str, before: Mapping[str, Ran], console: Console) -> Ran:
    """Draws the trigger times of a query while it runs."""

    def triggers() -> tuple[float, ...]:
        batches = [each for each in handle.recentProgress if each["adaptive"] is not None]
        return tuple(each["durationMs"]["triggerExecution"] / 1000 for each in batches)

    drawn = {name: ran.triggers for name, ran in before.items()}
    with Live(_chart({**drawn, way: ()}), console=console, auto_refresh=False, transient=False) as live:
        while not handle.awaitTermination(0.5):
            live.update(_chart({**drawn, way: triggers()}), refresh=True)
        live.update(_chart({**drawn, way: triggers()}), refresh=True)
    if not console.is_terminal:
        console.print()  # outside a terminal, rich ends the last frame without a new line
    return Ran(triggers(), handle.recentProgress, handle.history)


def _chart(runs: Mapping[str, Sequence[float]]) -> Group:
    """One line for each run: a bar for each trigger. The first, which loads the kernels, does not set the scale."""
    blocks, most = " ▁▂▃▄▅▆▇█", max((max(each[1:], default=0.0) for each in runs.values()), default=0.0) or 1.0
    lines = []
    for way, triggers in runs.items():
        bars = "".join(blocks[min(8, max(1, round(8 * seconds / most)))] for seconds in triggers)
        latest = f"{triggers[-1]:.2f} s" if triggers else ""
        lines.append(Text(f"{WAYS[way]:>15} {bars:<{BATCHES}} {latest}", style="green" if way == "adapting" else "red"))
    return Group(*lines, Text(f"{'':>15} {'':<{DRIFT}}↑ the streams drift; bars are whole triggers", style="dim"))


@dataclass(frozen=True)
class Stretch:
    """The batches that one plan ran, with their counts."""

    plan: str
    first: int
    last: int
    rows_in: Mapping[str, int]
    """By stream."""
    rows_out: int
    kept: Mapping[str, int]
    """Rows of each state after the last of the batches."""


def stretches(progress: Iterable[Mapping[str, Any]]) -> list[Stretch]:
    """The plans of a run in order, each with the counts of its own batches."""
    found: list[Stretch] = []
    for entry in progress:
        ours = entry["adaptive"]
        if ours is None:
            continue
        step, number = StepStatistics.from_json(ours["statistics"]), entry["batchId"]
        kept = {state.state: state.rows for state in step.states}
        now = Stretch(ours["plan"], number, number, dict(ours["rowsIn"]), ours["rowsOut"], kept)
        if found and found[-1].plan == now.plan:
            before = found.pop()
            rows = {
                name: before.rows_in.get(name, 0) + now.rows_in.get(name, 0)
                for name in {**before.rows_in, **now.rows_in}
            }
            now = replace(now, first=before.first, rows_in=rows, rows_out=before.rows_out + now.rows_out)
        found.append(now)
    return found


def _picture(spec: Spec, ran: Sequence[Stretch]) -> str:
    """The plan that ran last, then the plans it replaced, each with the counts of its own batches."""
    query = Explanation(spec.only.query, spec.catalog()).query
    streams = {relation.name: relation.stream for relation in query.graph.streamed}
    shown = []
    for place, stretch in enumerate(reversed(ran)):
        plan = parse(stretch.plan)
        batches = f"batches {stretch.first} to {stretch.last}"
        heading = f"replaced before batch {stretch.last + 1}, {batches}" if place else f"ran last, {batches}"
        if len(ran) == 1:
            heading = f"ran throughout, {batches}"
        notes = {OUTPUT: f"{stretch.rows_out:,} results in these batches"}
        for part in subplans(plan):
            if part == plan:
                continue
            name = shape(part)
            kept = f"{stretch.kept.get(name, 0):,} rows kept at the end"
            notes[name] = f"{stretch.rows_in[streams[name]]:,} rows in\n{kept}" if name in streams else kept
        shown.append(ShownPlan(plan, f"{heading}: plan {stretch.plan}", notes))
    return plans_svg(query, shown)


def _tell(console: Console, record: Mapping[str, Any]) -> None:
    """Prints a change of plan and its reason in one sentence, and before it why the change waits."""
    if record.get("kind") != "decision":
        return
    saved = 1 - record["proposedCost"]["cpu"] / record["cost"]["cpu"]
    noticed = f"after batch {record['batch']}, {record['trigger']}"
    if record["action"] == "migrate":
        text = (
            f"{noticed}, so the query changes its plan from {record['plan']} to {record['proposed']}, which needs "
            f"{saved:.0%} less CPU"
        )
        console.print(text, style="yellow", highlight=False)
    elif saved > 0 and record["proposed"] != record["plan"]:
        text = f"{noticed}; plan {record['proposed']} needs {saved:.0%} less CPU, but waits: {record['reason']}"
        console.print(text, style="dim", highlight=False)


def _closing_screen(folder: Path, runs: Mapping[str, Ran], checks: Mapping[str, Check]) -> Panel:
    kept, adapting = runs["kept"], runs["adapting"]
    changed = adapting.changed_at
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", justify="right")
    for _ in range(3):
        table.add_column(justify="right")
    table.add_row("", *(f"[bold]{name}[/bold]" for name in WAYS.values()), "")
    whole = [sum(ran.triggers[1:]) for ran in (kept, adapting)]
    table.add_row(
        "all triggers but the first",
        *(f"{seconds:.1f} s" for seconds in whole),
        f"{whole[0] / whole[1]:.2f} times faster",
    )
    if changed is not None:
        means = [fmean(ran.triggers[changed + 1 :] or (0.0,)) for ran in (kept, adapting)]
        cells = (f"{1000 * seconds:.0f} ms" for seconds in means)
        colour = "green" if factor(runs) >= FASTER else "yellow"
        words = f"[bold {colour}]{factor(runs):.2f} times faster[/]"
        table.add_row("a trigger after the change", *cells, words)
    table.add_row("results", *(f"{check.results:,}" for check in checks.values()), "")
    rows: list[Any] = [table, ""]
    rows += [f"{WAYS[way]}: {check.verdict}" for way, check in checks.items()]
    for record in adapting.history:
        if record.get("phase") == "began":
            computed = f"{record['recomputedRows']:,} rows computed in {1000 * record['seconds']:.0f} ms"
            rows.append(f"batch {record['batch']}: {record['from']} became {record['to']}; {computed}, nothing lost")
    if changed is None:
        rows.append("[red]the plan did not change[/red]")
    rows.append(f"both plans are drawn in [bold]{folder / 'plan.svg'}[/bold]")
    rows.append(f"next: {command()} explain {folder / 'spec.yaml'} --sample")
    has_passed = changed is not None and all(check.has_passed for check in checks.values())
    return Panel(
        Group(*rows), title="first act: the streams drift", border_style="green" if has_passed else "red", expand=False
    )


def factor(runs: Mapping[str, Ran]) -> float:
    """How many times longer the triggers of the kept plan are than those of the adapting query, after the change."""
    changed = runs["adapting"].changed_at
    assert changed is not None
    kept, adapting = (fmean(runs[way].triggers[changed + 1 :] or (0.0,)) for way in WAYS)
    return kept / adapting if adapting else 0.0
