"""When a base row is of use to no query any more, and from which event time on a set has all rows."""

from __future__ import annotations

import pytest

from anabranch.cql import compile_query
from anabranch.engine.expiry import expiry, kept_from, spares
from anabranch.lang.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.lang.window import FOREVER, Tumble, Window
from anabranch.plan.execution import EXECUTION_MODELS
from anabranch.plan.query_set import QuerySet, alone, together

SECOND = 1_000_000
NEVER = 2 * FOREVER - 1
FLOORS = {"a": 100 * SECOND, "b": 70 * SECOND, "c": 90 * SECOND}
BAND = "b.ts BETWEEN a.ts AND a.ts + INTERVAL 2 SECONDS"
LONE = "SELECT a.k FROM a [RANGE 9 SECONDS]"
TABLE = "SELECT a.k FROM a [RANGE 9 SECONDS], t WHERE a.k = t.k"
PAIR = "SELECT a.k FROM a [RANGE 9 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"
NEAR = f"SELECT a.k FROM a [RANGE 9 SECONDS], b [RANGE 5 SECONDS] WHERE {BAND}"
AFTER = "SELECT a.k FROM a [RANGE 9 SECONDS], b [RANGE 5 SECONDS] WHERE b.ts <= a.ts - INTERVAL 2 SECONDS"
GROUPS = "SELECT COUNT(*) AS n FROM a [RANGE 9 SECONDS SLIDE 1 SECOND]"
NEAR_GROUPS = (
    f"SELECT COUNT(*) AS n FROM a [RANGE 9 SECONDS SLIDE 1 SECOND], b [RANGE 5 SECONDS SLIDE 1 SECOND] WHERE {BAND}"
)
ANTI = "SELECT a.k FROM a [RANGE 9 SECONDS] LEFT ANTI JOIN b [RANGE 5 SECONDS] ON a.k = b.k"
FULL = ANTI.replace("LEFT ANTI", "FULL")
CHAIN = (
    "SELECT COALESCE(a.k, b.k) AS k FROM a [RANGE 2 SECONDS] FULL JOIN b [RANGE 9 SECONDS] ON a.k = b.k "
    "LEFT JOIN c [RANGE 3 SECONDS] ON b.k = c.k"
)
TUMBLES = "SELECT COUNT(*) AS n FROM a [TUMBLE 8 SECONDS]"


def query_set(*texts: str) -> QuerySet:
    catalog = Catalog()
    for name in "abc":
        catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint"), "ts"))
    catalog.register_table(TableDeclaration("t", parse_schema("k bigint")))
    queries = [compile_query(text, catalog, allow_unbounded=True) for text in texts]
    return alone(queries[0]) if len(queries) == 1 else together({f"q{i}": query for i, query in enumerate(queries)})


