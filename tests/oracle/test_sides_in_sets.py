"""Outer, semi and anti joins and tables in sets: beside other queries, each query gets its batch answer."""

from __future__ import annotations

import re
import tempfile
from contextlib import suppress
from unittest import mock

import pyarrow as pa
from hypothesis import event, given, settings
from hypothesis import strategies as st

from anabranch.cql import compile_query, declared_results
from anabranch.errors import BundleError, PlanError
from anabranch.plan.query import Query
from anabranch.plan.query_set import QuerySet, together
from anabranch.run import tables as host_tables
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from tests.oracle.sharing import ask, some_plans
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.outer_queries import drawn_tables, outer_queries, with_tables
from tests.support.strategies import Arrivals, arrivals, batch_cuts, overlapping_query, overlaps, tables

_ALIAS = re.compile(r"(?<= AS )[abceghij]\b|\b[abceghij](?=\.)")


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data(), count=st.integers(2, 3))
def test_queries_with_outer_joins_and_tables_run_beside_others(data: st.DataObject, count: int) -> None:
    rows = data.draw(arrivals(2, most_rows=7, mostly_dense=True), "rows")
    beside = data.draw(drawn_tables(2), "tables")
    queries, several = _drawn(data, rows, beside, count)
    batches = data.draw(batch_cuts(rows), "batches")
    restarts = data.draw(st.sets(st.integers(1, len(batches)), max_size=2), "restarts")
    results: dict[str, list[pa.Table]] = {name: [] for name in queries}
    small = data.draw(st.sampled_from([2, host_tables.SMALL]), "small")
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(host_tables, "SMALL", small):
        checkpoint = folder if restarts else None
        host = _host(data, several, checkpoint, beside)
        for number, batch in enumerate(batches):
            if number in restarts:
                host = _host(data, several, checkpoint, beside)
            ask(data, host)
            if not data.draw(st.integers(0, 2), "splits"):
                with suppress(PlanError):
                    host.spread(data.draw(tables(host.partitioning, several.uncut), "table"))
            mine = {name: table for name, table in batch.items() if name in several.streams}
            for name, table in ResultLayout(host.queries).split(host.step(mine)).items():
                results[name].append(table)
    assert not any(host.late.values())
    for name, query in queries.items():
        streams = {relation.stream for relation in query.whole.relations}
        read = {stream: table for stream, table in rows.tables.items() if stream in streams or query.inputs}
        expected = batch_answer(query, {**read, **beside})
        event(f"{_kind(query)}: {'some' if expected else 'none'}")
        assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(results[name])))


def _drawn(
    data: st.DataObject, rows: Arrivals, beside: dict[str, pa.Table], count: int
) -> tuple[dict[str, Query], QuerySet]:
    """Queries, most of them with sides or tables; they share aliases where they can."""
    catalog = with_tables(rows.catalog, beside)
    overlap = data.draw(overlaps(2), "overlap")
    queries: dict[str, Query] = {}
    for number in range(count):
        name = f"q{number}"
        match data.draw(st.sampled_from(["sides", "sides", "tables", "groups", "plain", "over"]), "kind"):
            case "sides":
                text = data.draw(outer_queries(2), name).cql
            case "tables":
                text = data.draw(outer_queries(2, tables=2), name).cql
            case "groups":
                text = data.draw(outer_queries(2, 2, tables=2), name).cql
            case "plain":
                text = data.draw(overlapping_query(overlap), name)
            case _:
                text = _over(data, [other for other, known in queries.items() if _can_be_read(known)])
        own = data.draw(st.booleans(), f"{name} has aliases of its own")
        query = compile_query(_renamed(text, number) if own else text, catalog, allow_unbounded=True)
        try:
            together({**queries, name: query})
        except BundleError as error:
            event(f"refused: {error.message[:30]}")
            query = compile_query(_renamed(text, number), catalog, allow_unbounded=True)
        queries[name] = query
        if _can_be_read(query):
            catalog.register(declared_results(name, query))
    return queries, together(queries)


def _can_be_read(query: Query) -> bool:
    return not query.waits and {"p", "x"} <= set(query.schema.names)


def _over(data: st.DataObject, known: list[str]) -> str:
    """A left join over the results of a query, or over a stream."""
    streams = [f"{name} [RANGE 5 SECONDS] AS c" for name in known] or ["s0 [RANGE 5 SECONDS] AS c"]
    read = data.draw(st.sampled_from(streams), "read")
    kind = data.draw(st.sampled_from(["LEFT", "LEFT ANTI"]), "join")
    more = ", a.p AS q" if kind == "LEFT" else ""
    return f"SELECT c.p AS p, c.x AS x{more} FROM {read} {kind} JOIN s1 [RANGE 3 SECONDS] AS a ON c.p % 3 = a.x"


def _renamed(text: str, number: int) -> str:
    return _ALIAS.sub(lambda found: f"{found[0]}_{number}", text)


def _host(data: st.DataObject, several: QuerySet, checkpoint: str | None, beside: dict[str, pa.Table]) -> LocalHost:
    slots = data.draw(st.sampled_from([1, 2, 2, 3]), "slots")
    read = {name: table for name, table in beside.items() if name in several.graph.tables}
    return LocalHost(several, some_plans(data, several), slots=slots, checkpoint=checkpoint, tables=read)


def _kind(query: Query) -> str:
    parts = ["groups"] if query.grouping is not None else []
    parts += ["sides"] if query.sides else []
    parts += ["tables"] if query.whole.tables else []
    parts += ["results"] if query.inputs else []
    return " ".join(parts) or "join"
