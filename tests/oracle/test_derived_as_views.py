"""Derived streams against DuckDB, in which each query is a view: several levels, self-joins, grouping.

A view has the columns of its query and the event time `t` of each result. A grouped view has a row for each group at
each boundary before the watermark of the streams below it.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import pyarrow as pa
from hypothesis import event, given
from hypothesis import strategies as st

from anabranch.cql import compile_query, declared_results
from anabranch.plan.query import Query
from anabranch.plan.query_set import together
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from tests.oracle.sharing import ask, some_plans
from tests.support.duckdb_sql import select
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.outer_queries import final_watermark
from tests.support.strategies import SECOND, Arrivals, arrivals, batch_cuts

RANGES = st.sampled_from([0, 1, 3, 10])


@dataclass(frozen=True)
class View:
    """A query as CQL, and as SQL with its event time; both have the columns x, n and p."""

    name: str
    cql: str
    sql: str
    streams: frozenset[str]
    """The streams below it."""


@given(data=st.data(), levels=st.integers(1, 4))
def test_queries_over_queries_are_views(data: st.DataObject, levels: int) -> None:
    rows = data.draw(arrivals(2, most_rows=9, mostly_dense=True), "rows")
    catalog = rows.catalog
    views = [
        View(f"s{i}", "", f"SELECT x, p AS n, p, epoch_us(ts) AS t FROM rows{i}", frozenset([f"s{i}"])) for i in (0, 1)
    ]
    queries: dict[str, Query] = {}
    for number in range(levels):
        view = _drawn(data, f"q{number}", views, rows)
        queries[view.name] = compile_query(view.cql, catalog)
        catalog.register(declared_results(view.name, queries[view.name]))
        views.append(view)
    found = _run(data, queries, rows)
    for view in views[2:]:
        expected = rows_as_multiset(select(_with_views(view, views), _tables(rows)))
        event(f"{view.cql.count('GROUP BY')} groups: {min(len(expected), 3)}+")
        assert not describe_difference(expected, rows_as_multiset(found[view.name]))
        assert not describe_difference(expected, batch_answer(queries[view.name], rows.tables))


def _stream(name: str) -> View:
    return View(name, "", f"SELECT x, p AS n, p, epoch_us(ts) AS t FROM rows{name[1:]}", frozenset([name]))


def _drawn(data: st.DataObject, name: str, views: list[View], rows: Arrivals) -> View:
    """A query over the views so far, mostly over the last ones."""
    left = data.draw(st.sampled_from(views[-2:]), f"left of {name}")
    if data.draw(st.booleans(), f"{name} is grouped"):
        return _grouped(
            name, left, data.draw(RANGES, "range") or 2, data.draw(st.sampled_from([1, 2, 5]), "slide"), rows
        )
    right = data.draw(st.sampled_from([left, *views[-3:]]), f"right of {name}")
    return _join(name, left, right, data.draw(RANGES, "left range"), data.draw(RANGES, "right range"))


def _join(name: str, left: View, right: View, of_left: int, of_right: int) -> View:
    windows = [f"[RANGE {seconds} SECONDS]" if seconds else "[NOW]" for seconds in (of_left, of_right)]
    second = "n" if left.cql else "p"
    a, b = f"a_{name}", f"b_{name}"
    cql = (
        f"SELECT {a}.x AS x, {a}.{second} AS n, {b}.p AS p "
        f"FROM {left.name} {windows[0]} AS {a}, {right.name} {windows[1]} AS {b} WHERE {a}.x = {b}.x"
    )
    sql = (
        f"SELECT a.x, a.n, b.p, greatest(a.t, b.t) AS t FROM {left.name} AS a, {right.name} AS b WHERE a.x = b.x "
        f"AND b.t <= a.t + {of_left * SECOND} AND a.t <= b.t + {of_right * SECOND}"
    )
    return View(name, cql, sql, left.streams | right.streams)


def _grouped(name: str, below: View, seconds: int, slide: int, rows: Arrivals) -> View:
    """At each boundary before the watermark, the rows that are inside their window there."""
    mark = final_watermark(
        {stream: rows.tables[stream] for stream in below.streams},
        {stream: rows.disorder[stream] for stream in below.streams},
    )
    cql = (
        f"SELECT a_{name}.x AS x, COUNT(*) AS n, MAX(a_{name}.p) AS p "
        f"FROM {below.name} [RANGE {seconds} SECONDS SLIDE {slide} SECONDS] AS a_{name} GROUP BY a_{name}.x"
    )
    step = slide * SECOND
    boundaries = f"SELECT unnest(range(-20, 200)) * {step} AS t"
    sql = (
        f"SELECT a.x, count(*) AS n, max(a.p) AS p, o.t FROM {below.name} AS a, ({boundaries}) AS o "
        f"WHERE a.t <= o.t AND o.t <= a.t + {seconds * SECOND} AND o.t < {int(mark)} GROUP BY a.x, o.t"
    )
    return View(name, cql, sql, below.streams)


def _with_views(view: View, views: list[View]) -> str:
    named = ", ".join(f"{each.name} AS ({each.sql})" for each in views)
    return f"WITH {named} SELECT x, n, p FROM {view.name}"


def _tables(rows: Arrivals) -> dict[str, pa.Table]:
    return {f"rows{name[1:]}": table for name, table in rows.tables.items()}


def _run(data: st.DataObject, queries: dict[str, Query], rows: Arrivals) -> dict[str, pa.Table]:
    several = together(queries)
    batches = data.draw(batch_cuts(rows), "batches")
    restarts = data.draw(st.sets(st.integers(1, len(batches)), max_size=1), "restarts")
    found: dict[str, list[pa.Table]] = {name: [] for name in queries}
    with tempfile.TemporaryDirectory() as folder:
        host = None
        for number, batch in enumerate(batches):
            if host is None or number in restarts:
                slots = data.draw(st.sampled_from([1, 2, 3]), "slots")
                host = LocalHost(several, some_plans(data, several), slots=slots, checkpoint=folder)
            ask(data, host)
            mine = {name: table for name, table in batch.items() if name in several.streams}
            for name, table in ResultLayout(several).split(host.step(mine)).items():
                found[name].append(table)
    return {
        name: pa.concat_tables([queries[name].schema.to_arrow().empty_table(), *parts]) for name, parts in found.items()
    }
