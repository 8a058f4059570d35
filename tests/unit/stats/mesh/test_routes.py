from __future__ import annotations

from anabranch.stats.mesh.routes import HopStatistics, RouteStatistics


def test_rows_left_behind_a_step_are_counted_per_row_of_the_route() -> None:
    hops = HopStatistics("b", 100, 20), HopStatistics("c", 20, 60)
    seen = RouteStatistics("a", 0, rows=100, results=60, hops=hops)
    assert seen.left_behind([("b",), ("c",)]) == (0.2, 0.6)


def test_the_rows_of_an_open_step_enter_the_next() -> None:
    """Half of the rows took b first and half c, so that no single operator saw what the step leaves."""
    hops = HopStatistics("b", 150, 40), HopStatistics("c", 60, 30), HopStatistics("d", 25, 50)
    seen = RouteStatistics("a", 0, rows=200, results=50, hops=hops)
    assert seen.left_behind([("b", "c"), ("d",)]) == (0.125, 0.25)
    assert seen.left_behind([("b", "c", "d")]) == (0.25,)


def test_nothing_is_left_where_no_row_came() -> None:
    assert RouteStatistics("a", 0).left_behind([("b",), ("c",)]) == (0.0, 0.0)
