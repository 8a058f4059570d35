"""Merging rows before they join changes no answer, whatever the query, the plan, the cut, the slots, the restarts.

Group-by moves below joins and back while the query runs, by every strategy, aborted now and then, and in engines that
are found again from their layout as another worker of the machine would find them.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from unittest import mock

import pyarrow as pa
from hypothesis import event, given, settings
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.engine.engine import Engine
from anabranch.engine.operators import pregroup
from anabranch.engine.state.arena import Arena, MappedArena
from anabranch.migrate.strategies.registry import strategy_named
from anabranch.plan.physical import PhysicalPlan, pre_groups
from anabranch.plan.query import Query
from anabranch.run.local import LocalHost
from tests.support.hosts import engines_of
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.strategies import (
    Arrivals,
    DrawnQuery,
    arrivals,
    batch_cuts,
    grouped_queries,
    late_filters,
    plans,
    tables,
)


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data(), relations=st.integers(2, 4))
def test_a_merged_plan_gives_the_batch_answer(data: st.DataObject, relations: int) -> None:
    rows, drawn, query = _drawn(data, relations)
    batches = data.draw(batch_cuts(rows), "batches")
    restarts = data.draw(st.sets(st.integers(1, len(batches)), max_size=2), "restarts")
    results: list[pa.Table] = []
    with tempfile.TemporaryDirectory() as folder, _merging_early(data):
        checkpoint = folder if restarts else None
        host = _host(data, query, drawn, checkpoint)
        for number, batch in enumerate(batches):
            if number in restarts:
                host = _host(data, query, drawn, checkpoint)
            if data.draw(st.booleans(), "moves"):
                host.spread(data.draw(tables(host.partitioning), "table"))
            results.append(host.step(batch))
    assert not describe_difference(batch_answer(query, rows.tables), rows_as_multiset(pa.concat_tables(results)))


@given(data=st.data(), relations=st.integers(2, 4))
def test_group_by_moves_below_joins_and_back_exactly(data: st.DataObject, relations: int) -> None:
    rows, drawn, query = _drawn(data, relations)
    results: list[pa.Table] = []
    with tempfile.TemporaryDirectory() as folder, _merging_early(data):
        host = _host(data, query, drawn)
        for slot, engine in enumerate(engines_of(host)):
            place = Path(folder) / str(slot)
            place.mkdir()
            host.engines[slot] = _like(engine, MappedArena(place))
        for batch in data.draw(batch_cuts(rows), "batches"):
            for slot, engine in enumerate(engines_of(host)):
                _change(data, engine, data.draw(plans(drawn.relations, merging=True), "new plan"))
                if data.draw(st.booleans(), "found again"):
                    host.engines[slot] = _found_again(engine)
            results.append(host.step(batch))
    assert not describe_difference(batch_answer(query, rows.tables), rows_as_multiset(pa.concat_tables(results)))


def _drawn(data: st.DataObject, relations: int) -> tuple[Arrivals, DrawnQuery, Query]:
    streams = data.draw(st.integers(max(1, relations - 1), relations), "streams")
    rows = data.draw(arrivals(streams, most_rows=12 if relations < 4 else 8, alike=True), "rows")
    drawn = data.draw(grouped_queries(streams, relations, plain=True), "query")
    late = data.draw(late_filters(drawn, rows), "late filters")
    return rows, drawn, compile_query(drawn.cql, rows.catalog, late_filters=late)


def _host(data: st.DataObject, query: Query, drawn: DrawnQuery, checkpoint: str | None = None) -> LocalHost:
    plan = data.draw(plans(drawn.relations, merging=True), "plan")
    event(f"merged inputs: {len(list(pre_groups(plan)))}")
    return LocalHost(query, plan, slots=data.draw(st.sampled_from([1, 1, 2, 3, 4]), "slots"), checkpoint=checkpoint)


def _merging_early(data: st.DataObject) -> mock._patch[int]:
    """In some runs, states that are merged as a whole in every step."""
    return mock.patch.object(pregroup, "COMPACT_AT", data.draw(st.sampled_from([1, 1, 1 << 10]), "least to merge"))


def _change(data: st.DataObject, engine: Engine, plan: PhysicalPlan) -> None:
    if engine.is_migrating and not data.draw(st.integers(0, 3), "abort"):
        engine.abort_migration()
        event("aborted")
    if not engine.is_migrating and data.draw(st.integers(0, 2), "switch"):
        strategy = data.draw(st.sampled_from(["moving-state", "parallel-track"]), "strategy")
        engine.migrate(plan, strategy_named(strategy))
        assert engine.only.plan == plan
        event("under way" if engine.is_migrating else "moved")


def _found_again(engine: Engine) -> Engine:
    other = _like(engine, engine.arena)
    other.reopen(json.loads(json.dumps(engine.layout())))
    assert other.only.plan == engine.only.plan
    assert other.is_migrating == engine.is_migrating
    return other


def _like(engine: Engine, arena: Arena) -> Engine:
    codes = {name: base.codes for name, base in engine.bases.items()}
    return Engine.alone(engine.only.query, engine.only.plan, arena=arena, codes=codes, owns=engine.only.owns)
