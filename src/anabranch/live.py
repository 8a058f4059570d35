"""One line in the terminal that follows a running query.

It reads nothing but the handle's own progress, so it cannot disagree with it; where the output is not a terminal it
stays silent and only waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from anabranch.sizes import size_text


class Followed(Protocol):
    """The part of a query handle that can be watched."""

    @property
    def recentProgress(self) -> Sequence[Mapping[str, Any]]: ...

    def awaitTermination(self, timeout: float | None = None) -> bool | None: ...


@dataclass(frozen=True)
class View:
    """What is known after some batches: totals since the start, and the latest batch."""

    batch: int = -1
    seconds: float = 0.0
    rows_per_second: float = 0.0
    rows_in: int = 0
    rows_out: int = 0
    late_rows: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    plan: str = ""


def follow(
    handle: Followed, console: Console, *, until: Callable[[], bool] = lambda: False, interval: float = 0.5
) -> View:
    """Waits until the query ends or `until` says so, showing its progress in a terminal; the last view."""
    view = View()
    if not console.is_terminal:
        while not handle.awaitTermination(interval) and not until():
            pass
        return advance(view, handle.recentProgress)
    with Live(line(view), console=console, auto_refresh=False) as live:
        ended = False
        while not ended:
            ended = bool(handle.awaitTermination(interval)) or until()
            view = advance(view, handle.recentProgress)
            live.update(line(view), refresh=True)
    return view


def advance(view: View, recent: Sequence[Mapping[str, Any]]) -> View:
    """The view after those of the recent batches that it has not seen."""
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
            state_rows=ours["stateRows"],
            state_bytes=ours["stateBytes"],
            plan=ours["plan"],
        )
    return view


def line(view: View) -> Text:
    """The view in one line."""
    if view.batch < 0:
        return Text("waiting for the first batch …", style="dim")
    parts = [
        ("batch", f"{view.batch} in {view.seconds:.2f} s"),
        ("rows/s", f"{view.rows_per_second:,.0f}"),
        ("in", f"{view.rows_in:,}"),
        ("out", f"{view.rows_out:,}"),
        ("late", f"{view.late_rows:,}"),
        ("state", f"{view.state_rows:,} rows, {size_text(view.state_bytes)}"),
        ("plan", view.plan),
    ]
    text = Text(no_wrap=True, overflow="ellipsis")
    for label, value in parts:
        text.append(f"{label} ", style="dim").append(value, style="bold").append("  ")
    return text
