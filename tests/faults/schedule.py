"""One drawn schedule: data, queries, plans, changes, moves, splits, other numbers of slots, deaths, failures, restarts.

Each query must give its batch answer. The process may die before or after any operation on the files of the
checkpoint, the disk may be full or broken there, and the sink may fail before or after it has the rows of a batch; then
the query starts again from its checkpoint, on another plan and another number of slots, and takes the batch again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from unittest import mock

import pyarrow as pa
from hypothesis import event, note, reject
from hypothesis import strategies as st

from anabranch.adapt.rules import ChangeRules, Switch
from anabranch.cql import compile_query
from anabranch.errors import AnabranchError, BundleError, InvariantBroken, MigrationError
from anabranch.migrate.strategies.registry import strategy_names
from anabranch.plan.execution import EXECUTION_MODELS, ExecutionModel
from anabranch.plan.mesh import Plan
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans, QuerySet, as_set, together
from anabranch.run import commit
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from anabranch.run.slot import SlotTask
from tests.combinations.play import Refused, run_any
from tests.oracle import sharing, test_derived, test_shared_joins
from tests.support.duckdb_sql import select
from tests.support.failing_files import Death, FailingFiles, Fault, Kind, on_failing_files
from tests.support.loads import given_loads
from tests.support.meshes import meshes
from tests.support.moves import SLOTS, draw_move, drawn_loads
from tests.support.oracle import Answer, batch_answer, describe_difference, rows_as_multiset
from tests.support.outer_queries import drawn_tables, outer_queries, with_tables, with_watermark
from tests.support.strategies import Arrivals, arrivals, batch_cuts, grouped_queries, join_queries, plans

HOW = st.sampled_from(["auto", "moving-state", "parallel-track", *strategy_names()])
ORDERS = [model for model in EXECUTION_MODELS if not model.rows_wait]
_IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
TABLE = "table"
"""The kind of schedule that draws entries of the table of combinations."""
MOST_OPERATIONS = 40
"""About as many operations on files as a batch of a few slots does."""


class SinkFailed(Exception):
    """The sink of a schedule did not take a batch, or says so."""


@dataclass(frozen=True)
class World:
    """Queries, the rows that they read, and the answer of each."""

    queries: QuerySet
    rows: Arrivals
    answers: Mapping[str, Answer]
    tables: Mapping[str, pa.Table]


def run_schedule(data: st.DataObject) -> None:
    """Draws a schedule, runs it and compares every answer."""
    kind = data.draw(st.sampled_from([*sorted(WORLDS), *[TABLE] * len(WORLDS)]), "kind")
    if kind == TABLE:
        _of_the_table(data)
        return
    world = WORLDS[kind](data)
    event(f"kind: {kind}, {'with' if any(world.answers.values()) else 'without'} results")
    found = _run(data, world)
    for name, expected in world.answers.items():
        difference = describe_difference(expected, found[name])
        assert not difference, f"query '{name}' of kind '{kind}': {difference}"


def _of_the_table(data: st.DataObject) -> None:
    """Plays any entries of the table of combinations."""
    try:
        played = run_any(data)
    except Refused as error:
        if isinstance(error.error, InvariantBroken):
            raise
        event(f"refused: {error.error.message.split(chr(39))[0]}")
        reject()
    event(f"kind: {TABLE}, {'with' if played.results else 'without'} results")


# --- what runs -------------------------------------------------------------------------------------------------------


def _join(data: st.DataObject) -> World:
    relations = data.draw(st.integers(2, 5), "relations")
    rows = data.draw(arrivals(relations, most_rows=14 if relations < 4 else 9), "rows")
    drawn = data.draw(join_queries(relations, relations), "query")
    query = compile_query(drawn.cql, rows.catalog)
    return _alone(query, rows, rows_as_multiset(select(drawn.duckdb, rows.tables)))


def _grouped(data: st.DataObject) -> World:
    relations = data.draw(st.integers(1, 3), "relations")
    rows = data.draw(arrivals(relations, most_rows=12), "rows")
    query = compile_query(data.draw(grouped_queries(relations, relations), "query").cql, rows.catalog)
    return _alone(query, rows, batch_answer(query, rows.tables))


def _outer(data: st.DataObject) -> World:
    streams = data.draw(st.integers(1, 3), "streams")
    rows = data.draw(arrivals(streams, most_rows=8), "rows")
    beside = data.draw(drawn_tables(2), "tables") if data.draw(st.booleans(), "with tables") else {}
    slide = data.draw(st.sampled_from([None, None, 2]), "slide")
    drawn = data.draw(outer_queries(streams, slide, tables=len(beside)), "query")
    query = compile_query(drawn.cql, with_tables(rows.catalog, beside), allow_unbounded=slide is None)
    read = Arrivals(
        {name: table for name, table in rows.tables.items() if name in query.whole.streams},
        {name: disorder for name, disorder in rows.disorder.items() if name in query.whole.streams},
    )
    if slide is None:
        expected = rows_as_multiset(select(with_watermark(drawn.duckdb, read), {**rows.tables, **beside}))
    else:
        expected = batch_answer(query, {**read.tables, **beside})
    return _alone(query, read, expected, {name: beside[name] for name in query.whole.tables})


def _together(data: st.DataObject) -> World:
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=3), "sizes")
    rows = data.draw(arrivals(max(sizes), most_rows=10), "rows")
    queries = {}
    for number, size in enumerate(sizes):
        drawn = grouped_queries if data.draw(st.booleans(), "grouped") else join_queries
        queries[f"q{number}"] = compile_query(data.draw(drawn(max(sizes), size), "query").cql, rows.catalog)
    try:
        several = together(queries)
    except BundleError:  # a filter of one query's own guards what may fail
        reject()
    return _several(several, queries, rows)


def _over_queries(data: st.DataObject) -> World:
    rows = data.draw(arrivals(2, most_rows=8), "rows")
    queries, several = test_derived._drawn(data, rows, data.draw(st.integers(2, 4), "count"))
    return _several(several, queries, rows)


def _sharing(data: st.DataObject) -> World:
    rows = data.draw(arrivals(3, most_rows=10), "rows")
    queries, several = test_shared_joins._together(data, rows, data.draw(st.integers(2, 4), "count"))
    return _several(several, queries, rows)


WORLDS: Mapping[str, Callable[[st.DataObject], World]] = {
    "grouped": _grouped,
    "join": _join,
    "outer": _outer,
    "over queries": _over_queries,
    "sharing": _sharing,
    "together": _together,
}


def _alone(query: Query, rows: Arrivals, answer: Answer, tables: Mapping[str, pa.Table] | None = None) -> World:
    return World(as_set(query), rows, {"": answer}, tables or {})


def _several(several: QuerySet, queries: Mapping[str, Query], rows: Arrivals) -> World:
    answers = {name: batch_answer(query, rows.tables) for name, query in queries.items()}
    return World(several, rows, answers, {})


# --- what happens to it ----------------------------------------------------------------------------------------------


def _run(data: st.DataObject, world: World) -> dict[str, Answer]:
    batches = data.draw(batch_cuts(world.rows, least=3), "batches")
    few = data.draw(st.sampled_from([2, 3, commit.COMPACT_FILES_ALWAYS]), "files to compact")
    # Results that are found in several stages of a batch have no order.
    allowed = [model for model in ORDERS if world.queries.stages == 1 or not model.orders_results]
    execution = data.draw(st.sampled_from(allowed), "execution")
    loads = drawn_loads(data.draw(st.integers(0, 2**32 - 1), "loads"))
    sink: dict[int, pa.Table] = {}
    with (
        tempfile.TemporaryDirectory(dir=_IN_MEMORY) as folder,
        mock.patch.object(commit, "COMPACT_FILES_ALWAYS", few),
        # Measured ones differ from run to run, and with them moves, files, and which operation fails.
        given_loads(loads),
    ):
        host = _start(data, world, folder, execution, len(batches))
        while host.batch < len(batches):
            number = host.batch
            if data.draw(st.integers(0, 4), "restarts") == 0:
                event("restart")
                host = _start(data, world, folder, execution, len(batches))
                assert host.batch == number, f"batch {number} was next, and is {host.batch} after a restart"
            _disturb(data, host)
            mine = {name: table for name, table in batches[number].items() if name in world.queries.streams}
            if not _step(data, host, mine, sink):
                host = _start(data, world, folder, execution, len(batches))
                assert host.batch in (number, number + 1), f"batch {number} failed, and {host.batch} is next"
                assert host.batch == number or number in sink, f"batch {number} was committed before its sink had it"
    assert not any(host.late.values()), f"rows are wrongly counted as late: {host.late}"
    layout = ResultLayout(world.queries)
    split = [layout.split(table) for _, table in sorted(sink.items())]
    return {name: rows_as_multiset(pa.concat_tables([each[name] for each in split])) for name in world.answers}


def _start(data: st.DataObject, world: World, folder: str, execution: ExecutionModel, batches: int) -> LocalHost:
    """A host from the checkpoint; now and then it fails while it starts, and starts again."""
    at = data.draw(st.sets(st.integers(0, batches), max_size=2), "switches")
    plan = Plans({each.name: data.draw(_any_plan(each.query), "plan") for each in world.queries.members})
    rules = {
        each.name: ChangeRules(
            switches=tuple(
                Switch(batch, data.draw(_any_plan(each.query), "switch to"), data.draw(HOW, "switch by"))
                for batch in sorted(at)
            )
        )
        for each in world.queries.members
    }
    traffic = {name: data.draw(st.sampled_from([1.0, 3.0, 50.0])) for name in world.queries.graph.names}
    slots = data.draw(SLOTS, "slots")
    fault = data.draw(st.none() | _faults(12), "fault while starting")
    for files in (FailingFiles(fault), FailingFiles()):
        try:
            with on_failing_files(files):
                return LocalHost(
                    world.queries,
                    plan,
                    slots=slots,
                    checkpoint=folder,
                    execution=execution,
                    rules=rules,
                    traffic=traffic,
                    tables=world.tables,
                )
        except (Death, AnabranchError) as error:
            if not files.has_failed:
                raise
            event(f"failed while starting: {type(error).__name__}")
    raise AssertionError("a start without a fault neither works nor fails")


def _step(data: st.DataObject, host: LocalHost, rows: dict[str, pa.Table], sink: dict[int, pa.Table]) -> bool:
    """Takes a batch, with a fault now and then; False if the host is no more."""
    fault = data.draw(st.none() | _faults(MOST_OPERATIONS), "fault")
    fails = data.draw(st.sampled_from(["", "", "", "before", "after"]), "the sink fails")
    assert host.store is not None
    files = host.store.files
    assert isinstance(files, FailingFiles)
    files.arm(fault)

    def deliver(task: SlotTask, answer: pa.Table) -> None:
        if fails == "before":
            raise SinkFailed
        sink[task.batch] = answer
        if fails == "after":
            raise SinkFailed

    try:
        host.step(rows, deliver=deliver)
    except SinkFailed:
        event(f"the sink failed {fails} it had the rows")
        return False
    except (Death, AnabranchError) as error:
        if not files.has_failed:
            raise
        assert fault is not None
        event(f"{fault.kind.value}: {type(error).__name__}")
        note(f"failed at {files.operations[fault.operation]}")
        return False
    if fault is not None and files.has_failed:
        event(f"{fault.kind.value}: went on")
        assert fault.kind in (Kind.FULL, Kind.BROKEN), "a process died and went on"
    return True


def _faults(most: int) -> st.SearchStrategy[Fault]:
    return st.builds(Fault, st.integers(0, most - 1), st.sampled_from(Kind))


def _disturb(data: st.DataObject, host: LocalHost) -> None:
    """A move, a split, another number of slots, another plan, or an abort; now and then several."""
    draw_move(data, host)
    if data.draw(st.booleans(), "shares") and all(each.query.grouping is None for each in host.queries.members):
        _share(data, host)
    if not data.draw(st.booleans(), "change"):
        return
    member = data.draw(st.sampled_from(host.queries.members), "of query")
    if data.draw(st.integers(0, 5), "abort") == 0:
        try:
            host.steering.of_query(member.name or None).abort()
        except MigrationError:
            return
        event("aborted")
        return
    some = data.draw(st.sampled_from([None, None, [0]]), "in slots")
    plan, how = data.draw(_any_plan(member.query), "new plan"), data.draw(HOW, "by")
    try:
        host.migrate(plan, how, some, box_by_box=data.draw(st.booleans(), "box by box"), query=member.name or None)
    except MigrationError as error:
        event(f"change refused: {error.message.split(chr(39))[0]}")
    else:
        event(f"change by {how}")


def _share(data: st.DataObject, host: LocalHost) -> None:
    several = host.queries
    names = [{*each.query.graph.names} for each in several.members]
    if len(names) < 2 or not any(len(a & b) > 1 for i, a in enumerate(names) for b in names[:i]):
        return
    try:
        host.steering.migrate(sharing.shared_plans(data, several))
    except (MigrationError, BundleError) as error:
        event(f"sharing refused: {error.message.split(chr(39))[0]}")
    else:
        event("joins are shared")


def _trees(query: Query) -> st.SearchStrategy[Plan]:
    # Of a query with sides, thetas are not deferred.
    thetas = query.graph.thetas if not query.sides else ()
    return plans(query.graph.names, thetas, merging=query.merging is not None)


def _any_plan(query: Query) -> st.SearchStrategy[Plan]:
    if query.grouping is not None or len(query.graph.names) < 2:
        return _trees(query)
    return meshes(query.graph) | _trees(query)
