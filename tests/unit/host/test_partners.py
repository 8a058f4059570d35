"""Rows that come after their partners: which are left out, and at which moment."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from anabranch.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.cql import compile_query
from anabranch.ddl import parse_schema
from anabranch.host import partners
from anabranch.host.local import LocalHost
from anabranch.host.partners import lags_of
from anabranch.plan.execution import DEFAULT_EXECUTION, EXECUTION_MODELS
from anabranch.plan.pairwise import Lag
from anabranch.plan.query import Query, render_query
from anabranch.plan.query_set import alone, together
from anabranch.plan.text import parse
from anabranch.schema import TIMESTAMP
from anabranch.testing.scripted import SECOND

BACK = "SELECT s.v AS sv, v.v AS vv FROM s [RANGE 60 SECONDS] AS s, v [RANGE 60 SECONDS] AS v WHERE s.k = v.k"
LATER = f"{BACK} AND v.ts BETWEEN s.ts + INTERVAL 5 SECONDS AND s.ts + INTERVAL 20 SECONDS"


def compiled(text: str, disorder: int = 0) -> Query:
    catalog = Catalog()
    for name in "sv":
        schema = parse_schema("ts timestamp, k bigint, v bigint")
        catalog.register(StreamDeclaration(name, schema, "ts", disorder * SECOND))
    catalog.register_table(TableDeclaration("t", parse_schema("k bigint, w bigint")))
    return compile_query(text, catalog)


def rows(micros: Sequence[int], keys: Sequence[int]) -> pa.Table:
    times = pa.array(micros, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
    return pa.table({"ts": times, "k": pa.array(keys, pa.int64()), "v": pa.array(range(len(micros)))})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (LATER, [("v", "s", 5 * SECOND)]),
        (f"{BACK} AND v.ts > s.ts + INTERVAL 2 SECONDS", [("v", "s", 2 * SECOND)]),
        # Partners may still come, together with the row or after it.
        (BACK, []),
        (f"{BACK} AND v.ts >= s.ts", []),
        (f"{BACK} AND v.ts BETWEEN s.ts - INTERVAL 1 SECOND AND s.ts + INTERVAL 5 SECONDS", []),
        # Rows without a partner come out, are counted, or belong to no state.
        (LATER.replace("s [RANGE 60 SECONDS]", "s [ROWS 5]"), []),
        (LATER.replace("v [RANGE 60 SECONDS]", "v [ROWS 5]"), []),
        (f"{LATER} AND NOT EXISTS (SELECT 1 FROM t WHERE t.k = v.v)", []),
        (LATER.replace("s.k = v.k", "s.k < v.k"), []),
    ],
)
def test_rows_with_a_lag(text: str, found: list[tuple[str, str, int]]) -> None:
    several = lags_of(alone(compiled(text)), DEFAULT_EXECUTION)
    assert [(each.relation, each.partner, each.least) for each in several] == found


def test_what_runs_together_or_waits_has_none() -> None:
    query = compiled(LATER)
    assert not lags_of(together({"p": query, "q": query}), DEFAULT_EXECUTION)
    has_lags = {model.name: bool(lags_of(alone(query), model)) for model in EXECUTION_MODELS}
    assert has_lags == {model.name: not model.rows_wait for model in EXECUTION_MODELS}


@pytest.mark.parametrize("slots", [1, 3])
def test_a_row_is_left_out_when_no_partner_can_come_any_more(slots: int) -> None:
    """The floor of `s` is 10 s, so a partner may still come for rows from 15 s on.

    s    4s: key 1    10s: key 2
    v                              14.999999s and 15s: keys 1, 2 and 3
    """
    host = LocalHost(compiled(LATER), parse("(s v)"), slots=slots)
    host.step({"s": rows([4 * SECOND, 10 * SECOND], [1, 2])})
    last = 15 * SECOND
    found = host.step({"v": rows([last - 1] * 3 + [last] * 3, [1, 2, 3] * 2)})
    assert sorted(found["vv"].to_pylist()) == [0, 3, 4]
    # Key 3 has no partner, and gets none before 15 s.
    assert host.statistics.rows_in == {"v": 5}
    found = host.step({"s": rows([10 * SECOND], [3])})
    assert found.to_pylist() == [{"sv": 0, "vv": 5}]


def test_a_late_row_is_counted_whether_it_has_a_partner_or_not() -> None:
    host = LocalHost(compiled(LATER), parse("(s v)"))
    host.step({"s": rows([20 * SECOND], [1]), "v": rows([20 * SECOND], [1])})
    host.step({"v": rows([19 * SECOND] * 2, [1, 7])})
    assert host.late == {"s": 0, "v": 2}


def test_the_clock_of_a_stream_goes_on_without_its_rows() -> None:
    host = LocalHost(compiled(LATER), parse("(s v)"))
    host.step({"s": rows([20 * SECOND], [1])})
    host.step({"v": rows([22 * SECOND], [7])})
    assert host.statistics.rows_in == {"v": 0}
    assert host.clocks.streams["v"].floor == 22 * SECOND


def test_of_many_keys_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partners, "MOST_KEYS", 3)
    for keys, left in ((3, {"v": 0}), (4, {"v": 1})):
        host = LocalHost(compiled(LATER), parse("(s v)"), slots=2)
        host.step({"s": rows([10 * SECOND] * keys, range(keys))})
        host.step({"v": rows([12 * SECOND], [9])})
        assert {"v": host.statistics.rows_in.get("v", 0)} == left


def test_a_lag_names_its_key_and_is_shown() -> None:
    assert lags_of(alone(compiled(LATER)), DEFAULT_EXECUTION) == (Lag("v", "s", "k0", 5 * SECOND),)
    assert "v comes at least 5 seconds after s: rows without a partner are left out" in render_query(compiled(LATER))
    assert "comes at least" not in render_query(compiled(BACK))
