"""Meshes that were learnt while a query runs go through the gate of all plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.adapt.decision import Decision
from anabranch.adapt.gate import Gate
from anabranch.adapt.routing import Flow, decide_mesh
from anabranch.adapt.rules import Criteria
from anabranch.adapt.settings import Settings
from anabranch.plan.mesh import parse_mesh
from anabranch.plan.physical import mjoin
from anabranch.stats.mesh.learnt import LearntMesh, LearntRoutes

MESH = parse_mesh("mesh(a: b>c, c>b by (k <= 1.5 ? 0 : 1); b: a>c; c: a>b)")
ROUTES = LearntRoutes("two kinds of rows", (0.5, 0.5), (4e-6, 4e-6), 5e-6, 10e-6, 10e-6, certain_gain=1.0)
LEARNT = LearntMesh(MESH, {"a": ROUTES})
FLOW = Flow({"a": 10_000.0, "b": 10.0, "c": 10.0}, 100.0, 1e6, 1.0)


def decided(
    learnt: LearntMesh = LEARNT, flow: Flow = FLOW, settings: Settings | None = None, running: bool = False
) -> Decision:
    plan = learnt.mesh if running else mjoin(("a", "b", "c"))
    return decide_mesh(7, "looked", plan, learnt, flow, settings or Settings(), Criteria())


def test_a_mesh_that_saves_enough_is_taken_at_once() -> None:
    decision = decided()
    assert decision.action == "migrate"
    assert decision.strategy == "none"
    assert decision.cost.cpu - decision.proposed_cost.cpu == pytest.approx(0.05)
    assert decision.to_json()["origin"] == "search"


@pytest.mark.parametrize(
    ("routes", "flow", "settings", "reason"),
    [
        (ROUTES, replace(FLOW, rates={"a": 500.0}), Settings(), "0.005 are wanted"),
        (ROUTES, FLOW, Settings(gate=Gate(ratio=3.0)), "a ratio of 3 is wanted"),
        (ROUTES, FLOW, Settings(freeze=True), "frozen; otherwise: saves"),
        (replace(ROUTES, certain_gain=0.0), FLOW, Settings(), "saves no cpu"),
        (replace(ROUTES, running_seconds=5e-6), FLOW, Settings(), "saves no cpu"),
    ],
)
def test_one_that_does_not_is_left(routes: LearntRoutes, flow: Flow, settings: Settings, reason: str) -> None:
    decision = decided(LearntMesh(MESH, {"a": routes}), flow, settings)
    assert decision.action == "keep"
    assert reason in decision.reason


def test_the_mesh_at_work_is_no_change() -> None:
    decision = decided(running=True)
    assert decision.action == "keep"
    assert decision.strategy is None


def test_what_every_plan_pays_counts_on_both_sides() -> None:
    """Many rows of other relations make the same saving a small one."""
    flow = replace(FLOW, rates={**FLOW.rates, "b": 5_000_000.0})
    assert "ratio of 1.2 is wanted" in decided(flow=flow).reason
