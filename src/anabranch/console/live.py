"""The live status line of a running query in a terminal; below it, the routes of a mesh.

It reads only the handle's progress, so the two always agree. Without a terminal it prints a plain line at most every
`SECONDS_BETWEEN_LINES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from anabranch.lang.sizes import size_text

SECONDS_BETWEEN_LINES = 10.0
"""Without a terminal."""
MOST_ROUTES = 12
"""The maximum number of routes shown; those with the most rows are shown."""


class Followed(Protocol):
    """The members of a query handle that the live line uses."""

    def progressAfter(self, batch: int) -> Sequence[Mapping[str, Any]]: ...

    def awaitTermination(self, timeout: float | None = None) -> bool | None: ...


@dataclass(frozen=True)
class View:
    """Totals since the start, and the figures of the latest batch."""

    batch: int = -1
    seconds: float = 0.0
    rows_per_second: float = 0.0
    rows_in: int = 0
    rows_out: int = 0
    late_rows: int = 0
    ahead_rows: int = 0
    undated_rows: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    plan: str = ""
    routes: tuple[Mapping[str, Any], ...] = ()
    """The routes of a mesh in the latest batch; empty if slots run different meshes."""


def follow(
    handle: Followed,
    console: Console,
    *,
    until: Callable[[], bool] = lambda: False,
    interval: float = 0.5,
    now: Callable[[], float] = perf_counter,
    note: Callable[[View], None] = lambda view: None,
) -> View:
    """Shows the progress until the query ends or `until` returns true; returns the last view.

    Passes every view to `note`, so that the totals of an interrupted run are known.
    """
    view = View()
    if not console.is_terminal:
        printed, batch = now(), -1
        while not handle.awaitTermination(interval) and not until():
            if now() - printed < SECONDS_BETWEEN_LINES:
                continue
            printed, view = now(), advance(view, handle.progressAfter(view.batch))
            note(view)
            if view.batch > batch:
                batch = view.batch
                console.print(line(view).plain.rstrip(), highlight=False, soft_wrap=True)
        view = advance(view, handle.progressAfter(view.batch))
        note(view)
        return view
    with Live(shown(view), console=console, auto_refresh=False) as live:
        ended = False
        while not ended:
            ended = bool(handle.awaitTermination(interval)) or until()
            view = advance(view, handle.progressAfter(view.batch))
            note(view)
            live.update(shown(view), refresh=True)
    return view


def advance(view: View, recent: Sequence[Mapping[str, Any]]) -> View:
    """Adds the recent batches that the view does not include yet."""
    for progress in recent:
        ours = progress.get("adaptive")
        if ours is None or progress["batchId"] <= view.batch:
            continue
        view = View(
            batch=progress["batchId"],
            seconds=progress["durationMs"]["triggerExecution"] / 1000,
            rows_per_second=progress.get("processedRowsPerSecond") or 0.0,
            rows_in=view.rows_in + progress["numInputRows"],
            rows_out=view.rows_out + ours["rowsOut"],
            late_rows=view.late_rows + sum(ours["lateRows"].values()),
            ahead_rows=view.ahead_rows + sum(ours["aheadRows"].values()),
            undated_rows=view.undated_rows + sum(ours["undatedRows"].values()),
            state_rows=ours["stateRows"],
            state_bytes=ours["stateBytes"],
            plan=ours["plan"],
            routes=tuple(ours["statistics"]["routes"]) if len(set(ours["plans"])) == 1 else (),
        )
    return view


def summary(view: View, places: Sequence[str]) -> str | None:
    """Returns the closing line of a run, or None if no batch ran; `places` are the output locations."""
    if view.batch < 0:
        return None
    rows = "1 row" if view.rows_out == 1 else f"{view.rows_out:,} rows"
    return f"{rows} -> {', '.join(places)}   (batch {view.batch}, {view.rows_in:,} rows in)"


def late_notice(view: View, *, kept: bool = False) -> str | None:
    """Returns the message about late rows and rows too far in the future, or None.

    `kept` means that a side output keeps them.
    """
    lines = []
    did = "kept aside" if kept else "dropped"
    if view.late_rows:
        rows = _rows(view.late_rows, "late row")
        lines.append(f"{did} {rows}: older than the 'watermark' of their stream allows; a larger one keeps more rows")
    if view.ahead_rows:
        lines.append(f"{did} {_rows(view.ahead_rows, 'row')} from the future: beyond the 'max_ahead' of their stream")
    if view.undated_rows:
        lines.append(f"{did} {_rows(view.undated_rows, 'row')} without an event time")
    return "\n".join(lines) or None


def _rows(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def shown(view: View) -> Group | Text:
    """Returns the line, followed by the routes if a relation has several."""
    several = _with_choice(view.routes)
    return Group(line(view), routes_table(several)) if several else line(view)


def line(view: View) -> Text:
    """Formats the view as one line if the terminal is wide enough; the plan comes last and is never cut off."""
    if view.batch < 0:
        return Text("waiting for the first batch …", style="dim")
    parts = [
        ("batch", f"{view.batch} in {view.seconds:.2f} s"),
        ("rows/s", f"{view.rows_per_second:,.0f}"),
        ("in", f"{view.rows_in:,}"),
        ("out", f"{view.rows_out:,}"),
        ("late", f"{view.late_rows:,}"),
        ("state", f"{view.state_rows:,} rows, {size_text(view.state_bytes)}"),
        ("plan", _plan_text(view)),
    ]
    text = Text()
    for label, value in parts:
        text.append(f"{label} ", style="dim").append(value, style="bold").append("  ")
    return text


def _plan_text(view: View) -> str:
    if view.routes:
        return f"mesh of {len(view.routes)} routes"
    return "meshes that differ by slot" if view.plan.startswith("mesh(") else view.plan


def routes_table(routes: Sequence[Mapping[str, Any]]) -> Table:
    """Lists the routes with the most rows: their share, and the percentage of rows left after each operator."""
    total: dict[str, int] = {}
    for each in routes:
        total[each["relation"]] = total.get(each["relation"], 0) + each["rows"]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading, justify in (("rows of", "left"), ("route", "right"), ("share", "right"), ("rows", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("operators, and what is left of a hundred rows", no_wrap=True, overflow="ellipsis")
    largest = sorted(routes, key=lambda each: -each["rows"])[:MOST_ROUTES]
    for each in sorted(largest, key=lambda each: (each["relation"], each["route"])):
        share = each["rows"] / total[each["relation"]] if each["rows"] else 0.0
        hops = [f"{hop['operator']} {100 * hop['kept'] / max(1, each['rows']):,.3g}" for hop in each["hops"]]
        table.add_row(each["relation"], str(each["route"]), f"{share:.0%}", f"{each['rows']:,}", " > ".join(hops))
    if len(routes) > len(largest):
        table.add_row("", "", "", "", f"and {len(routes) - len(largest)} more", style="dim")
    return table


def _with_choice(routes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the routes of relations that have several."""
    relations = [each["relation"] for each in routes]
    return [each for each in routes if relations.count(each["relation"]) > 1]
