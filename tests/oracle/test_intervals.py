"""Joins that conditions over event times bound have DuckDB's answer to the same text, whatever happens to the query."""

from __future__ import annotations

import tempfile
from contextlib import suppress

import pyarrow as pa
from hypothesis import event, given, settings
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.errors import MigrationError
from anabranch.plan.mesh import Plan
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans, QuerySet, alone
from anabranch.run.local import LocalHost
from tests.support.duckdb_sql import select
from tests.support.interval_queries import closed, interval_joins, without_end
from tests.support.meshes import meshes
from tests.support.moves import SLOTS, draw_move
from tests.support.oracle import Answer, describe_difference, rows_as_multiset
from tests.support.strategies import Arrivals, arrivals, batch_cuts, plans

CROSS = "$CROSS"
"""The place of the windows of a row in DuckDB's text."""


@settings(max_examples=3 * settings().max_examples)
@given(data=st.data(), streams=st.integers(1, 3))
def test_a_join_by_intervals_has_the_answer_of_sql(data: st.DataObject, streams: int) -> None:
    rows = data.draw(arrivals(streams, most_rows=8), "rows")
    drawn = data.draw(interval_joins(streams), "join")
    text = f"SELECT {', '.join(f'{name}.p AS p{name}' for name in drawn.visible)} FROM {drawn.source}"
    expected = rows_as_multiset(select(text, rows.tables))
    event(f"results: {'some' if expected else 'none'}")
    assert not describe_difference(expected, without_end(_run(data, compile_query(text, rows.catalog), rows)))


@settings(max_examples=3 * settings().max_examples)
@given(data=st.data(), streams=st.integers(1, 3), slide=st.sampled_from([None, 1, 2]))
def test_groups_of_a_join_have_the_answer_of_sql(data: st.DataObject, streams: int, slide: int | None) -> None:
    """GROUP BY window(a.ts, …) counts the results of the join in the windows of that event time."""
    rows = data.draw(arrivals(streams, most_rows=8), "rows")
    drawn = data.draw(interval_joins(streams).filter(lambda each: each.present), "join")
    timed = data.draw(st.sampled_from(drawn.present), "time")
    last = drawn.visible[-1]
    step, windows = slide or 4, "0" if slide is None else ", ".join(map(str, range(0, 4, slide)))
    shown = f"{last}.s AS s, COUNT(*) AS n, COUNT({last}.p) AS m, SUM({drawn.visible[0]}.p) AS t"
    sql = (
        f"SELECT epoch_us(time_bucket(INTERVAL {step} SECONDS, {timed}.ts, TIMESTAMPTZ '1970-01-01 00:00:00+00'))"
        f" // 1000000 - w.back + 4 AS at, {shown} FROM {drawn.source.replace(' WHERE ', f' {CROSS} WHERE ')}"
    )
    sql = sql if CROSS in sql else f"{sql} {CROSS}"
    sql = sql.replace(CROSS, f"CROSS JOIN (SELECT unnest([{windows}]) AS back) AS w") + " GROUP BY ALL"
    lengths = "'4 seconds'" if slide is None else f"'4 seconds', '{slide} seconds'"
    inner = ", ".join(f"{name}.{column} AS {name}_{column}" for name in drawn.visible for column in ("p", "s"))
    at = "UNIX_MICROS(WINDOW_END()) / 1000000 AS at"
    text = f"SELECT {at}, {shown} FROM {drawn.source} GROUP BY window({timed}.ts, {lengths}), {last}.s"
    if data.draw(st.booleans(), "as a subquery"):
        renamed = shown.replace(f"{last}.s", f"j.{last}_s").replace(f"{last}.p", f"j.{last}_p")
        renamed = renamed.replace(f"{drawn.visible[0]}.p", f"j.{drawn.visible[0]}_p")
        below = f"SELECT {timed}.ts AS at, {inner} FROM {drawn.source}"
        text = f"SELECT {at}, {renamed} FROM ({below}) AS j GROUP BY window(j.at, {lengths}), j.{last}_s"
    expected = rows_as_multiset(select(sql, rows.tables))
    event(f"results: {'some' if expected else 'none'}")
    answer = _run(data, compile_query(text, rows.catalog), rows)
    assert not describe_difference(expected, answer)


def _run(data: st.DataObject, query: Query, rows: Arrivals) -> Answer:
    """The answer of the in-process host, over the rows and a last batch that ends the streams."""
    several = alone(query)
    batches = [*data.draw(batch_cuts(rows), "batches"), closed(rows)]
    restarts = data.draw(st.sets(st.integers(1, len(batches) - 1), max_size=2), "restarts")
    results: list[pa.Table] = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = folder if restarts else None
        host = _host(data, several, checkpoint)
        for number, batch in enumerate(batches):
            if number in restarts:
                host = _host(data, several, checkpoint)
            _disturb(data, host)
            results.append(host.step({name: table for name, table in batch.items() if name in several.streams}))
    assert not any(host.late.values())
    return rows_as_multiset(pa.concat_tables(results))


def _host(data: st.DataObject, several: QuerySet, checkpoint: str | None) -> LocalHost:
    chosen = Plans({each.name: data.draw(_any_plan(each.query), f"plan of {each.name}") for each in several.members})
    return LocalHost(several, chosen, slots=data.draw(SLOTS, "slots"), checkpoint=checkpoint)


def _any_plan(query: Query) -> st.SearchStrategy[Plan]:
    return meshes(query.graph) | plans(query.graph.names, query.graph.thetas, merging=query.merging is not None)


def _disturb(data: st.DataObject, host: LocalHost) -> None:
    """Changes a plan, moves groups, both, or nothing."""
    if data.draw(st.integers(0, 2), "migrate") == 0:
        member = data.draw(st.sampled_from(host.queries.members), "changing")
        strategy = data.draw(st.sampled_from(["moving-state", "parallel-track", "spread"]), "strategy")
        with suppress(MigrationError):
            host.migrate(data.draw(_any_plan(member.query), "plan"), strategy, query=member.name or None)
    if not data.draw(st.integers(0, 2), "moves"):
        draw_move(data, host)
