"""Any mesh, any classifier, any swap at any batch gives the batch answer."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from anabranch.adapt.advisors import payback, routes
from anabranch.adapt.facts import Interval
from anabranch.adapt.gate import Gate, Verdict
from anabranch.adapt.policy import Periodic
from anabranch.adapt.rules import ChangeRules
from anabranch.adapt.settings import Settings
from anabranch.cql import compile_query
from anabranch.engine.fabric import sorting
from anabranch.migrate.strategies.registry import strategy_named
from anabranch.plan.mesh import Plan
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE
from anabranch.run.local import LocalHost
from tests.support.hosts import engines_of
from tests.support.meshes import meshes
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.strategies import arrivals, batch_cuts, grouped_queries, join_queries, late_filters, plans


@pytest.fixture(autouse=True)
def _rusters_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "SMALLEST_ROW_GROUP", 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), relations=st.integers(1, 5))
def test_a_mesh_gives_the_batch_answer(data: st.DataObject, relations: int) -> None:
    rows = data.draw(arrivals(relations, most_rows=14 if relations < 4 else 8), "rows")
    drawn = data.draw(join_queries(relations, relations), "query")
    late = data.draw(late_filters(drawn, rows), "late filters")
    query = compile_query(drawn.cql, rows.catalog, late_filters=late)
    mesh = data.draw(meshes(query.graph), "mesh")
    host = LocalHost(query, mesh, slots=data.draw(st.sampled_from([1, 1, 2, 3])))
    event(f"class columns: {min(2, sum(len(each.classes) for each in host.queries.graph.relations))}")
    results = [host.step(batch) for batch in data.draw(batch_cuts(rows), "batches")]
    expected = batch_answer(query, rows.tables)
    event(f"results: {min(len(expected), 50) // 10 * 10}+")
    assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(results)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), relations=st.integers(1, 3))
def test_a_grouped_query_by_a_mesh_gives_the_batch_answer(data: st.DataObject, relations: int) -> None:
    rows = data.draw(arrivals(relations, most_rows=10), "rows")
    query = compile_query(data.draw(grouped_queries(relations, relations), "query").cql, rows.catalog)
    mesh = data.draw(meshes(query.graph), "mesh")
    host = LocalHost(query, mesh, slots=data.draw(st.sampled_from([1, 2])))
    results = [host.step(batch) for batch in data.draw(batch_cuts(rows), "batches")]
    assert not describe_difference(batch_answer(query, rows.tables), rows_as_multiset(pa.concat_tables(results)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), relations=st.integers(2, 4))
def test_swapping_meshes_and_plans_at_any_batch_changes_nothing(data: st.DataObject, relations: int) -> None:
    rows = data.draw(arrivals(relations, most_rows=10), "rows")
    drawn = data.draw(join_queries(relations, relations), "query")
    query = compile_query(drawn.cql, rows.catalog, late_filters=data.draw(late_filters(drawn, rows), "late filters"))
    host = LocalHost(query, data.draw(_any_plan(query), "first"))
    running = host.queries.member(ALONE).query
    results = []
    for batch in data.draw(batch_cuts(rows), "batches"):
        if data.draw(st.booleans(), "swap"):
            (engine,) = engines_of(host)
            engine.migrate(data.draw(_any_plan(running), "plan"), strategy_named("moving-state"))
        results.append(host.step(batch))
    assert not describe_difference(batch_answer(query, rows.tables), rows_as_multiset(pa.concat_tables(results)))


def _any_plan(query: Query) -> st.SearchStrategy[Plan]:
    return meshes(query.graph) | plans(query.graph.names, query.graph.thetas)


@pytest.fixture
def every_change_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is proposed is taken, so that plans change as often as they can."""
    for room in (payback, routes):
        monkeypatch.setattr(room, "judge", lambda *_: Verdict(True, "every change passes", 0.0))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    relations=st.integers(3, 4),
    slots=st.integers(1, 2),
    strategy=st.sampled_from(["auto", "moving-state", "parallel-track", "spread"]),
)
def test_a_query_that_changes_its_mind_at_every_chance_gives_the_batch_answer(
    counted_costs: None,
    every_change_passes: None,
    data: st.DataObject,
    relations: int,
    slots: int,
    strategy: str,
) -> None:
    """From any plan to any other, as the loop and the search propose them: trees, mjoins, meshes and back."""
    rows = data.draw(arrivals(relations, most_rows=12), "rows")
    query = compile_query(data.draw(join_queries(relations, relations), "query").cql, rows.catalog)
    first = data.draw(_any_plan(query), "first")
    eager = Settings(
        policy=Periodic(Interval(batches=1)),
        gate=Gate(cool_down=Interval(batches=1)),
        strategy=strategy,
        remember=1,
    )
    rules = ChangeRules(eager, first_search=1, waits=True)
    host = LocalHost(query, first, slots=slots, rules=rules)
    results = [host.step(batch) for batch in data.draw(batch_cuts(rows), "batches")]
    event(f"changes: {sum(record.get('phase') == 'began' for record in host.history)}")
    assert not describe_difference(batch_answer(query, rows.tables), rows_as_multiset(pa.concat_tables(results)))
