"""Meshes that were learnt while a query runs go through the gate of all plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.adapt.decision import Decision
from anabranch.adapt.experience import Experience
from anabranch.adapt.gate import Gate
from anabranch.adapt.routing import (
    AT_ONCE,
    Flow,
    could_pay,
    decide_mesh,
    decide_tree,
    is_worth_searching,
    price_of_search,
)
from anabranch.adapt.rules import BESIDE, Criteria, Staging
from anabranch.adapt.settings import Settings
from anabranch.cost.resources import Resources
from anabranch.cql import compile_query
from anabranch.plan.mesh import parse_mesh
from anabranch.plan.physical import mjoin
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.stats.mesh.learnt import LearntMesh, LearntRoutes, Profiled
from anabranch.stats.step import ProbeStatistics, StateStatistics, StepStatistics
from anabranch.testing.scripted import read_script

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


def counted_flow(matches: int) -> Flow:
    """A mjoin of three relations in which a row of `a` meets so many rows at its first lookup."""
    probes = (ProbeStatistics("(a b c)", "a", "b", 10_000, visited=10_000 * matches, matches=10_000 * matches),)
    return replace(FLOW, step=StepStatistics(rows_in={"a": 10_000, "b": 10, "c": 10}, probes=probes))


def the_query() -> Query:
    script = read_script("\n".join(f"stream {name} (k bigint)" for name in "abc"))
    windows = ", ".join(f"{name} [RANGE 10 SECONDS]" for name in "abc")
    return compile_query(f"SELECT a.k AS k FROM {windows} WHERE a.k = b.k AND a.k = c.k", script.catalog)


def test_predicates_that_profiled_matches_have_passed_do_not_count_again() -> None:
    """Else a tree looks cheap behind a mesh whose lookups check predicates."""
    script = read_script("\n".join(f"stream {name} (k bigint, v bigint)" for name in "abc"))
    windows = ", ".join(f"{name} [RANGE 10 SECONDS]" for name in "abc")
    text = f"SELECT a.k AS k FROM {windows} WHERE a.k = b.k AND a.v > b.v AND a.k = c.k"
    query = compile_query(text, script.catalog)
    states = tuple(StateStatistics(name, 1_000, 8_000) for name in "abc")
    flow = replace(FLOW, step=StepStatistics(rows_in={"a": 10_000, "b": 10, "c": 10}, states=states))
    learnt = replace(LEARNT, profiled=Profiled(2, 4, 1e-6, {"a b": 3.0, "b a": 3.0}))
    running = replace(decided(learnt, flow, running=True), cost=Resources(100.0, 1e6, 100.0))
    decision = decide_tree(running, learnt, flow, Settings(), Criteria(), query, Experience())
    assert decision.origin == "optimizer"
    assert decision.statistics.selectivities == {"a b": pytest.approx(0.003), "a.v > b.v": 1.0}


def test_each_fruitless_search_makes_the_next_one_dearer() -> None:
    prices = [price_of_search(BESIDE, the_query(), fruitless).cpu for fruitless in range(3)]
    assert prices == pytest.approx([0.06, 0.12, 0.18])
    assert price_of_search(Staging(), the_query(), 7) == AT_ONCE


def test_a_look_must_be_repaid_by_the_most_that_a_mesh_could_save() -> None:
    query, plan, flow = the_query(), parse("(a b c | a>b>c, b>a>c, c>a>b)"), counted_flow(50)

    def may_look(seconds: float, fruitless: int = 0) -> bool:
        settings = Settings(gate=Gate(horizon=seconds))
        return could_pay(plan, flow, query, settings, Criteria(), price_of_search(BESIDE, query, fruitless))

    assert not may_look(0.1)
    assert may_look(100.0)
    assert not may_look(100.0, fruitless=100_000)
    assert not could_pay(plan, counted_flow(0), query, Settings(), Criteria())


@pytest.mark.parametrize(("least", "worth"), [(1e-9, True), (1e-3, False)])
def test_nothing_is_searched_that_could_not_pass_the_gate(least: float, worth: bool) -> None:
    query, plan = the_query(), parse("(a b c | a>b>c, b>a>c, c>a>b)")
    routes = LearntRoutes("", (1.0,), (least,), least, least, least)
    ideal = LearntMesh(MESH, {"a": routes}, profiled=Profiled(2.0, 10.0, 1e-6))
    rest = (plan, counted_flow(50), query, Settings(), Criteria(), AT_ONCE)
    assert is_worth_searching(ideal, *rest) is worth
    # What was not measured cannot be held against it.
    assert is_worth_searching(replace(ideal, profiled=None), *rest)
