"""Routes: orders are the cheapest there are, keep precedence, and are left open only where that hardly matters."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import StatisticsError
from anabranch.mesh import routes
from anabranch.mesh.routes import Router
from anabranch.stats.mesh.operators import Needs, OperatorMatrix, check_needs, may_come


def keeps_needs(router: Router, order: tuple[int, ...]) -> bool:
    return all(may_come(router.needs[operator], set(order[:place])) for place, operator in enumerate(order))


@st.composite
def routers(draw: st.DrawFn, most: int = 5) -> Router:
    operators, rows = draw(st.integers(1, most)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    selectivity = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0, 3.0], (rows, operators))
    cost = rng.choice([1.0, 2.0, 10.0], (rows, operators))
    needs: Needs = tuple(
        tuple(frozenset({draw(st.integers(0, i - 1))}) for _ in range(draw(st.integers(0, 2)))) if i else ()
        for i in range(operators)
    )
    weights = rng.integers(1, 5, rows)
    names = tuple(f"o{i}" for i in range(operators))
    return Router(OperatorMatrix(names, selectivity, cost), weights / weights.sum(), needs)


def price_by_hand(router: Router, order: tuple[int, ...], rows: list[int]) -> float:
    total = 0.0
    for row in rows:
        left = router.shares[row]
        for operator in order:
            total += left * router.matrix.cost[row, operator]
            left *= router.matrix.selectivity[row, operator]
    return float(total)


@given(routers(), st.data())
def test_the_best_order_is_the_cheapest_of_all_that_keep_precedence(router: Router, data: st.DataObject) -> None:
    rows = sorted(data.draw(st.sets(st.integers(0, router.matrix.rows - 1), min_size=1)))
    every = [order for order in permutations(range(len(router.needs))) if keeps_needs(router, order)]
    best = router.best(np.array(rows))
    assert best.order in every
    assert best.cost == pytest.approx(min(price_by_hand(router, order, rows) for order in every))
    assert router.price(best.order, np.array(rows)) == pytest.approx(best.cost)


@given(routers())
@settings(max_examples=30)
def test_beyond_the_exact_limit_orders_keep_precedence(router: Router) -> None:
    greedy = router._greedy(router.everything)
    assert sorted(greedy.order) == list(range(len(router.needs)))
    assert keeps_needs(router, greedy.order)
    assert greedy.cost >= router.best(router.everything).cost - 1e-12


@given(st.lists(st.tuples(st.floats(0, 0.99), st.floats(0.1, 10)), min_size=1, max_size=6))
def test_filters_on_rows_alike_are_ordered_by_rank(filters: list[tuple[float, float]]) -> None:
    selectivity, cost = np.array([[s for s, _ in filters]]), np.array([[c for _, c in filters]])
    router = Router(
        OperatorMatrix(tuple("abcdef"[: len(filters)]), selectivity, cost), np.ones(1), ((),) * len(filters)
    )
    by_rank = tuple(sorted(range(len(filters)), key=lambda i: -(1 - filters[i][0]) / filters[i][1]))
    assert router.best(np.array([0])).cost == pytest.approx(router.price(by_rank, np.array([0])))
    assert router._greedy(np.array([0])).cost == pytest.approx(router.price(by_rank, np.array([0])))


def test_many_operators_are_ordered_greedily_behind_what_they_need() -> None:
    size = routes.MOST_EXACT + 3
    selectivity, cost = np.full((1, size), 0.9), np.ones((1, size))
    selectivity[0, 5] = 0.01
    needs: Needs = tuple((frozenset({4}), frozenset({7, 8})) if i == 5 else () for i in range(size))
    router = Router(OperatorMatrix(tuple(f"o{i}" for i in range(size)), selectivity, cost), np.ones(1), needs)
    assert router.best(np.array([0])).order[:2] == (4, 5), "the one that drops nearly all comes as soon as it may"


def test_operators_that_drop_the_same_rows_are_not_taken_in_a_row() -> None:
    # Means are 0.5, 0.5, 0.6: by rank the first two would come first, though the second then drops nothing more.
    selectivity = np.array([[0, 0, 1], [0, 0, 1], [1, 1, 0.2], [1, 1, 0.2]], dtype=float)
    router = Router(OperatorMatrix(("x", "y", "z"), selectivity, np.ones((4, 3))), np.full(4, 0.25), ((),) * 3)
    assert router.best(router.everything).order[1] == 2


def test_precedence_that_nothing_can_keep_is_refused() -> None:
    check_needs(((), (frozenset({0}),)), ("a", "b"))
    with pytest.raises(StatisticsError, match="operator 'a' can never come"):
        check_needs(((frozenset({1}),), (frozenset({0}),)), ("a", "b"))
    with pytest.raises(StatisticsError, match="operator 'b' can never come"):
        check_needs(((), (frozenset({7}),)), ("a", "b"))
    with pytest.raises(StatisticsError, match="for 1 operators, and there are 2"):
        check_needs(((),), ("a", "b"))
