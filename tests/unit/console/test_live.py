from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from rich.console import Console, Group

from anabranch.console.live import MOST_ROUTES, View, advance, follow, late_notice, line, shown, summary
from anabranch.lang.sizes import size_text


def progress(
    batch: int,
    *,
    rows_out: int = 2,
    late: int = 1,
    idle: bool = False,
    routes: Sequence[Mapping[str, Any]] = (),
    plans: Sequence[str] = ("(a b)",),
) -> dict[str, Any]:
    return {
        "batchId": batch,
        "numInputRows": 10,
        "processedRowsPerSecond": 1234.5,
        "durationMs": {"triggerExecution": 450},
        "adaptive": None
        if idle
        else {
            "plan": plans[0],
            "rowsOut": rows_out,
            "lateRows": {"s0": late, "s1": 0},
            "aheadRows": {"s0": 0, "s1": 0},
            "undatedRows": {"s0": 0, "s1": 0},
            "stateRows": 100 + batch,
            "stateBytes": 2_345_678,
            "plans": list(plans),
            "statistics": {"routes": list(routes)},
        },
    }


class Script:
    """A handle that ends after a number of looks, one more batch at each."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.seen: list[Mapping[str, Any]] = []

    def progressAfter(self, batch: int) -> Sequence[Mapping[str, Any]]:
        return [each for each in self.seen if each["batchId"] > batch]

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        self.seen.append(progress(len(self.seen)))
        return len(self.seen) >= self.looks


def test_totals_count_every_batch_once_however_often_it_is_seen() -> None:
    first = advance(View(), [progress(0), progress(1)])
    again = advance(first, [progress(0), progress(1), progress(2)])
    assert (again.rows_in, again.rows_out, again.late_rows) == (30, 6, 3)
    assert (again.batch, again.state_rows) == (2, 102)


def test_totals_are_told_at_every_look_so_that_an_interrupted_run_has_them() -> None:
    views: list[View] = []
    last = follow(Script(3), Console(quiet=True), now=iter(range(0, 1000, 20)).__next__, note=views.append)
    assert [view.batch for view in views] == sorted(view.batch for view in views)
    assert views[-1] == last
    assert last.rows_in == 30


def test_an_idle_trigger_changes_nothing() -> None:
    assert advance(View(), [progress(0, idle=True)]) == View()


def test_the_line_names_what_a_user_watches() -> None:
    shown = line(advance(View(), [progress(0)])).plain
    for part in ("batch 0 in 0.45 s", "rows/s 1,23", "state 100 rows, 2.3 MB", "plan (a b)", "late 1"):
        assert part in shown


def test_a_narrow_terminal_shows_all_of_it() -> None:
    out = io.StringIO()
    view = replace(advance(View(), [progress(0)]), plan="(a b c | a>b>c, b>a>c, c>a>b)", rows_out=123_456_789)
    # In a group, as a live display renders it: printed alone, a text is wrapped whatever it says of itself.
    Console(file=out, width=80).print(Group(line(view)))
    assert " ".join(out.getvalue().split()).endswith("plan (a b c | a>b>c, b>a>c, c>a>b)")


def route(relation: str, number: int, rows: int, **kept: int) -> dict[str, Any]:
    hops = [{"operator": name, "rows": rows, "kept": left, "seconds": 0.0} for name, left in kept.items()]
    return {"relation": relation, "route": number, "rows": rows, "results": 0, "hops": hops}


def rendered(view: View) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(shown(view))
    return out.getvalue()


def test_routes_of_a_mesh_are_shown_below_the_line_with_shares_and_what_is_left() -> None:
    routes = [route("a", 0, 750, b=15, c=30), route("a", 1, 250, c=25, b=500), route("b", 0, 900, a=9, c=9)]
    text = rendered(advance(View(), [progress(0, routes=routes)]))
    assert "plan mesh of 3 routes" in text
    table = [" ".join(words.split()) for words in text.splitlines()[1:]]
    assert table[1:] == ["a 0 75% 750 b 2 > c 4", "a 1 25% 250 c 10 > b 200"]


def test_routes_of_slots_with_different_meshes_are_not_mixed() -> None:
    plans = "mesh(a: b>c; b: a>c; c: a>b)", "mesh(a: c>b; b: a>c; c: a>b)"
    text = rendered(advance(View(), [progress(0, routes=[route("a", 0, 9, b=1), route("a", 1, 9, b=1)], plans=plans)]))
    assert "plan meshes that differ by slot" in text
    assert len(text.splitlines()) == 1


def test_of_many_routes_those_with_most_rows_are_shown() -> None:
    routes = [route("a", number, number, b=0) for number in range(MOST_ROUTES + 3)]
    text = rendered(advance(View(), [progress(0, routes=routes)]))
    assert "and 3 more" in text
    assert len(text.splitlines()) == MOST_ROUTES + 3


def test_without_a_terminal_a_plain_line_comes_now_and_then() -> None:
    out = io.StringIO()
    # Four seconds pass with every look at the clock.
    view = follow(Script(9), Console(file=out, force_terminal=False, width=80), now=count(step=4.0).__next__)
    lines = out.getvalue().splitlines()
    assert 0 < len(lines) < 8
    assert all(words.startswith("batch ") and "plan (a b)" in words for words in lines)
    assert view.batch == 8


def test_the_closing_line_says_where_the_results_are() -> None:
    assert summary(View(), ["out"]) is None
    assert summary(advance(View(), [progress(0)]), ["out"]) == "2 rows -> out   (batch 0, 10 rows in)"


def test_rows_that_were_dropped_are_told_at_the_end() -> None:
    assert late_notice(View()) is None
    assert str(late_notice(View(late_rows=1))).startswith("dropped 1 late row:")
    assert str(late_notice(View(late_rows=1_000))).startswith("dropped 1,000 late rows:")
    assert str(late_notice(View(ahead_rows=1))).startswith("dropped 1 row from the future:")
    assert str(late_notice(View(late_rows=2, ahead_rows=3), kept=True)).split(":")[0] == "kept aside 2 late rows"


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