@pytest.mark.parametrize(
    ("texts", "lows", "waiting"),
    [
        # By deadline, in seconds: None where no row stays; while rows wait for the watermark, in the last column.
        ([LONE], {"a": None}, {"a": 100}),
        ([TABLE], {"a": None}, {"a": 100}),
        ([PAIR], {"a": 70, "b": 100}, {"a": 70, "b": 70}),
        ([NEAR], {"a": 70 + 7, "b": 100 + 5}, {"a": 70 + 7, "b": 70 + 5}),
        # No future row of b matches a row of a up to 72; buffered ones, from 70 on, have not met the rows of b so far.
        ([AFTER], {"a": 70 + 9 + 2, "b": 100}, {"a": 70 + 9, "b": 70}),
        ([GROUPS], {"a": 100}, {"a": 100}),
        ([NEAR_GROUPS], {"a": 70 + 2, "b": 70}, {"a": 70 + 2, "b": 70}),
        # What a combination has met stays as long as the combination may.
        ([ANTI], {"a": 70, "b": 70 - 9}, {"a": 70, "b": 70 - 9}),
        ([FULL], {"a": 70 - 5, "b": 70 - 9}, {"a": 70 - 5, "b": 70 - 9}),
        # A row that the full join adds has no row of a, and waits as long as its own window.
        ([CHAIN], {"a": 70 - 9, "b": 70 - 2, "c": 70 - 9}, {"a": 70 - 9, "b": 70 - 2, "c": 70 - 9}),
        # The query that needs a row longest decides; a lone stream needs none.
        ([LONE, GROUPS], {"a": 100}, {"a": 100}),
        ([LONE, PAIR], {"a": 70, "b": 100}, {"a": 70, "b": 70}),
    ],
)
def test_a_row_stays_as_long_as_some_query_needs_it(
    texts: list[str], lows: dict[str, int | None], waiting: dict[str, int]
) -> None:
    queries = query_set(*texts)
    floors = {name: FLOORS[name] for name in lows}
    found = expiry(queries, floors)
    assert {name: found[name] for name in lows} == {
        name: NEVER if low is None else low * SECOND for name, low in lows.items()
    }
    for model in EXECUTION_MODELS:
        later = expiry(queries, floors, model)
        if model.rows_wait:
            assert {name: later[name] for name in waiting} == {name: low * SECOND for name, low in waiting.items()}
        # So that no set has fewer rows than `kept_from` says.
        assert all(later[name] <= found[name] for name in lows)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (PAIR, {"a": 70 - 9, "b": 100 - 5}),
        (NEAR, {"a": 70 - 2, "b": 100}),
        (GROUPS, {"a": 100 - 9}),
        (TUMBLES, {"a": 96}),
        (ANTI, {"a": 70 - 9, "b": 70 - 9 - 5}),
    ],
)
def test_a_set_has_all_rows_from_the_earliest_one_that_it_keeps(text: str, kept: dict[str, int]) -> None:
    found = kept_from(query_set(text), {name: FLOORS[name] for name in kept})
    assert found == {name: time * SECOND for name, time in kept.items()}


@pytest.mark.parametrize("text", [LONE, TABLE])
def test_a_stream_whose_rows_meet_no_other_has_none(text: str) -> None:
    assert kept_from(query_set(text), {"a": FLOORS["a"]})["a"] > FOREVER


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LONE, {"a": NEVER}),
        (PAIR, {"a": 0, "b": 0}),
        (NEAR, {"a": 7 * SECOND, "b": 5 * SECOND}),
        (NEAR_GROUPS, {"a": 2 * SECOND, "b": 0}),
        # A row stays for the partner that may come last.
        (NEAR.replace("WHERE", ", c [NOW] WHERE a.k = c.k AND"), {"a": 2 * SECOND, "b": 0, "c": 0}),
        # A row of a side may meet any row in its window, whatever the core says.
        (
            f"{NEAR} AND NOT EXISTS (SELECT 1 FROM c [RANGE 4 SECONDS] WHERE c.k = a.k)",
            {"a": 2 * SECOND, "b": 0, "c": 0},
        ),
        (
            f"SELECT a.k FROM a [RANGE 9 SECONDS] JOIN b [RANGE 5 SECONDS] ON {BAND} FULL JOIN c [NOW] ON a.k = c.k",
            None,
        ),
    ],
)
def test_a_band_lets_rows_go_before_their_windows_end(text: str, expected: dict[str, int] | None) -> None:
    (member,) = query_set(text).members
    assert spares(member.query) == (expected or {"a": 0, "b": 0, "c": 0})


@pytest.mark.parametrize("window", [Window(9), Window(0), Window(None), Tumble(9, 10), Tumble(0, 1)])
@pytest.mark.parametrize("deadline", [-31, -10, -1, 0, 1, 9, 10, 11, 1000])
def test_the_earliest_row_of_a_deadline(window: Window, deadline: int) -> None:
    earliest = window.earliest(deadline)
    assert window.deadline(earliest) >= deadline > window.deadline(earliest - 1)
