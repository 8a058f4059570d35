"""The first act: three live streams of files whose nature drifts, and a query that changes its plan while it runs.

A thread writes small Parquet files while the query runs, slightly out of order, as real streams are. At first an order
is paid at once and sent in several parcels, later it is paid in instalments and sent in one. The query measures it,
decides, and changes its plan while results keep coming.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from anabranch.adapt.gate import Gate
from anabranch.adapt.policy import DataDriven, Interval
from anabranch.adapt.settings import Settings
from anabranch.console.live import View, advance, follow
from anabranch.console.picture import OUTPUT, ShownPlan, plans_svg
from anabranch.lang.schema import TIMESTAMP
from anabranch.lang.sizes import size_text
from anabranch.optimize.proposals import kind
from anabranch.plan.physical import shape, subplans
from anabranch.plan.text import parse
from anabranch.planning.choosing import headline, proposal
from anabranch.planning.explain import Explanation
from anabranch.spark.session import SparkSession
from anabranch.spec.file import load
from anabranch.spec.launch import prepare
from anabranch.spec.model import Spec
from anabranch.stats.step import StepStatistics
from examples.demo.check import Check, compare
from examples.demo.screen import command

ORDERS_PER_TICK = 600
TICK = 0.5
"""Seconds of the wall clock between two files of a stream."""
TICK_EVENT_TIME = 2_000_000
"""Microseconds of event time that a file covers: the streams run four times as fast as the clock."""
DRIFT = 0.3
"""The share of the streams after which their nature changes."""
SEVERAL = 6
"""Parcels of an order before that, and instalments after."""
DISORDER = 3_000_000
START = 1_767_225_600_000_000
"""2026-01-01, where event time begins."""

NAMES = ("orders", "payments", "shipments")
HISTORY = Path("checkpoint", "anabranch", "history.jsonl")

SPEC = """\
# Orders that were paid in full and shipped, each step within its window.
streams:
  orders:
    {format: parquet, path: streams/orders, event_time: ts, watermark: 3 seconds,
     schema: "ts timestamp, order_id bigint, customer string, amount bigint"}
  payments:
    {format: parquet, path: streams/payments, event_time: ts, watermark: 3 seconds,
     schema: "ts timestamp, order_id bigint, method string, paid bigint"}
  shipments:
    {format: parquet, path: streams/shipments, event_time: ts, watermark: 3 seconds,
     schema: "ts timestamp, order_id bigint, carrier string"}
query: |
  SELECT o.order_id, o.customer, o.amount, p.method, s.carrier, s.ts AS shipped
  FROM orders [RANGE 60 SECONDS] AS o,
       payments [RANGE 40 SECONDS] AS p,
       shipments [RANGE 40 SECONDS] AS s
  WHERE o.order_id = p.order_id AND p.order_id = s.order_id
    AND p.paid >= o.amount AND o.amount > 20
sink: {format: parquet, path: results}
checkpoint: checkpoint
trigger: 1 second
slots: 2
plan: tree              # the best of two-way joins, as Spark has them: a change of plan then has states to move
adapt:
  policy: data-driven
  every: 12 seconds     # of event time, which runs four times as fast as the clock here
name: demo
"""

# Each row counts while the newest of the three is within its range: 60 s for orders, 40 s for the others.
BATCH_ANSWER = """
SELECT o.order_id, o.customer, o.amount, p.method, s.carrier, s.ts AS shipped
FROM orders o JOIN payments p ON o.order_id = p.order_id JOIN shipments s ON p.order_id = s.order_id
WHERE p.paid >= o.amount AND o.amount > 20
  AND greatest(o.ts, p.ts, s.ts) - o.ts <= INTERVAL 60 SECONDS
  AND greatest(o.ts, p.ts, s.ts) - p.ts <= INTERVAL 40 SECONDS
  AND greatest(o.ts, p.ts, s.ts) - s.ts <= INTERVAL 40 SECONDS
