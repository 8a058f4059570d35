"""Whatever the schedule of plan changes, the strategies, the aborts and the restarts, the answer is the batch answer.

Every slot changes its plan on its own, so that different slots run different plans; plans check predicates over several
relations, and filters of one that are late, at any join that can. Between two batches an engine may
also be found again from its layout, as another worker of the machine would find it, in mid-migration or not.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import event, given, settings
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.engine.engine import Engine
from anabranch.engine.state.arena import Arena, MappedArena
from anabranch.errors import MigrationError
from anabranch.migrate.strategies.registry import strategy_named, strategy_names
from anabranch.run.local import LocalHost
from tests.support.duckdb_sql import select
from tests.support.hosts import engines_of
from tests.support.oracle import Answer, batch_answer, describe_difference, rows_as_multiset
from tests.support.strategies import (
    Arrivals,
    DrawnQuery,
    arrivals,
    batch_cuts,
    grouped_queries,
    join_queries,
    late_filters,
    plans,
)


@settings(max_examples=5 * settings().max_examples // 2)
@given(data=st.data(), relations=st.integers(2, 6))
def test_a_migrated_join_gives_the_batch_answer(data: st.DataObject, relations: int) -> None:
    streams = data.draw(st.integers(max(1, relations - 1), relations), "streams")
    rows = data.draw(arrivals(streams, most_rows=14 if relations < 4 else 9), "rows")
    drawn = data.draw(join_queries(streams, relations), "query")
    answer = _run(data, drawn, rows)
    expected = rows_as_multiset(select(drawn.duckdb, rows.tables))
    assert not describe_difference(expected, answer)


@given(data=st.data(), relations=st.integers(2, 4))
def test_a_migrated_grouped_query_gives_the_batch_answer(data: st.DataObject, relations: int) -> None:
    streams = data.draw(st.integers(max(1, relations - 1), relations), "streams")
    rows = data.draw(arrivals(streams, most_rows=10 if relations < 4 else 7), "rows")
    drawn = data.draw(grouped_queries(streams, relations), "query")
    expected = batch_answer(compile_query(drawn.cql, rows.catalog), rows.tables)
    assert not describe_difference(expected, _run(data, drawn, rows))


def _run(data: st.DataObject, drawn: DrawnQuery, rows: Arrivals) -> Answer:
    """The query in-process, its slots changing plans; in some runs it is restarted or its engines are found again."""
    late = data.draw(late_filters(drawn, rows), "late filters")
    query = compile_query(drawn.cql, rows.catalog, late_filters=late)
    batches = data.draw(batch_cuts(rows, least=3), "batches")
    interruption = data.draw(st.sampled_from(["none", "none", "restart", "found again"]), "interruption")
    restart = data.draw(st.integers(1, len(batches) - 1), "restart") if interruption == "restart" else -1
    results: list[pa.Table] = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = f"{folder}/kept" if interruption == "restart" else None

        def make(slots: int) -> LocalHost:
            plan = data.draw(plans(drawn.relations, query.graph.thetas), "plan")
            return LocalHost(query, plan, slots=slots, checkpoint=checkpoint)

        host = make(data.draw(st.sampled_from([1, 1, 2]), "slots"))
        if interruption == "found again":
            _map_engines(host, Path(folder))
        for number, batch in enumerate(batches):
            if number == restart:
                host = make(2)
            for slot, engine in enumerate(engines_of(host)):
                if number:
                    _change(data, engine, drawn)
                if interruption == "found again" and data.draw(st.booleans(), "found again"):
                    host.engines[slot] = _found_again(engine)
            results.append(host.step(batch))
    return rows_as_multiset(pa.concat_tables(results))


def _change(data: st.DataObject, engine: Engine, drawn: DrawnQuery) -> None:
    if engine.is_migrating and not data.draw(st.integers(0, 3), "abort"):
        engine.abort_migration()
        event("aborted")
    if engine.is_migrating or not data.draw(st.integers(0, 1), "switch"):
        return
    before, plan = engine.only.plan, data.draw(plans(drawn.relations, engine.only.query.graph.thetas), "new plan")
    strategies = [
        *strategy_names(),
        "moving-state",
        "moving-state",
        "parallel-track",
        "parallel-track",
        "parallel-track",
        "spread",
        "spread",
    ]
    strategy = data.draw(st.sampled_from(strategies), "strategy")
    try:
        engine.migrate(plan, strategy_named(strategy))
    except MigrationError:
        assert strategy == "none"
        assert engine.only.plan == before
        event(f"refused: {strategy}")
    else:
        assert engine.only.plan == plan
        if "#" in f"{before} {plan}":
            event("predicates are deferred")
        event(f"{strategy}, {'under way' if engine.is_migrating else 'done'}")


def _map_engines(host: LocalHost, folder: Path) -> None:
    for slot, engine in enumerate(engines_of(host)):
        place = folder / str(slot)
        place.mkdir()
        host.engines[slot] = _like(engine, MappedArena(place))


def _found_again(engine: Engine) -> Engine:
    """The engine as another worker finds it: its layout as text, its arrays by name."""
    layout = json.loads(json.dumps(engine.layout()))
    other = _like(engine, engine.arena)
    other.reopen(layout)
    assert other.only.plan == engine.only.plan
    assert other.is_migrating == engine.is_migrating
    return other


def _like(engine: Engine, arena: Arena) -> Engine:
    codes = {name: base.codes for name, base in engine.bases.items()}
    return Engine.alone(engine.only.query, engine.only.plan, arena=arena, codes=codes, owns=engine.only.owns)
