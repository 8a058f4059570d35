"""Whatever schedule of plan changes and moves a host is given, and wherever it crashes, the answer is the batch answer.

Partition groups move between slots: some, all, or onto another grid, at once, spread or on parallel tracks; the number
of slots changes. Changes come from a schedule or by hand, for all
slots or for some, at once or box by box; some are refused because one is under way, some are aborted. A crash is a new
host from the same checkpoint, on some other plan.
"""

from __future__ import annotations

import tempfile
from unittest import mock

import pyarrow as pa
from hypothesis import event, given
from hypothesis import strategies as st

from anabranch.adapt.rules import ChangeRules, Switch
from anabranch.cql import compile_query
from anabranch.errors import ForeignCheckpoint, MigrationError
from anabranch.migrate.strategies.registry import strategy_names
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, alone, partitioning_of
from anabranch.run import commit
from anabranch.run.evolving import follow
from anabranch.run.local import LocalHost
from anabranch.run.store import Store
from tests.support.duckdb_sql import select
from tests.support.moves import SLOTS, draw_move
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

HOW = st.sampled_from(["auto", "moving-state", "parallel-track", "parallel-track", *strategy_names()])


@given(data=st.data(), relations=st.integers(2, 5))
def test_a_join_with_a_schedule_of_switches_gives_the_batch_answer(data: st.DataObject, relations: int) -> None:
    rows = data.draw(arrivals(relations, most_rows=12 if relations < 4 else 8), "rows")
    drawn = data.draw(join_queries(relations, relations), "query")
    expected = rows_as_multiset(select(drawn.duckdb, rows.tables))
    assert not describe_difference(expected, _run(data, drawn, rows))


@given(data=st.data(), relations=st.integers(2, 3))
def test_a_grouped_query_with_a_schedule_of_switches_gives_the_batch_answer(
    data: st.DataObject, relations: int
) -> None:
    rows = data.draw(arrivals(relations, most_rows=10), "rows")
    drawn = data.draw(grouped_queries(relations, relations), "query")
    expected = batch_answer(compile_query(drawn.cql, rows.catalog), rows.tables)
    assert not describe_difference(expected, _run(data, drawn, rows))


def _run(data: st.DataObject, drawn: DrawnQuery, rows: Arrivals) -> Answer:
    late = data.draw(late_filters(drawn, rows), "late filters")
    query = compile_query(drawn.cql, rows.catalog, late_filters=late)
    batches = data.draw(batch_cuts(rows), "batches")
    crash = data.draw(st.sampled_from([None, *range(1, len(batches))]), "crash")
    moves = data.draw(st.sets(st.integers(1, max(1, len(batches) - 1)), max_size=2), "moves of filters")
    results: list[pa.Table] = []
    few = data.draw(st.sampled_from([2, commit.COMPACT_FILES]), "files to compact")
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(commit, "COMPACT_FILES_ALWAYS", few):
        host = _host(data, drawn, query, folder, len(batches))
        for number, batch in enumerate(batches):
            if number == crash or number in moves:
                event("crashed amid a change" if _is_changing(host) else "crashed")
                query = _with_other_filters(data, drawn, rows, folder, query)
                host = _host(data, drawn, query, folder, len(batches))
            _ask(data, host, drawn)
            results.append(host.step(batch))
            # What a slot runs is what it was told, unless the engine refused it.
            for slot, engine in host.engines.items():
                assert engine.only.plan == host.task.plans[ALONE][slot].plan
    return rows_as_multiset(pa.concat_tables(results))


def _with_other_filters(data: st.DataObject, drawn: DrawnQuery, rows: Arrivals, folder: str, query: Query) -> Query:
    """The query with other late filters, and the checkpoint with it, where rows can be put in order for that."""

    other = data.draw(late_filters(drawn, rows), "other late filters")
    wanted = alone(compile_query(drawn.cql, rows.catalog, late_filters=other))
    try:
        moved = follow(Store(folder), wanted, rows.catalog, lambda: partitioning_of(wanted, 1))
    except ForeignCheckpoint:
        event("no stand-in")
        return query
    event("filters moved" if moved else "filters stay")
    return wanted.members[0].query


def _host(data: st.DataObject, drawn: DrawnQuery, query: Query, folder: str, batches: int) -> LocalHost:
    at = data.draw(st.sets(st.integers(0, batches), max_size=3), "switches")
    thetas = query.graph.thetas
    switches = [Switch(batch, data.draw(plans(drawn.relations, thetas)), data.draw(HOW)) for batch in sorted(at)]
    slots = data.draw(SLOTS, "slots")
    plan = data.draw(plans(drawn.relations, thetas), "plan")
    traffic = {name: data.draw(st.sampled_from([1.0, 3.0, 50.0])) for name in drawn.relations}
    rules = ChangeRules(switches=tuple(switches))
    return LocalHost(query, plan, slots=slots, checkpoint=folder, rules=rules, traffic=traffic)


def _ask(data: st.DataObject, host: LocalHost, drawn: DrawnQuery) -> None:
    """A change by hand, or an abort, now and then."""
    draw_move(data, host)
    match data.draw(st.sampled_from(["", "change", "abort"] if _is_changing(host) else ["", "change"]), "ask"):
        case "change":
            slots = data.draw(st.one_of(st.none(), st.just([0])), "slots")
            before, thetas = host.steering.plans, host.queries.graph.thetas
            try:
                plan, how = data.draw(plans(drawn.relations, thetas)), data.draw(HOW)
                host.migrate(plan, how, slots, box_by_box=data.draw(st.booleans()))
            except MigrationError as error:
                event(f"refused: {error.message.split(chr(39))[0]}")
                assert host.steering.plans == before
            else:
                event(f"change by {how}")
        case "abort":
            host.steering.of_query(None).abort()
            event("aborted")


def _is_changing(host: LocalHost) -> bool:
    return any(engine.is_migrating for engine in host.engines.values())
