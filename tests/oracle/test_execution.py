"""Every execution model gives the batch answer, and those that promise an order keep it.

Where rows wait for the watermark the answer is that over the rows it has passed.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from anabranch.cql import compile_query, declared_results
from anabranch.engine.engine import Engine
from anabranch.engine.operators import group_by
from anabranch.engine.state.arena import MappedArena
from anabranch.errors import ForeignCheckpoint, SpecError
from anabranch.lang.schema import TIMESTAMP
from anabranch.migrate.strategies.registry import strategy_named
from anabranch.plan.execution import EXECUTION_MODELS, ExecutionModel, execution_model
from anabranch.plan.physical import Leaf
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, Plans, set_of
from anabranch.run.local import LocalHost
from tests.support.hosts import engines_of
from tests.support.oracle import Answer, batch_answer, describe_difference, rows_as_multiset
from tests.support.strategies import (
    COLUMNS,
    SECOND,
    Arrivals,
    arrivals,
    batch_cuts,
    grouped_queries,
    join_queries,
    plans,
)

STRATEGIES = ("moving-state", "parallel-track", "spread")


@given(data=st.data(), relations=st.integers(1, 4), execution=st.sampled_from(EXECUTION_MODELS))
def test_a_join_is_exact_and_in_the_order_its_model_promises(
    data: st.DataObject, relations: int, execution: ExecutionModel
) -> None:
    streams = data.draw(st.integers(max(1, relations - 1), relations), "streams")
    rows = data.draw(arrivals(streams, most_rows=12 if relations < 4 else 8), "rows")
    drawn = data.draw(join_queries(streams, relations), "query")
    times = ", ".join(f"{name}.ts AS t{i}" for i, name in enumerate(drawn.relations))
    query = compile_query(drawn.cql.replace("SELECT ", f"SELECT {times}, ", 1), rows.catalog)
    results, watermark = _run(data, query, drawn.relations, rows, execution)
    expected = _answer(query, rows, watermark if execution.rows_wait else None)
    assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(results)))
    event(f"{execution}, results: {'some' if expected else 'none'}")
    if not execution.orders_results:
        return
    for several in [pa.concat_tables(results)] if execution.rows_wait else results:
        newest = [max(row) for row in zip(*(several[f"t{i}"].to_pylist() for i in range(relations)), strict=True)]
        assert newest == sorted(newest)


@given(data=st.data(), relations=st.integers(1, 3), execution=st.sampled_from(EXECUTION_MODELS[1:]))
def test_a_grouped_query_is_exact_in_every_model(
    data: st.DataObject, relations: int, execution: ExecutionModel
) -> None:
    rows = data.draw(arrivals(relations, most_rows=10), "rows")
    drawn = data.draw(grouped_queries(relations, relations), "query")
    query = compile_query(drawn.cql, rows.catalog)
    # What counts at many boundaries is kept otherwise; to few rows three are many.
    with patch.object(group_by, "LONG", data.draw(st.sampled_from([group_by.LONG, 0, 2]), "long")):
        results, _ = _run(data, query, drawn.relations, rows, execution)
    answer = rows_as_multiset(pa.concat_tables(results))
    assert not describe_difference(batch_answer(query, rows.tables), answer)


def test_a_reader_gets_the_group_of_a_window_once_the_watermark_is_beyond_its_end() -> None:
    # The end of the first window is the watermark: the group is answered, and as a row of its reader it waits.
    catalog = Arrivals({}, {"s0": 0}).catalog
    groups = compile_query("SELECT COUNT(*) AS y FROM s0 AS a GROUP BY window(a.ts, '4 seconds')", catalog)
    catalog.register(declared_results("q", groups))
    query = compile_query("SELECT r.y AS y FROM q [NOW] AS r", catalog)
    queries = set_of({ALONE: query})
    leaves = Plans({member.name: Leaf(member.query.graph.names[0]) for member in queries.members})
    batches = [_rows_at(1, 2, 4), _rows_at(4.5)]
    for execution, expected in (("un-synchronised", [1, 0]), ("row-synchronised", [0, 1])):
        host = LocalHost(queries, leaves, execution=execution_model(execution))
        assert [host.step(batch).num_rows for batch in batches] == expected


def test_a_checkpoint_in_which_rows_wait_is_not_continued_where_they_do_not(tmp_path: Path) -> None:
    catalog = Arrivals({}, {"s0": 0}).catalog
    query = compile_query("SELECT a.x AS x FROM s0 [RANGE 5 SECONDS] AS a", catalog)
    LocalHost(query, Leaf("a"), checkpoint=str(tmp_path / "waits"), execution=execution_model("totally-synchronised"))
    with pytest.raises(ForeignCheckpoint, match="was written with execution 'totally-synchronised'"):
        LocalHost(query, Leaf("a"), checkpoint=str(tmp_path / "waits"), execution=execution_model("semi-synchronised"))
    LocalHost(query, Leaf("a"), checkpoint=str(tmp_path / "free"))
    LocalHost(query, Leaf("a"), checkpoint=str(tmp_path / "free"), execution=execution_model("semi-synchronised"))


def test_models_are_known_by_name() -> None:
    assert [execution_model(model.name) for model in EXECUTION_MODELS] == list(EXECUTION_MODELS)
    with pytest.raises(SpecError, match="unknown execution model 'sometimes'"):
        execution_model("sometimes")


def _run(
    data: st.DataObject, query: Query, relations: tuple[str, ...], rows: Arrivals, execution: ExecutionModel
) -> tuple[list[pa.Table], int]:
    """The results of each batch, in one slot so that they have one order, and the watermark after the last.

    The query is restarted, its plan changed and its engine found again now and then.
    """
    batches = data.draw(batch_cuts(rows), "batches")
    restarts = data.draw(st.sets(st.integers(1, len(batches)), max_size=2), "restarts")
    some_plan = plans(relations, merging=query.grouping is not None)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = f"{folder}/kept" if restarts else None
        host = LocalHost(query, data.draw(some_plan, "plan"), checkpoint=checkpoint, execution=execution)
        for number, batch in enumerate(batches):
            if number in restarts:
                host = LocalHost(query, data.draw(some_plan, "plan"), checkpoint=checkpoint, execution=execution)
            engine = engines_of(host)[0]
            if not engine.is_migrating and data.draw(st.booleans(), "switch"):
                # Plans that merge rows are not spread.
                strategies = STRATEGIES if query.grouping is None else STRATEGIES[:2]
                strategy = strategy_named(data.draw(st.sampled_from(strategies), "strategy"))
                engine.migrate(data.draw(some_plan, "new plan"), strategy)
            if data.draw(st.booleans(), "found again"):
                host.engines[0] = _found_again(engine, Path(folder) / f"hot{number}")
            results.append(host.step(batch))
    return results, host.clocks.watermark


def _rows_at(*seconds: float) -> dict[str, pa.Table]:
    """Rows of `s0` at these times; their other columns are NULL."""
    times = pa.array([int(each * SECOND) for each in seconds], pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
    nulls = [pa.nulls(len(seconds), field.type) for field in list(COLUMNS)[1:]]
    return {"s0": pa.table([times, *nulls], schema=COLUMNS)}


def _found_again(engine: Engine, folder: Path) -> Engine:
    """An engine with the same rows in mapped memory, as another worker of the machine finds it."""
    folder.mkdir()
    codes = {name: base.codes for name, base in engine.bases.items()}

    def fresh() -> Engine:
        arena = MappedArena(folder)
        return Engine.alone(engine.only.query, engine.only.plan, arena=arena, codes=codes, execution=engine.execution)

    mapped = fresh()
    answered = engine.only.groups.passed if engine.only.groups is not None else None
    before = None
    if answered is not None and engine.only.groups is not None:
        grouping = engine.only.groups.grouping
        before = (answered + 1) * grouping.slide
        # A window without its end is answered when the watermark has reached the end, any other when it is beyond.
        before -= grouping.last_answered(before) > answered
    if engine.watermark_buffer is not None:
        before = engine.watermark_buffer.passed if engine.watermark_buffer.passed is not None else -(2**62)
    mapped.restore(engine.export(), None if before is None else {ALONE: before})
    again = fresh()
    again.reopen(json.loads(json.dumps(mapped.layout())))
    return again


def _answer(query: Query, rows: Arrivals, before: int | None) -> Answer:
    """The batch answer over all rows, or over those before a time."""
    if before is None:
        return batch_answer(query, rows.tables)
    passed = {
        name: table.filter(pc.less(table["ts"].cast(pa.timestamp("us")).cast(pa.int64()), before))
        for name, table in rows.tables.items()
    }
    return batch_answer(query, passed)