"""


def prepared_folder(folder: Path) -> Spec:
    """An empty folder for streams, results and checkpoint, with the spec in it."""
    for name in ("streams", "results", "checkpoint"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in NAMES:
        (folder / "streams" / name).mkdir(parents=True)
    file = folder / "spec.yaml"
    file.write_text(SPEC, encoding="utf-8")
    # The demo is small: a small gain counts, and decisions follow one another soon.
    gate = Gate(cores=0.00002, cool_down=Interval(seconds=12.0))
    adapt = Settings(DataDriven(Interval(seconds=12.0)), gate, remember=3)
    return load(file).each(lambda query: replace(query, adapt=adapt))


def perform(folder: Path, spec: Spec, spark: SparkSession, console: Console, seconds: int, seed: int) -> bool:
    """Runs the query over live streams and shows how it went; true when the result equals the batch answer."""
    streams = generate(max(2, round(seconds / TICK)), seed)
    with _Writer(streams, folder / "streams") as writer:
        writer.wait_for_first()
        prepared = prepare(spec, spark)
        (choice,) = prepared.choices().values()
        console.print(headline(choice), style="bold", highlight=False)
        handle = prepared.on_change(lambda record: _tell(console, record)).start()
        console.print("first batch: loading, and the first time compiling, the kernels …", style="dim")
        follow(handle, Console(quiet=True), until=lambda: advance(View(), handle.recentProgress).batch >= 0)
        writer.go_on()
        follow(handle, console, until=writer.is_done)
    handle.processAllAvailable()
    handle.stop()
    view = advance(View(), handle.recentProgress)
    picture = folder / "plan.svg"
    picture.write_text(_picture(spec, stretches(handle.recentProgress)), encoding="utf-8")
    (check,) = compare(folder / "streams", NAMES, BATCH_ANSWER, folder / "results")
    other = "tree" if kind(proposal(choice).plan) == "mjoin" else "mjoin"
    console.print(_closing_screen(folder, streams, view, handle.report(), check, handle.history, other))
    return check.has_passed


def generate(ticks: int, seed: int) -> dict[str, list[pa.Table]]:
    """Per stream its files in order of arrival; a row arrives up to the allowed disorder after its event time.

    Most orders are paid and shipped; some of it takes longer than the windows allow, so that the windows matter. Orders
    of the first part are paid once and come in several parcels, later ones are paid in instalments and come in one.
    """
    random = np.random.default_rng(seed)
    count = ORDERS_PER_TICK * ticks
    horizon = ticks * TICK_EVENT_TIME
    ordered = np.sort(random.integers(0, horizon, count))
    number = random.permutation(count)
    amount = random.integers(1, 200, count)
    customer = random.integers(0, 5_000, count)
    is_late = ordered >= DRIFT * horizon

    paid = (random.random(count) < 0.85) * np.where(is_late, SEVERAL, 1)
    shipped = (paid > 0) * (random.random(count) < 0.8) * np.where(is_late, 1, SEVERAL)
    payer, sender = np.repeat(np.arange(count), paid), np.repeat(np.arange(count), shipped)
    short = random.random(len(payer)) < 0.1

    methods, carriers = np.array(["card", "transfer", "wallet"]), np.array(["road", "rail", "air", "barge"])
    columns: dict[str, tuple[np.ndarray[Any, Any], dict[str, Any]]] = {
        "orders": (
            ordered,
            {"order_id": number, "customer": [f"c{id:04}" for id in customer], "amount": amount},
        ),
        "payments": (
            ordered[payer] + random.exponential(18e6, len(payer)).astype(np.int64),
            {
                "order_id": number[payer],
                "method": methods[random.integers(0, len(methods), len(payer))],
                "paid": amount[payer] - short,
            },
        ),
        "shipments": (
            ordered[sender] + random.exponential(24e6, len(sender)).astype(np.int64),
            {"order_id": number[sender], "carrier": carriers[random.integers(0, len(carriers), len(sender))]},
        ),
    }
    return {name: _files(times, payload, ticks, random) for name, (times, payload) in columns.items()}


class _Writer:
    """A thread that drops one file per stream at every tick, whole or not at all.

    After the first file it waits for `go_on`, so that rows do not pile up while the query starts.
    """

    def __init__(self, streams: dict[str, list[pa.Table]], folder: Path) -> None:
        self._streams = streams
        self._folder = folder
        self._first = threading.Event()
        self._started = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write, name="demo-streams", daemon=True)

    def __enter__(self) -> _Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._started.set()
        self._thread.join()

    def wait_for_first(self) -> None:
        """Returns when every stream has its first file, so that there is something to sample."""
        self._first.wait()

    def go_on(self) -> None:
        self._started.set()

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def _write(self) -> None:
        for tick, tables in enumerate(zip(*self._streams.values(), strict=True)):
            for name, table in zip(self._streams, tables, strict=True):
                # A reader never sees half a file: Spark skips names that begin with a dot, and the rename is atomic.
                hidden = self._folder / name / f".{tick:05}.parquet"
                pq.write_table(table, hidden)
                hidden.rename(self._folder / name / f"{tick:05}.parquet")
            self._first.set()
            self._started.wait()
            if self._stopped.wait(TICK):
                return


def _files(
    times: np.ndarray[Any, Any], payload: dict[str, Any], ticks: int, random: np.random.Generator
) -> list[pa.Table]:
    """The rows cut by arrival; those that would arrive after the last tick never do."""
    arrival = times + random.integers(0, DISORDER, len(times))
    table = pa.table({"ts": pa.array(START + times, pa.int64()).cast(TIMESTAMP), **payload})
    table = table.take(pa.array(np.argsort(arrival, kind="stable")))
    cuts = np.searchsorted(np.sort(arrival), TICK_EVENT_TIME * np.arange(ticks + 1))
    return [table.slice(begin, end - begin) for begin, end in pairwise(cuts)]


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
    """Prints a decision or a change of plan above the live line."""
    match record:
        case {"kind": "decision", "action": "migrate"}:
            text = f"{record['trigger']}: {record['proposed']} instead of {record['plan']}; {record['reason']}"
        case {"kind": "decision"}:
            text = f"{record['trigger']}: {record['plan']} stays; {record['reason']}"
        case {"phase": "began"}:
            rows, ms = record["recomputedRows"], 1000 * record["seconds"]
            text = f"to {record['to']} by {record['strategy']}, {rows:,} rows computed in {ms:.0f} ms"
        case {"phase": "ended", "batches": 1}:
            return  # its beginning is told
        case _:
            text = f"the plan is {record['plan']}"
    console.print(f"batch {record['batch']}: {text}", style="yellow", highlight=False)


def _closing_screen(
    folder: Path,
    streams: dict[str, list[pa.Table]],
    view: View,
    report: dict[str, Any],
    check: Check,
    history: list[dict[str, Any]],
    other_plan: str,
) -> Panel:
    sizes = {name: sum(table.num_rows for table in tables) for name, tables in streams.items()}
    times = sorted(batch["duration_ms"] for batch in report["batches"])
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", justify="right")
    table.add_column()
    table.add_row("rows in", f"{sum(sizes.values()):,}  ({', '.join(f'{n} {size:,}' for n, size in sizes.items())})")
    table.add_row("results", f"{check.results:,}")
    table.add_row("check", check.verdict)
    if times:
        table.add_row("batches", f"{len(times)}, half of them within {times[len(times) // 2] / 1000:.2f} s")
    table.add_row("state", f"{view.state_rows:,} rows, {size_text(view.state_bytes)}; late rows {view.late_rows:,}")
    decisions = sum(record["kind"] == "decision" for record in history)
    began = [record for record in history if record.get("phase") == "began"]
    for change in began:
        way = f"{change['from']} to {change['to']} at batch {change['batch']}, by {change['strategy']}"
        table.add_row("plan changed", f"{way}: {change['recomputedRows']:,} rows computed, nothing lost")
    table.add_row("decisions", f"{decisions}, each with its reasons in [bold]{folder / HISTORY}[/bold]")
    table.add_row("plan", f"{report['plan']}; drawn in [bold]{folder / 'plan.svg'}[/bold] with those before it")
    table.add_row("", "")
    table.add_row("next", f"{command()} explain {folder / 'spec.yaml'} --sample")
    table.add_row("", f"{command()} run {folder / 'spec.yaml'} --plan {other_plan}")
    table.add_row("", "[dim]goes on from the same checkpoint with another plan, until Ctrl-C[/dim]")
    return Panel(
        table, title="first act: the streams drift", border_style="green" if check.has_passed else "red", expand=False
    )
