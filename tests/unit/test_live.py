from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from rich.console import Console

from anabranch.live import View, advance, follow, line
from anabranch.sizes import size_text


def progress(batch: int, *, rows_out: int = 2, late: int = 1, idle: bool = False) -> dict[str, Any]:
    return {
        "batchId": batch,
        "numInputRows": 10,
        "processedRowsPerSecond": 1234.5,
        "durationMs": {"triggerExecution": 450},
        "adaptive": None
        if idle
        else {
            "plan": "(a b)",
            "rowsOut": rows_out,
            "lateRows": {"s0": late, "s1": 0},
            "stateRows": 100 + batch,
            "stateBytes": 2_345_678,
        },
    }


class Script:
    """A handle that ends after a number of looks, one more batch at each."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.seen: list[Mapping[str, Any]] = []

    @property
    def recentProgress(self) -> Sequence[Mapping[str, Any]]:
        return self.seen

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        self.seen.append(progress(len(self.seen)))
        return len(self.seen) >= self.looks


def test_totals_count_every_batch_once_however_often_it_is_seen() -> None:
    first = advance(View(), [progress(0), progress(1)])
    again = advance(first, [progress(0), progress(1), progress(2)])
    assert (again.rows_in, again.rows_out, again.late_rows) == (30, 6, 3)
    assert (again.batch, again.state_rows) == (2, 102)


def test_an_idle_trigger_changes_nothing() -> None:
    assert advance(View(), [progress(0, idle=True)]) == View()


def test_the_line_names_what_a_user_watches() -> None:
    shown = line(advance(View(), [progress(0)])).plain
    for part in ("batch 0 in 0.45 s", "rows/s 1,23", "state 100 rows, 2.3 MB", "plan (a b)", "late 1"):
        assert part in shown


def test_nothing_is_written_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    view = follow(Script(3), Console(file=out, force_terminal=False))
    assert out.getvalue() == ""
    assert view.batch == 2


def test_a_terminal_sees_the_last_batch() -> None:
    out = io.StringIO()
    follow(Script(3), Console(file=out, force_terminal=True, width=200))
    assert "batch " in out.getvalue()
    assert "102 rows" in out.getvalue()


def test_following_stops_when_asked() -> None:
    script = Script(100)
    follow(script, Console(file=io.StringIO(), force_terminal=False), until=lambda: len(script.seen) == 5)
    assert len(script.seen) == 5


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (7_200_000_000, "7.2 GB")])
def test_sizes_are_read_by_people(size: int, text: str) -> None:
    assert size_text(size) == text
