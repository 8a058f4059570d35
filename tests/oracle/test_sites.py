"""Over sites: any operator tree at any sites, any interleaving of its operators, crashes: the batch answer.

Queries are placed by drawn trees, not by a planner: joins at drawn sites, running joins reused or relaxed where there
are any. Each operator then has its own batches, its own plan and its own crashes. Joins are compared with DuckDB,
grouped queries with the naive evaluator.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from types import MappingProxyType
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.engine import slices
from anabranch.errors import ChangePending
from anabranch.lang.window import Window
from anabranch.place.landscape import Landscape, SinkQuery, bare
from anabranch.place.planner import _commit, _whole
from anabranch.place.problem import problem_of
from anabranch.place.removal import removed
from anabranch.place.search import Found, JoinAt, Placed, Take
from anabranch.place.statistics import Statistics, StreamStatistics
from anabranch.place.topology import from_dict
from anabranch.place.windows import as_ranges
from anabranch.run.links.feed import BEFORE_ALL
from anabranch.sites.compile import compile_program
from anabranch.sites.operators import GROUPS, Program
from tests.oracle.world import ServingWorld, World
from tests.support.duckdb_sql import select
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.outer_queries import WATERMARK, drawn_tables, outer_queries, with_tables
from tests.support.strategies import Arrivals, DrawnQuery, arrivals, grouped_queries, join_queries

SITES = ("north", "middle", "south")


def network(rows: Arrivals, rate: float = 10.0) -> Landscape:
    """Three sites in a row; the streams at one after another."""
    topology = from_dict(
        {
            "sites": [{"name": name} for name in SITES],
            "links": [{"ends": ["north", "middle"], "cost": 1.0}, {"ends": ["middle", "south"], "cost": 1.0}],
        }
    )
    streams = {name: StreamStatistics(SITES[number % 3], rate) for number, name in enumerate(rows.tables)}
    return bare(topology, Statistics(streams), {name: table.column_names for name, table in rows.tables.items()})


def placed(landscape: Landscape, query: SinkQuery, random: Random, reusing: bool = True) -> Landscape:
    """The landscape with one more query, by a random tree over random sites and running operators."""
    problem = problem_of(landscape, query, reusing=reusing)
    if query.is_whole:
        return _whole(problem, "drawn").landscape
    pieces: list[Placed] = []
    left = problem.full
    while left:
        offers = [producer for producer in problem.producers if producer.mask & ~left == 0]
        several = [producer for producer in offers if producer.mask.bit_count() > 1]
        chosen = random.choice(several if several and random.random() < 0.6 else offers)
        pieces.append(Take(chosen))
        left &= ~chosen.mask
    while len(pieces) > 1:
        random.shuffle(pieces)
        one, other, *rest = pieces
        pieces = [JoinAt(one, other, random.randrange(len(SITES))), *rest]
    return _commit(problem, "drawn", Found(pieces[0], 0.0, 1, 1), 1).landscape


def drawn_queries(data: st.DataObject, rows: Arrivals, streams: int, most: int) -> list[DrawnQuery]:
    count = data.draw(st.integers(1, 2), "queries")
    return [
        data.draw(
            join_queries(streams, data.draw(st.integers(1 if number else 2, most), "relations"), one_column=True),
            f"query {number}",
        )
        for number in range(count)
    ]


def since(rows: Arrivals, start: int) -> Arrivals:
    """The rows from an event time on."""
    tables = {
        name: table.filter(pc.greater_equal(table.column("ts").cast(pa.int64()), start))
        for name, table in rows.tables.items()
    }
    return replace(rows, tables=tables)


def older(rows: Arrivals, end: int) -> Arrivals:
    """The rows before an event time."""
    tables = {
        name: table.filter(pc.less(table.column("ts").cast(pa.int64()), end)) for name, table in rows.tables.items()
    }
    return replace(rows, tables=tables)


@given(data=st.data(), crashes=st.sampled_from([0.0, 0.03]))
def test_queries_join_leave_and_move_while_others_run(data: st.DataObject, crashes: float) -> None:
    """Queries join, leave and come back under their names in any order, also those whose operators others read.

    A query that runs from the beginning has the batch answer whatever changes around it, and under it. One that joins
    has all results whose newest row is from its event time on, of rows that are not too old.
    """
    streams = data.draw(st.integers(2, 3), "streams")
    rows = data.draw(arrivals(streams, most_rows=14), "rows")
    first, second = (
        data.draw(join_queries(streams, data.draw(st.integers(2, 3), "relations"), one_column=True), f"query {number}")
        for number in range(2)
    )
    # The third is the first once more: it may read all that the first has started.
    drawn = {"q0": first, "q1": second, "q2": first}
    bound = {name: compile_query(each.cql, rows.catalog) for name, each in drawn.items()}
    random = Random(data.draw(st.integers(0, 2**32 - 1), "scheduler"))
    queries = {name: SinkQuery(name, query, random.choice(SITES)) for name, query in bound.items()}
    landscape = network(rows)
    for name in data.draw(st.sampled_from([["q0"], ["q0", "q2"], ["q0", "q1"]]), "from the beginning"):
        landscape = placed(landscape, queries[name], random)
    with tempfile.TemporaryDirectory() as folder:
        world = World(
            compile_program(landscape, rows.catalog), Path(folder), rows.tables, random, crashes=crashes, most_slots=2
        )
        for change in data.draw(st.lists(st.sampled_from([*queries, "move"]), max_size=6), "changes"):
            world.run(data.draw(st.integers(0, 30), "steps"))
            is_changing = world.wanted.is_changing
            if change == "move":
                after = network(rows)
                for query in landscape.queries.values():
                    after = placed(after, query, random)
            elif change not in landscape.queries:
                after = placed(landscape, queries[change], random)
            else:
                after = removed(landscape, change)
                if any(name.startswith(f"{change}/") for name in after.operators):
                    event("leave: others use its operators")
            before = set(world.wanted.operators)
            try:
                world.change(compile_program(after, rows.catalog))
            except ChangePending:
                event("has to wait")
                continue
            landscape = after
            if is_changing:
                event("two changes under way")
            event(f"{change}: {len(set(world.wanted.operators) - before)} new operators")
        world.run()
        event("settled" if not world.wanted.is_changing else "not settled")
        for name, start in world.wanted.since.items():
            oldest = world.wanted.rows_from[name]
            assert oldest <= start
            event(
                "runs from the beginning"
                if start == BEFORE_ALL
                else "joined a running join"
                if oldest < start
                else "joined with joins of its own"
            )
            # A combination has its newest row from `start` on unless all its rows are older.
            known = since(rows, oldest)
            expected = rows_as_multiset(select(drawn[name].duckdb, known.tables))
            expected -= rows_as_multiset(select(drawn[name].duckdb, older(known, start).tables))
            event(f"results: {min(expected.total(), 5)}")
            assert not describe_difference(
                expected, rows_as_multiset(world.answer(name, bound[name].schema.to_arrow()))
            )
        assert not any(count for each in world.running.values() for count in each.host.late.values())


@given(data=st.data(), crashes=st.sampled_from([0.0, 0.03]))
def test_an_added_query_has_the_announced_results(data: st.DataObject, crashes: float) -> None:
    """The same query once more, while the first is half-way: it reads the running join, or has one of its own."""
    rows = data.draw(arrivals(2, most_rows=20), "rows")
    drawn = data.draw(join_queries(2, 2, one_column=True), "query")
    query = compile_query(drawn.cql, rows.catalog)
    random = Random(data.draw(st.integers(0, 2**32 - 1), "scheduler"))
    landscape = placed(network(rows), SinkQuery("q0", query, random.choice(SITES)), random)
    with tempfile.TemporaryDirectory() as folder:
        world = World(compile_program(landscape, rows.catalog), Path(folder), rows.tables, random, crashes=crashes)
        world.run(data.draw(st.integers(2, 12), "steps"))
        reusing = data.draw(st.booleans(), "may read the running join")
        landscape = placed(landscape, SinkQuery("q1", query, random.choice(SITES)), random, reusing)
        world.change(compile_program(landscape, rows.catalog))
        world.run()
        start, oldest = world.wanted.since["q1"], world.wanted.rows_from["q1"]
        event("joined a running join" if oldest < start else "joined with a join of its own")
        known = since(rows, oldest)
        expected = rows_as_multiset(select(drawn.duckdb, known.tables))
        expected -= rows_as_multiset(select(drawn.duckdb, older(known, start).tables))
        event(f"results after joining: {min(expected.total(), 5)}")
        assert not describe_difference(expected, rows_as_multiset(world.answer("q1", query.schema.to_arrow())))


def world_of(
    data: st.DataObject,
    rows: Arrivals,
    queries: list[DrawnQuery],
    folder: str,
    crashes: float,
    rate: float = 10.0,
    tables: Mapping[str, pa.Table] = MappingProxyType({}),
) -> World:
    random = data.draw(st.randoms(use_true_random=False), "scheduler")
    random = Random(random.getrandbits(64))
    landscape, catalog = network(rows, rate), with_tables(rows.catalog, tables)
    for number, drawn in enumerate(queries):
        sink = data.draw(st.sampled_from(SITES), "sink")
        query = SinkQuery(f"q{number}", as_ranges(compile_query(drawn.cql, catalog)), sink)
        landscape = placed(landscape, query, random)
    program = compile_program(landscape, rows.catalog)
    event(f"operators: {len(program.operators)}")
    return World(program, Path(folder), rows.tables, random, crashes=crashes, most_slots=2, tables=tables)


@given(data=st.data(), crashes=st.sampled_from([0.0, 0.05]))
def test_joins_over_sites_give_the_batch_answer(data: st.DataObject, crashes: float) -> None:
    streams = data.draw(st.integers(2, 3), "streams")
    rows = data.draw(arrivals(streams, most_rows=10), "rows")
    queries = drawn_queries(data, rows, streams, 3)
    # A step is cut into slices only if it is large; here it is cut wherever it can be.
    cut = data.draw(st.sampled_from([1, slices.SLICE_ROWS]), "rows of a slice")
    with tempfile.TemporaryDirectory() as folder, patch.object(slices, "SLICE_ROWS", cut):
        world = world_of(data, rows, queries, folder, crashes)
        world.run()
        for number, drawn in enumerate(queries):
            delivery = world.delivery(f"q{number}")
            answer = rows_as_multiset(world.answer(f"q{number}", delivery.spec.query.schema.to_arrow()))
            expected = rows_as_multiset(select(drawn.duckdb, rows.tables))
            event(f"results: {min(len(expected), 50) // 10 * 10}+")
            assert not describe_difference(expected, answer)
        assert not any(count for one in world.running.values() for count in one.host.late.values())


@given(data=st.data(), relations=st.integers(1, 3), crashes=st.sampled_from([0.0, 0.05]))
def test_a_grouped_query_over_sites_gives_the_batch_answer(data: st.DataObject, relations: int, crashes: float) -> None:
    rows = data.draw(arrivals(relations, most_rows=8), "rows")
    drawn = data.draw(grouped_queries(relations, relations), "query")
    event(next((word for word in ("HOP", "TUMBLE") if word in drawn.cql), "RANGE"))
    # By the rates it is decided whether rows or groups travel to the sink.
    rate = data.draw(st.sampled_from([0.01, 1000.0]), "rate")
    with tempfile.TemporaryDirectory() as folder:
        world = world_of(data, rows, [drawn], folder, crashes, rate)
        (groups,) = (spec for spec in world.program.operators.values() if spec.kind == GROUPS)
        sink = world.delivery("q0").spec.site
        made = world.program.operators[groups.inputs[0].producer].site
        event("groups travel" if groups.site != sink else "rows travel" if made != sink else "nothing travels")
        world.run()
        query = compile_query(drawn.cql, rows.catalog)
        expected = batch_answer(query, rows.tables, watermark=world.running[groups.name].host.clocks.watermark)
        event(f"answers: {min(len(expected), 50) // 10 * 10}+")
        assert not describe_difference(expected, rows_as_multiset(world.answer("q0", query.schema.to_arrow())))


@given(data=st.data(), crashes=st.sampled_from([0.0, 0.05]), slide=st.sampled_from([None, 2]))
def test_outer_joins_and_tables_at_the_sink_give_the_batch_answer(
    data: st.DataObject, crashes: float, slide: int | None
) -> None:
    """Beside an inner join whose operators are elsewhere and read the same gates."""
    streams = data.draw(st.integers(1, 3), "streams")
    rows = data.draw(arrivals(streams, most_rows=8), "rows")
    tables = data.draw(drawn_tables(data.draw(st.integers(0, 1))), "tables")
    drawn = data.draw(outer_queries(streams, slide, len(tables)), "query")
    other = data.draw(join_queries(streams, data.draw(st.integers(1, 2), "relations"), one_column=True), "inner join")
    query = as_ranges(compile_query(drawn.cql, with_tables(rows.catalog, tables)))
    assume(all(type(relation.window) is Window for relation in query.whole.relations))
    with tempfile.TemporaryDirectory() as folder:
        world = world_of(data, rows, [drawn, other], folder, crashes, tables=tables)
        world.run()
        delivery = world.delivery("q0")
        deciding = world.running[delivery.spec.inputs[0].producer] if slide else delivery
        watermark = deciding.host.clocks.watermark
        known = {relation.stream: rows.tables[relation.stream] for relation in query.whole.streamed} | tables
        if slide:
            expected = batch_answer(query, known, watermark=watermark)
        else:
            expected = rows_as_multiset(select(drawn.duckdb.replace(WATERMARK, str(watermark)), known))
        event(f"results: {min(len(expected), 50) // 10 * 10}+")
        assert not describe_difference(expected, rows_as_multiset(world.answer("q0", query.schema.to_arrow())))
        expected = rows_as_multiset(select(other.duckdb, rows.tables))
        found = world.answer("q1", world.delivery("q1").spec.query.schema.to_arrow())
        assert not describe_difference(expected, rows_as_multiset(found))


@given(data=st.data(), relations=st.integers(1, 3), crashes=st.sampled_from([0.0, 0.03]))
def test_a_grouped_query_keeps_its_answer_while_its_operators_move(
    data: st.DataObject, relations: int, crashes: float
) -> None:
    rows = data.draw(arrivals(relations, most_rows=14), "rows")
    # The boundary of a result tells whether it is sure.
    drawn = data.draw(
        grouped_queries(relations, relations).filter(lambda each: "WINDOW_END() AS at" in each.cql), "query"
    )
    query = compile_query(drawn.cql, rows.catalog)
    random = Random(data.draw(st.integers(0, 2**32 - 1), "scheduler"))
    placing = SinkQuery("q0", as_ranges(query), random.choice(SITES))

    def somewhere() -> Program:
        """Other joins at other sites; groups at the last join or at the sink."""
        return compile_program(placed(network(rows, random.choice([0.01, 1000.0])), placing, random), rows.catalog)

    with tempfile.TemporaryDirectory() as folder:
        world = World(somewhere(), Path(folder), rows.tables, random, crashes=crashes, most_slots=2)
        for _ in range(data.draw(st.integers(1, 3), "moves")):
            world.run(data.draw(st.integers(0, 30), "steps"))
            if not world.wanted.is_changing:
                before = set(world.wanted.operators)
                world.change(somewhere())
                event(f"moved: {len(set(world.wanted.operators) - before)} new operators")
        world.run()
        event("not settled" if world.wanted.is_changing else "settled")
        # While two operators make groups, a boundary is sure when both have answered it.
        answered = min(one.host.clocks.watermark for one in world.running.values() if one.spec.kind == GROUPS)
        given_rows = world.answer("q0", query.schema.to_arrow())
        given_rows = given_rows.filter(pc.less(given_rows.column("at").cast(pa.int64()), answered))
        expected = batch_answer(query, rows.tables, watermark=answered)
        event(f"answers: {min(len(expected), 50) // 10 * 10}+")
        assert not describe_difference(expected, rows_as_multiset(given_rows))


@given(data=st.data(), crashes=st.sampled_from([0.0, 0.03]))
@settings(max_examples=25)
def test_sites_that_serve_their_links_die_and_nothing_is_lost_or_repeated(data: st.DataObject, crashes: float) -> None:
    """Rows travel over TCP from the site of their producer, which dies at any moment and comes back at another port."""
    rows = data.draw(arrivals(2, most_rows=12), "rows")
    drawn = data.draw(join_queries(2, data.draw(st.integers(2, 3), "relations"), one_column=True), "query")
    random = Random(data.draw(st.integers(0, 2**32 - 1), "scheduler"))
    query = SinkQuery("q0", compile_query(drawn.cql, rows.catalog), random.choice(SITES))

    def somewhere() -> Program:
        return compile_program(placed(network(rows), query, random), rows.catalog)

    with tempfile.TemporaryDirectory() as folder:
        world = ServingWorld(somewhere(), Path(folder), rows.tables, random, crashes=crashes, deaths=0.1)
        try:
            world.run(data.draw(st.integers(0, 30), "steps"))
            world.change(somewhere())
            world.run()
            assert not list(Path(folder).glob("links/*")), "all links are in the stores of their sites"
            answer = world.answer("q0", query.query.schema.to_arrow())
        finally:
            world.close()
    assert not describe_difference(rows_as_multiset(select(drawn.duckdb, rows.tables)), rows_as_multiset(answer))
