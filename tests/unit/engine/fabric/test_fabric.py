"""The fabric in the small: what routes count, and what profiling sees."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.engine.engine import Engine
from anabranch.engine.fabric import kernels, sorting
from anabranch.engine.fabric.profile import profile
from anabranch.migrate.strategies.registry import strategy_named
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh, one_route, parse_mesh
from anabranch.plan.query import Query
from anabranch.run.local import LocalHost
from tests.support.hosts import engines_of
from tests.support.scripted import read_rows, read_script

CATALOG = read_script("\n".join(f"stream {name} (k bigint, v bigint)" for name in "abc")).catalog


def query(where: str) -> Query:
    windows = ", ".join(f"{name} [RANGE 100 SECONDS]" for name in "abc")
    return compile_query(f"SELECT a.v AS x, b.v AS y, c.v AS z FROM {windows} WHERE {where}", CATALOG)


STAR = query("a.k = b.k AND a.k = c.k")
CHAIN = query("a.k = b.k AND b.v = c.v")
LINES = ("b 1 1 10", "b 2 1 11", "b 2 2 12", "c 1 1 20", "c 2 3 21")


def host(chosen: Query, mesh: Mesh, lines: tuple[str, ...] = LINES) -> LocalHost:
    started = LocalHost(chosen, mesh)
    started.step(read_rows(CATALOG, lines))
    return started


def engine_of(started: LocalHost) -> Engine:
    return engines_of(started)[0]


def test_routes_count_their_rows_results_and_hops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "SMALLEST_ROW_GROUP", 1)
    mesh = parse_mesh("mesh(a: b>c, c>b by (v <= 0.5 ? 0 : 1); b: a>c; c: a>b)")
    started = host(STAR, mesh)
    answer = started.step(read_rows(CATALOG, ("a 3 1 0", "a 3 2 0", "a 3 1 1", "a 3 9 1")))
    assert answer.num_rows == 4
    routes = {(route.relation, route.route): route for route in started.statistics.routes}
    first, second = routes["a", 0], routes["a", 1]
    assert (first.rows, first.results) == (2, 2)
    assert [(hop.operator, hop.rows, hop.kept) for hop in sorted(first.hops, key=lambda h: h.operator)] == [
        ("b", 2, 3),
        ("c", 3, 2),
    ]
    assert (second.rows, second.results) == (2, 2)
    assert [(hop.operator, hop.rows, hop.kept) for hop in sorted(second.hops, key=lambda h: h.operator)] == [
        ("b", 1, 2),
        ("c", 2, 1),
    ]


def test_an_existence_probe_drops_rows_without_a_match_and_joins_nothing() -> None:
    started = host(STAR, parse_mesh("mesh(a: c?>b>c; b: a>c; c: a>b)"))
    answer = started.step(read_rows(CATALOG, ("a 3 1 0", "a 3 2 0", "a 3 1 1", "a 3 9 1")))
    assert answer.num_rows == 4
    (route,) = [each for each in started.statistics.routes if each.relation == "a"]
    assert (route.rows, route.results) == (4, 4)
    assert [(hop.operator, hop.rows, hop.kept) for hop in sorted(route.hops, key=lambda h: h.operator)] == [
        ("b", 2, 4),
        ("c", 4, 4),
        ("c?", 4, 2),
    ]
    counts = {(probe.origin, probe.target): probe for probe in started.statistics.probes}
    assert (counts["a", "c?"].probes, counts["a", "c?"].matches, counts["a", "c?"].kept) == (4, 0, 2)


def test_an_existence_probe_may_run_later_in_a_route_and_by_a_band() -> None:
    banded = query("a.k = b.k AND b.v BETWEEN c.v - 1 AND c.v + 1")
    mesh = parse_mesh("mesh(a: b>c?>c; b: a?>c?>a>c; c: b?>b>a)")
    # A band has buckets, and partners may stand in the next one: every place in a bucket is tried.
    for value in range(20, 26):
        first, others = (f"c 1 0 {value}",), [f"b 2 {number} {number}" for number in range(15, 31)]
        started = host(banded, mesh, first)
        answer = started.step(read_rows(CATALOG, (*others, *(f"a 2 {number} 0" for number in range(15, 31)))))
        assert sorted(answer.column("y").to_pylist()) == [value - 1, value, value + 1]
        started = host(banded, mesh, (*others, *(f"a 2 {number} 0" for number in range(15, 31))))
        answer = started.step(read_rows(CATALOG, first))
        assert sorted(answer.column("y").to_pylist()) == [value - 1, value, value + 1]


def test_small_rusters_go_with_the_largest() -> None:
    mesh = parse_mesh("mesh(a: b>c, c>b by (v <= 0.5 ? 0 : 1); b: a>c; c: a>b)")
    started = host(STAR, mesh)
    started.step(read_rows(CATALOG, ("a 3 1 0", "a 3 2 0", "a 3 1 1")))
    assert {(route.relation, route.route) for route in started.statistics.routes} == {("a", 0)}


@given(
    labels=st.lists(st.integers(0, 11), min_size=1),
    spare=st.integers(0, 2),
    smallest=st.integers(1, 4),
    first=st.integers(0, 1 << 40),
)
def test_rows_of_a_route_are_put_together_and_few_go_with_the_most(
    labels: list[int], spare: int, smallest: int, first: int
) -> None:
    routes, times = max(labels) + 1 + spare, np.arange(len(labels), dtype=np.int64) * 7
    out = np.full((3, len(labels)), -1, dtype=np.int64)
    rows = first + 2 * np.arange(len(labels), dtype=np.int64)
    counts = kernels.cut(np.array(labels, np.uint16), routes, smallest, rows, times, times + 50, out)
    taken = np.bincount(labels, minlength=routes)
    largest = int(taken.argmax())
    goes = [label if taken[label] >= smallest else largest for label in labels]
    assert counts.tolist() == np.bincount(goes, minlength=routes).tolist()
    order = np.argsort(goes, kind="stable")
    written = [rows[order], times[order], times[order] + 50] if len(set(goes)) > 1 else [[-1] * len(labels)] * 3
    assert out.tolist() == np.array(written).tolist()


@pytest.mark.parametrize("column", ["s", "v"])
def test_rows_are_told_apart_by_texts_and_where_the_ring_goes_around(
    column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorting, "SMALLEST_ROW_GROUP", 1)
    catalog = read_script("stream a (k bigint, v bigint, s string)\nstream b (k bigint)").catalog
    windows = "a [RANGE 1 SECONDS], b [RANGE 1 SECONDS]"
    chosen = compile_query(f"SELECT a.v AS v, a.s AS s, b.k AS k FROM {windows} WHERE a.k = b.k", catalog)
    test = "(s in {'s1', 's9'} ? 1 : 0)" if column == "s" else "(v <= 1.5 ? (v <= 0.5 ? 0 : 1) : (v <= 8.5 ? 0 : 1))"
    started = LocalHost(chosen, parse_mesh(f"mesh(a: b, b by {test}; b: a)"))
    for second in range(9):
        # 300 rows at a time go around the smallest ring, of 1024, in the fourth batch.
        started.step(read_rows(catalog, [f"a {second * 10} {i} {i % 10} s{i % 10}" for i in range(300)]))
        routes = {route.route: route.rows for route in started.statistics.routes}
        assert routes == {0: 240, 1: 60}


def test_a_change_of_mesh_moves_no_state_and_keeps_only_the_indexes_it_needs() -> None:
    started = host(CHAIN, parse_mesh("mesh(a: b>c; b: a>c; c: b>a)"))
    engine = engine_of(started)
    before = {name: base.ring.next for name, base in engine.bases.items()}
    moved = engine.migrate(parse_mesh("mesh(a: c>b; b: c>a; c: a>b)"), strategy_named("none"))
    assert not moved.moved
    assert not moved.recomputed
    assert {name: base.ring.next for name, base in engine.bases.items()} == before
    """From a the only way to c without b is to look at all rows."""
    assert () in engine.bases["c"].indexes
    engine.migrate(parse_mesh("mesh(a: b>c; b: a>c; c: b>a)"), strategy_named("none"))
    assert () not in engine.bases["c"].indexes


def test_a_profile_counts_what_each_operator_finds_for_each_row() -> None:
    started = host(STAR, one_route(STAR.graph), (*LINES, "a 3 1 0", "a 3 2 0", "a 3 7 0"))
    seen = profile(STAR.graph, "a", engine_of(started).bases)
    assert seen.matrix.operators == ("b", "c")
    assert seen.matrix.selectivity.tolist() == [[2.0, 1.0], [1.0, 0.0], [0.0, 0.0]]
    assert seen.columns.column("k").to_pylist() == [1, 2, 7]
    assert (seen.matrix.cost >= 0).all()


def test_a_profile_reaches_far_relations_over_the_near_ones() -> None:
    lines = ("b 1 1 5", "b 1 1 6", "b 1 2 7", "c 1 0 5", "c 1 0 5", "a 3 1 0", "a 3 2 0", "a 3 9 0")
    started = host(CHAIN, one_route(CHAIN.graph), lines)
    engine = engine_of(started)
    indexes = {name: base.indexes for name, base in engine.bases.items()}
    seen = profile(CHAIN.graph, "a", engine.bases)
    """Row 1 has two partners in b, of which one has two in c; row 9 never gets there and is taken as the mean."""
    assert seen.matrix.selectivity[:, 0].tolist() == [2.0, 1.0, 0.0]
    assert seen.matrix.selectivity[:, 1] == pytest.approx(np.array([1.0, 0.0, 2 / 3]))
    assert {name: base.indexes for name, base in engine.bases.items()} == indexes


def test_predicates_can_be_profiled_as_operators() -> None:
    with_theta = query("a.k = b.k AND a.k = c.k AND a.v < b.v")
    started = host(with_theta, one_route(with_theta.graph), (*LINES, "a 3 1 10"))
    bases = engine_of(started).bases
    eager = profile(with_theta.graph, "a", bases)
    assert eager.matrix.selectivity.tolist() == [[1.0, 1.0]]
    deferred = profile(with_theta.graph, "a", bases, deferred=("#0",))
    assert deferred.matrix.operators == ("b", "c", "#0")
    assert deferred.matrix.selectivity.tolist() == [[2.0, 1.0, 0.5]]


def test_in_a_long_batch_rows_find_only_what_was_taken_before_them() -> None:
    """A batch longer than the windows was profiled as if every row found all others: twice the work, and wrong orders.

    a is taken in first, so its rows find what older batches left of b and c; rows of c find all of a and b.
    """
    started = host(STAR, one_route(STAR.graph), ("b 1 1 0", "c 1 1 0"))
    started.step(read_rows(CATALOG, [line for i in range(4) for line in (f"a {10 + i} 1 {i}", f"b {10 + i} 1 {i}")]))
    started.step(read_rows(CATALOG, [f"{name} {20 + i} 1 {i}" for i in range(4) for name in "abc"]))
    engine = engine_of(started)
    assert engine.only.batch_starts == {"a": 4, "b": 5, "c": 1}
    seen = {
        name: profile(STAR.graph, name, engine.bases, rows=4, batch_starts=engine.only.batch_starts) for name in "abc"
    }
    assert {name: each.batch_rows for name, each in seen.items()} == {"a": 4, "b": 4, "c": 4}
    assert [seen[name].matrix.selectivity[0].tolist() for name in "abc"] == [[5.0, 1.0], [8.0, 1.0], [8.0, 9.0]]
    # Where the last turn was smaller than the sample, rows of earlier ones are taken too, and nothing is hidden.
    assert profile(STAR.graph, "a", engine.bases, rows=8, batch_starts=engine.only.batch_starts).matrix.selectivity[
        0
    ].tolist() == [
        9.0,
        5.0,
    ]
    assert all(each.call > 0 for each in seen.values())


def test_the_turns_of_an_engine_are_kept_with_its_states_and_forgotten_by_a_rebuild() -> None:
    engine = engine_of(host(STAR, one_route(STAR.graph)))
    assert engine.only.layout()["batch_starts"] == engine.only.batch_starts == {"b": 0, "c": 0}
    rebuilt = Engine.alone(STAR, one_route(STAR.graph))
    rebuilt.restore(engine.export(), None)
    assert rebuilt.only.batch_starts == {}


def test_a_state_without_rows_has_an_empty_profile() -> None:
    graph: JoinGraph = STAR.graph
    engine = Engine.alone(STAR, one_route(graph))
    seen = profile(graph, "a", engine.bases)
    assert seen.matrix.rows == 0
    assert isinstance(seen.columns, pa.Table)
