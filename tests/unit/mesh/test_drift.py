"""Drift: found when rows move between routes or an operator changes, and not when chance alone explains it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anabranch.mesh.drift import MeshUse, drifted, mesh_use
from anabranch.plan.classifier import parse_classifier
from anabranch.plan.mesh import RelationRoutes, Route
from anabranch.stats.mesh.routes import HopStatistics, RouteStatistics

BEFORE = MeshUse(
    (7000, 2000, 1000), {(0, "b"): HopStatistics("b", 10_000, 1000), (1, "b"): HopStatistics("b", 10_000, 9000)}
)


def test_rows_that_move_to_another_route_are_drift() -> None:
    now = MeshUse((450, 500, 50), BEFORE.hops)
    assert drifted(BEFORE, now) == "route 1 gets 50% of the rows, and got 20%"
    assert drifted(BEFORE, MeshUse((650, 250, 100), BEFORE.hops)) is None, "a twentieth of the rows is no drift"
    assert drifted(BEFORE, MeshUse((4, 5, 1), BEFORE.hops)) is None, "ten rows prove nothing"
    assert drifted(BEFORE, MeshUse((0, 0, 0))) is None
    assert drifted(BEFORE, MeshUse((1, 1))) == "there are 2 routes, and there were 3"


def test_an_operator_that_lets_more_or_less_through_is_drift() -> None:
    for kept, words in ((400, "0.4"), (10, "0.01")):
        now = MeshUse(BEFORE.rows, {(0, "b"): HopStatistics("b", 1000, kept), (1, "b"): HopStatistics("b", 1000, 900)})
        assert drifted(BEFORE, now) == f"operator 'b' gives {words} rows per row on route 0, and gave 0.1"
    assert drifted(BEFORE, MeshUse(BEFORE.rows, {(0, "b"): HopStatistics("b", 1000, 120)})) is None
    assert drifted(BEFORE, MeshUse(BEFORE.rows, {(0, "b"): HopStatistics("b", 10, 4)})) is None, "too few rows"
    assert drifted(BEFORE, MeshUse(BEFORE.rows, {(2, "new"): HopStatistics("new", 1000, 0)})) is None, (
        "nothing to compare with"
    )


def test_counts_come_from_the_routes_of_the_relation() -> None:
    ways = RelationRoutes("a", (Route(("b", "c")), Route(("c", "b"))), parse_classifier("(x <= 1.0 ? 0 : 1)"))
    seen = [
        RouteStatistics("a", 0, 70, 7, (HopStatistics("b", 70, 7), HopStatistics("c", 7, 7))),
        RouteStatistics("a", 0, 30, 3, (HopStatistics("b", 30, 3),)),
        RouteStatistics("b", 1, 50, 5, (HopStatistics("c", 50, 5),)),
    ]
    use = mesh_use(ways, seen)
    assert use.rows == (100.0, 0.0)
    assert use.hops == {(0, "b"): HopStatistics("b", 100, 10), (0, "c"): HopStatistics("c", 7, 7)}


def test_the_worst_change_is_named() -> None:
    now = MeshUse(BEFORE.rows, {(0, "b"): HopStatistics("b", 10_000, 2000), (1, "b"): HopStatistics("b", 10_000, 1000)})
    assert "on route 1" in str(drifted(BEFORE, now))


@given(st.integers(0, 10**6), st.integers(10, 5000), st.integers(10, 5000))
def test_two_looks_at_the_same_stream_are_not_drift(seed: int, earlier: int, later: int) -> None:
    rng = np.random.default_rng(seed)

    def look(rows: int) -> MeshUse:
        sent = rng.multinomial(rows, [0.6, 0.3, 0.1])
        hops = {(0, "b"): HopStatistics("b", rows, int(rng.poisson(0.3, rows).sum()))}
        return MeshUse(tuple(sent.tolist()), hops)

    assert drifted(look(earlier), look(later)) is None
