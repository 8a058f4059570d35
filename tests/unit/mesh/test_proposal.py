"""From rows to a mesh: found where there is one, refused with a reason where there is not, and never in the way."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.errors import PlanError, StatisticsError
from anabranch.mesh.learn import SearchSetting
from anabranch.mesh.proposal import MeshProposal, find_mesh
from anabranch.mesh.search import MeshCosts
from anabranch.mesh.training import training_set
from anabranch.mesh.whole import find_query_mesh
from anabranch.plan.classifier import attributes, leaves
from anabranch.plan.mesh import RelationRoutes, Route
from anabranch.stats.mesh.operators import Needs, OperatorMatrix
from anabranch.stats.mesh.profiles import OperatorProfile
from tests.support.scripted import read_script

OPERATORS = ("news", "research", "patterns")
SELECTIVITY = {"it": (0.05, 0.6, 0.9), "food": (0.9, 0.6, 0.05)}
FREE: Needs = ((), (), ())
SETTING = SearchSetting(size=12)


def stocks(rows: int, seed: int, skewed: bool = True) -> tuple[pa.Table, OperatorMatrix]:
    """Trades whose sector decides what operators do to them, if skewed; price decides nothing."""
    rng = np.random.default_rng(seed)
    sector = rng.choice(["it", "food"], rows, p=[0.7, 0.3])
    table = pa.table({"price": rng.random(rows), "sector": sector})
    chances = np.array([SELECTIVITY[name if skewed else "it"] for name in sector])
    seen = (rng.random((rows, 3)) < chances).astype(float)
    return table, OperatorMatrix(OPERATORS, seen, np.full((rows, 3), 1e-6))


def propose(table: pa.Table, matrix: OperatorMatrix, needs: Needs = FREE, **changes: object) -> MeshProposal:
    setting = SearchSetting(**{**vars(SETTING), **changes})
    return find_mesh(training_set("s", table), matrix, needs, np.random.default_rng(1), setting)


def test_sectors_that_behave_differently_take_different_routes() -> None:
    table, matrix = stocks(600, seed=1)
    found = propose(table, matrix)
    assert found.is_mesh
    assert attributes(found.ways.classifier) == ("sector",)
    assert str(found.ways) == "s: news>research>patterns, patterns>research>news by (sector in {'food'} ? 1 : 0)"
    assert found.shares == pytest.approx((0.7, 0.3), abs=0.05)
    # A trade of either sector pays 1 + 0.05 + 0.05 x 0.6 microseconds.
    assert found.route_costs == pytest.approx((1.08e-6, 1.08e-6), rel=0.1)
    costs = SETTING.costs
    spent = sum(share * cost for share, cost in zip(found.shares, found.route_costs, strict=True))
    assert found.cost == pytest.approx(spent + costs.test + 2 * costs.route)
    assert found.gain > 0.1
    assert found.held_out is not None
    assert found.held_out.gain == pytest.approx(found.gain, abs=0.1)
    assert "2 routes by 1 test gain +" in found.reason
    assert {considered.name for considered in found.considered} == {"search", "start (route)", "single route"}


@pytest.mark.parametrize("seed", range(3))
def test_uniform_rows_keep_one_route(seed: int) -> None:
    table, matrix = stocks(600, seed, skewed=False)
    found = propose(table, matrix)
    assert not found.is_mesh
    assert found.gain == 0.0
    assert found.reason.startswith("one route: ")


def test_a_mesh_that_only_fits_its_own_sample_is_refused() -> None:
    # Without a price on tests and routes, a search that separates all rows fits noise: the rows held out find it out.
    table, matrix = stocks(200, seed=3, skewed=False)
    found = propose(
        table,
        matrix,
        costs=MeshCosts(0.0, 0.0),
        search=lambda space, start, rng: space.solution(np.arange(space.size)),
    )
    assert not found.is_mesh
    assert "on rows held out" in found.reason


def test_sampled_rows_too_few_or_alike_mean_one_route_and_a_reason() -> None:
    table, matrix = stocks(100, seed=4)
    few = propose(table[:5], matrix.take(np.arange(5)))
    assert few.reason == "one route: 5 training rows, and 8 are needed"
    none = propose(table[:0], matrix.take(np.arange(0)))
    assert none.reason == "one route: no training rows, and 8 are needed"
    assert sorted(none.ways.routes[0].operators) == sorted(OPERATORS)
    nameless = propose(table.select([]).append_column("k", pa.array(range(100), pa.duration("us"))), matrix)
    assert nameless.reason == "one route: no attribute can tell rows apart"
    alike = propose(pa.table({"sector": ["it"] * 100}), matrix)
    assert alike.reason == "one route: no partition of the sampled rows is cheaper"


def test_one_operator_or_none_leaves_nothing_to_order() -> None:
    table, matrix = stocks(100, seed=4)
    for count in (0, 1):
        few = OperatorMatrix(OPERATORS[:count], matrix.selectivity[:, :count], matrix.cost[:, :count])
        found = propose(table, few, FREE[:count])
        assert found.reason == "one route: there is nothing to order"
        assert found.ways.routes[0].operators == OPERATORS[:count]


def test_operators_that_cost_nothing_are_no_reason_to_fail() -> None:
    table, matrix = stocks(100, seed=4)
    free = OperatorMatrix(OPERATORS, matrix.selectivity, np.zeros_like(matrix.cost))
    assert not propose(table, free, costs=MeshCosts(0.0, 0.0)).is_mesh


def test_nulls_are_a_kind_of_their_own() -> None:
    table, matrix = stocks(600, seed=5)
    sector = [None if name == "food" else name for name in table["sector"].to_pylist()]
    found = propose(table.set_column(1, "sector", pa.array(sector, pa.string())), matrix)
    assert found.is_mesh
    assert found.shares == pytest.approx((0.7, 0.3), abs=0.05)


def test_routes_keep_precedence() -> None:
    table, matrix = stocks(600, seed=6)
    found = propose(table, matrix, ((), (), (frozenset({0}),)))
    for route in found.ways.routes:
        assert route.operators.index("news") < route.operators.index("patterns")


def test_dear_tests_are_not_worth_a_mesh() -> None:
    table, matrix = stocks(600, seed=8)
    found = propose(table, matrix, costs=MeshCosts(test=1e-3))
    assert not found.is_mesh


def test_a_search_may_start_from_the_current_mesh() -> None:
    table, matrix = stocks(600, seed=9)
    first = propose(table, matrix)
    moved = pa.array(["it" if name == "food" else "food" for name in table["sector"].to_pylist()])
    later = table.set_column(1, "sector", moved)
    again = find_mesh(training_set("s", later), matrix, FREE, np.random.default_rng(2), SETTING, current=first.ways)
    running = next(considered for considered in again.considered if considered.name == "current mesh")
    assert again.cost < running.cost, "the mesh of before sends every row the wrong way"
    assert len(leaves(again.ways.classifier)) == 2
    other = RelationRoutes("s", (Route(("news",)),))
    with pytest.raises(PlanError, match="does not visit the operators that were measured"):
        find_mesh(training_set("s", table), matrix, FREE, np.random.default_rng(2), SETTING, current=other)


def test_the_same_chance_gives_the_same_mesh() -> None:
    table, matrix = stocks(300, seed=10)
    assert str(propose(table, matrix)) == str(propose(table, matrix))


def test_statistics_of_other_rows_are_refused() -> None:
    table, matrix = stocks(20, seed=11)
    with pytest.raises(StatisticsError, match="statistics for 10 rows, and the sample has 20"):
        propose(table, matrix.take(np.arange(10)))
    with pytest.raises(StatisticsError, match="negative or not a number"):
        OperatorMatrix(("a",), np.array([[-1.0]]), np.array([[1.0]]))
    with pytest.raises(StatisticsError, match="not rows x operators"):
        OperatorMatrix(("a",), np.zeros((1, 2)), np.zeros((1, 1)))


def test_routes_are_not_worth_it_where_few_rows_come_together() -> None:
    """On flights, meshes were proposed that took longer: a call of an operator costs something before its first row."""
    catalog = read_script("\n".join(f"stream {name} (k bigint, sector string)" for name in ("s", *OPERATORS))).catalog
    windows = ", ".join(f"{name} [RANGE 1 SECONDS]" for name in ("s", *OPERATORS))
    keys = " AND ".join(f"s.k = {name}.k" for name in OPERATORS)
    graph = compile_query(f"SELECT s.sector AS x FROM {windows} WHERE {keys}", catalog).graph
    table, matrix = stocks(600, seed=1)

    def routes(batch_rows: int, call: float) -> int:
        seen = OperatorProfile("s", table, matrix, batch_rows, call)
        return len(find_query_mesh(graph, [seen], np.random.default_rng(1), SETTING).mesh.of("s").routes)

    assert routes(batch_rows=20_000, call=60e-6) == 2
    assert routes(batch_rows=100, call=60e-6) == 1
    assert routes(batch_rows=100, call=1e-6) == 2


def test_nothing_is_searched_where_no_attribute_tells_rows_apart() -> None:
    table, matrix = stocks(1000, seed=3, skewed=False)
    alike = propose(table, matrix, early_out=True)
    assert alike.reason == "one route: no attribute separates the rows"
    table, matrix = stocks(1000, seed=3)
    found, same = propose(table, matrix, early_out=True), propose(table, matrix)
    assert found.is_mesh
    assert str(found.ways) == str(same.ways)


def test_nothing_is_searched_where_even_free_routes_would_gain_too_little() -> None:
    table, matrix = stocks(1000, seed=3)
    found = propose(table, matrix, early_out=True, least_gain=9.0)
    assert found.reason == "one route: even a route for each kind of rows would gain less than 900%"
