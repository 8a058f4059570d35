"""Rows in and rows out of a batch in process: what the tables hold, and what the answer holds."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.plan.physical import mjoin
from anabranch.plan.query_set import ALONE, Plans, together
from anabranch.run.commit import rows_by_query, rows_by_stream, rows_out
from anabranch.run.local import LocalHost
from tests.support.scripted import read_rows, read_script

CATALOG = read_script("\n".join(f"stream {name} (k bigint, j bigint)" for name in "abc")).catalog
BATCHES = [
    ["a 1 1 1", "a 2 - 1", "b 1 1 1", "b 2 1 2", "c 2 5 2"],
    ["a 4 1 2", "a 5 2 2", "b 5 - -"],  # no rows of c
    ["a 0 1 1", "b 9 1 1", "c 9 5 1"],  # the row of a is late
    ["a 30 1 1", "b 30 1 2", "c 30 5 2"],
]
PAIRS = "SELECT a.j AS x, b.j AS y FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS] WHERE a.k = b.k AND a.j < 2"
QUERIES = {
    "a filter": PAIRS,
    "aliases": "SELECT x.j AS x, y.j AS y FROM a [RANGE 9 SECONDS] AS x, a [RANGE 9 SECONDS] AS y WHERE x.k = y.j",
    "rows that several slots need": (
        "SELECT a.j AS x, c.k AS y FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS], c [RANGE 9 SECONDS] "
        "WHERE a.k = b.k AND b.j = c.j"
    ),
    "groups": (
        "SELECT b.j AS j, COUNT(*) AS n FROM a [RANGE 6 SECONDS SLIDE 3 SECONDS], b [RANGE 6 SECONDS SLIDE 3 SECONDS] "
        "WHERE a.k = b.k GROUP BY b.j HAVING COUNT(*) > 1"
    ),
    "sides": "SELECT a.j AS x, b.j AS y FROM a [RANGE 3 SECONDS] LEFT JOIN b [RANGE 3 SECONDS] ON a.k = b.k",
}


def delivered(host: LocalHost, rows: dict[str, pa.Table]) -> dict[str, int]:
    return {name: rows[name].num_rows if name in rows else 0 for name in host.queries.streams}


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("name", QUERIES)
def test_a_batch_counts_what_came_and_what_went(name: str, slots: int) -> None:
    query = compile_query(QUERIES[name], CATALOG)
    host = LocalHost(query, mjoin(query.graph.names), slots=slots)
    seen = 0
    for lines in BATCHES:
        rows = {name: table for name, table in read_rows(CATALOG, lines).items() if name in host.queries.streams}
        answer = host.step(rows)
        assert rows_by_stream(host.queries, host.reports) == delivered(host, rows)
        assert rows_by_query(host.queries, host.reports) == {ALONE: answer.num_rows}
        assert rows_out(host.queries, host.reports) == answer.num_rows
        seen += answer.num_rows
    assert seen


@pytest.mark.parametrize("slots", [1, 3])
def test_each_query_of_a_set_counts_its_own_results(slots: int) -> None:
    queries = together({"pairs": compile_query(PAIRS, CATALOG), "groups": compile_query(QUERIES["groups"], CATALOG)})
    host = LocalHost(queries, Plans(dict.fromkeys(queries.names, mjoin(("a", "b")))), slots=slots)
    for lines in BATCHES:
        rows = {name: table for name, table in read_rows(CATALOG, lines).items() if name != "c"}
        answer = host.step(rows)
        results = {name: len(answer.column(name).drop_null()) for name in queries.names}
        assert rows_by_stream(host.queries, host.reports) == delivered(host, rows)
        assert rows_by_query(host.queries, host.reports) == results
