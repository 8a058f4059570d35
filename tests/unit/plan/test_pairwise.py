"""Pairwise windows: what bands over event times say about the distance of two rows."""

from __future__ import annotations

import pytest

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.lang.window import FOREVER
from anabranch.plan.pairwise import compares_event_times, leaving_early, lifetimes
from anabranch.plan.query import Query

SECOND = 1_000_000


def query_of(text: str) -> Query:
    catalog = Catalog()
    for name in "abcd":
        catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, at timestamp, k bigint"), "ts"))
    return compile_query(text, catalog, allow_unbounded=True)


def joined(condition: str, window: str = "[RANGE 100 SECONDS]", streams: str = "ab") -> Query:
    return query_of(f"SELECT a.k FROM {', '.join(f'{name} {window}' for name in streams)} WHERE {condition}")


@pytest.mark.parametrize(
    ("condition", "forth", "back"),
    [
        ("b.ts BETWEEN a.ts - INTERVAL 5 SECONDS AND a.ts + INTERVAL 7 SECONDS", 7, 5),
        ("a.ts <= b.ts", 100, 0),
        ("a.ts < b.ts", 100, -0.000001),
        ("a.ts + INTERVAL 3 SECONDS <= b.ts", 100, -3),
        ("a.ts = b.ts", 0, 0),
        ("b.ts <= a.ts + INTERVAL 500 SECONDS", 100, 100),
        ("b.at BETWEEN a.ts - INTERVAL 5 SECONDS AND a.ts + INTERVAL 7 SECONDS", 100, 100),
        ("(a.ts <= b.ts OR a.k = b.k)", 100, 100),
        ("a.ts <= b.ts AND b.ts + INTERVAL 1 SECOND <= a.ts", 100, 100),
    ],
)
def test_a_band_over_event_times_bounds_the_distance(condition: str, forth: int, back: float) -> None:
    windows = joined(f"a.k = b.k AND {condition}").pairwise
    assert (windows.between("a", "b"), windows.between("b", "a")) == (forth * SECOND, round(back * SECOND))


def test_bands_add_up_along_a_chain() -> None:
    query = joined(
        "b.ts BETWEEN a.ts AND a.ts + INTERVAL 2 SECONDS AND c.ts BETWEEN b.ts AND b.ts + INTERVAL 3 SECONDS",
        streams="abc",
    )
    windows = query.pairwise
    assert windows.between("a", "c") == 5 * SECOND
    assert windows.between("c", "a") == 0
    assert windows.from_any(["a", "b"], "c") == 3 * SECOND
    assert lifetimes([query]) == {"a": 5 * SECOND, "b": 3 * SECOND, "c": 0}


def test_a_row_is_kept_for_the_last_possible_match() -> None:
    query = joined("a.k = b.k AND b.k = c.k AND b.ts BETWEEN a.ts - INTERVAL 1 SECONDS AND a.ts", streams="abc")
    assert lifetimes([query]) == {"a": 100 * SECOND, "b": 100 * SECOND, "c": 100 * SECOND}
    assert leaving_early(query) == ("a", "b")


def test_a_band_bounds_an_unbounded_window() -> None:
    query = joined("b.ts BETWEEN a.ts - INTERVAL 5 SECONDS AND a.ts", "[UNBOUNDED]")
    assert lifetimes([query]) == {"a": 0, "b": 5 * SECOND}
    assert lifetimes([joined("a.k = b.k", "[UNBOUNDED]"), query])["a"] == FOREVER


def test_rows_of_a_grouped_query_stay_until_their_results_have_ended() -> None:
    text = (
        "SELECT COUNT(*) AS n FROM a [RANGE 100 SECONDS SLIDE 1 SECOND], b [RANGE 10 SECONDS SLIDE 1 SECOND]"
        " WHERE b.ts BETWEEN a.ts AND a.ts + INTERVAL 2 SECONDS"
    )
    assert lifetimes([query_of(text)]) == {"a": 12 * SECOND, "b": 10 * SECOND}


def test_rows_of_a_side_stay() -> None:
    condition = "b.ts BETWEEN a.ts AND a.ts + INTERVAL 2 SECONDS"
    left = query_of(f"SELECT a.k FROM a [RANGE 9 SECONDS] LEFT JOIN b [RANGE 9 SECONDS] ON {condition}")
    assert not leaving_early(left)
    text = (
        "SELECT a.k FROM a [RANGE 9 SECONDS] JOIN b [RANGE 1 SECONDS] ON {0} FULL JOIN c [RANGE 9 SECONDS] ON a.k = c.k"
    )
    assert not leaving_early(query_of(text.format(condition)))
    assert leaving_early(query_of(text.format(condition).replace("FULL", "LEFT"))) == ("a",)


def test_only_comparisons_of_event_times_are_such_bands() -> None:
    query = joined("a.k < b.k AND a.ts <= b.ts AND a.at <= b.ts")
    found = {str(theta): compares_event_times(query.graph, theta) for theta in query.graph.thetas}
    assert [text for text, is_one in found.items() if is_one] == ["a.ts <= b.ts"]
