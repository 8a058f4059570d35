"""Session windows give the batch answer, whatever the cut, the slots, moves, crashes and restarts.

DuckDB finds the begins of sessions by `lag`, over the rows that the filter passes; none of our code is involved.
"""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from anabranch.cql import compile_query, declared_results
from anabranch.errors import BindError, BundleError
from anabranch.plan.query_set import together
from tests.oracle.test_count_windows import run
from tests.support.duckdb_sql import select
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.strategies import FILTERS, SECOND, Arrivals, arrivals

KEYS = ((), ("x",), ("s",), ("x", "s"), ("y", "d"), ("p",))
AGGREGATES = (
    "COUNT(*)",
    "SUM(a.x)",
    "MIN(a.s)",
    "MAX(a.p)",
    "COUNT(a.f)",
    "COUNT(DISTINCT a.y)",
    "SUM(a.x) FILTER (WHERE a.p > 3)",
)


@st.composite
def session_queries(draw: st.DrawFn) -> tuple[str, str]:
    """Draws a query, as CQL and as SQL with the watermark in microseconds as `{passed}`."""
    keys = draw(st.sampled_from(KEYS))
    gap = draw(st.sampled_from([1, 2, 5]))
    filters = [text.format(a="a") for text in draw(st.lists(st.sampled_from(FILTERS), max_size=2))]
    where = f" WHERE {' AND '.join(filters)}" if filters else ""
    chosen = sorted(draw(st.sets(st.sampled_from(AGGREGATES), max_size=3)))
    listed = ", ".join(
        ["COUNT(*) AS n", *(f"a.{key}" for key in keys), *(f"{a} AS v{i}" for i, a in enumerate(chosen))]
    )
    having = draw(st.sampled_from(["", "COUNT(*) > 1"]))
    by = "".join(f", a.{key}" for key in keys)
    partition = f"PARTITION BY {', '.join(f'a.{key}' for key in keys)}" if keys else ""
    if draw(st.booleans()):
        cql = f"FROM s0 [SESSION {gap} SECONDS] AS a{where}" + (f" GROUP BY {by[2:]}" if by else "")
    else:
        cql = f"FROM s0 AS a{where} GROUP BY session_window(a.ts, '{gap} seconds'){by}"
    cql = (
        f"SELECT WINDOW_START() AS begins, WINDOW_END() AS ends, {listed} {cql}{f' HAVING {having}' if having else ''}"
    )
    end = f"max(epoch_us(a.ts)) + {gap * SECOND}"
    apart = f"epoch_us(a.ts) - lag(epoch_us(a.ts)) OVER ({partition} ORDER BY a.ts) <= {gap * SECOND}"
    begins = f"SELECT a.*, CASE WHEN {apart} THEN 0 ELSE 1 END AS begins FROM s0 AS a{where}"
    numbered = f"SELECT a.*, sum(begins) OVER ({partition} ORDER BY a.ts ROWS UNBOUNDED PRECEDING) AS session"
    numbered = f"({numbered} FROM ({begins}) AS a) AS a"
    closed = f"{end} < {{passed}}{f' AND {having}' if having else ''}"
    found = f"SELECT min(a.ts) AS begins, make_timestamp({end}) AS ends, {listed} FROM {numbered}"
    sql = f"{found} GROUP BY a.session{by} HAVING {closed}"
    return cql, sql


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data())
def test_sessions_give_the_batch_answer(data: st.DataObject) -> None:
    rows = data.draw(arrivals(1, most_rows=20, alike=data.draw(st.booleans())), "rows")
    cql, sql = data.draw(session_queries(), "query")
    answer, watermark = run(data, compile_query(cql, rows.catalog), rows)
    expected = rows_as_multiset(select(sql.replace("{passed}", str(watermark)), rows.tables))
    event(f"results: {min(len(expected), 5)}")
    assert not describe_difference(expected, answer)


@given(data=st.data())
def test_ranked_rows_of_sessions_give_the_batch_answer(data: st.DataObject) -> None:
    rows = data.draw(arrivals(1, most_rows=14), "rows")
    key = data.draw(st.sampled_from(["", ", a.x", ", a.f"]), "key")
    number = f"ROW_NUMBER() OVER (PARTITION BY session_window(a.ts, '2 seconds'){key} ORDER BY a.s DESC, a.p)"
    query = compile_query(f"SELECT a.p, WINDOW_END() AS ends FROM s0 AS a QUALIFY {number} <= 2", rows.catalog)
    answer, _ = run(data, query, rows)
    assert not describe_difference(batch_answer(query, rows.tables), answer)


@given(data=st.data())
def test_the_naive_answer_agrees(data: st.DataObject) -> None:
    rows = data.draw(arrivals(1, most_rows=12, alike=data.draw(st.booleans())), "rows")
    cql, sql = data.draw(session_queries(), "query")
    naive = batch_answer(compile_query(cql, rows.catalog), rows.tables, watermark=2**62)
    assert not describe_difference(rows_as_multiset(select(sql.replace("{passed}", str(2**62)), rows.tables)), naive)


@given(rows=arrivals(2, most_rows=2))
def test_a_session_begins_at_a_column(rows: Arrivals) -> None:
    text = "SELECT WINDOW_START() AS at, COUNT(*) AS n FROM (SELECT ts, x FROM s0) [SESSION 1 SECOND] AS a"
    with pytest.raises(BindError, match=r"WINDOW_START\(\) needs the event time of 'a' as a column"):
        compile_query(text, rows.catalog)


@given(rows=arrivals(2, most_rows=2))
def test_sessions_run_alone(rows: Arrivals) -> None:
    catalog = rows.catalog
    sessions = compile_query("SELECT COUNT(*) AS n FROM s0 [SESSION 1 SECOND]", catalog)
    with pytest.raises(BundleError, match="session"):
        together({"q": sessions, "r": compile_query("SELECT s1.x FROM s1", catalog)})
    catalog.register(declared_results("pairs", compile_query("SELECT s1.x FROM s1", catalog)))
    reader = compile_query("SELECT x, COUNT(*) AS n FROM pairs [SESSION 1 SECOND] GROUP BY x", catalog)
    with pytest.raises(BundleError, match="session"):
        together({"q": reader})
    shown = "SELECT session_window.start AS at, COUNT(*) AS n FROM (SELECT ts FROM s0) AS a"
    inside = compile_query(f"{shown} GROUP BY session_window(a.ts, '1 second')", catalog)
    with pytest.raises(BundleError, match="session"):
        together({"q": inside})
