"""Meshes that are learnt while a query runs pass the gate of all plans, and are left if they break their promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.adapt.advisors.advisor import Suggestion
from anabranch.adapt.advisors.routes import RouteAdvisor
from anabranch.adapt.cost_trend import CostTrend
from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.gate import Gate
from anabranch.adapt.history import History, Observation, Promise
from anabranch.adapt.policy import Reason
from anabranch.adapt.rules import Criteria
from anabranch.adapt.settings import Settings
from anabranch.cost.steps import price_of_step
from anabranch.cost.units import ENGINE
from anabranch.cql import compile_query
from anabranch.plan.mesh import Plan, parse_mesh
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.stats.mesh.learnt import LearntMesh, LearntRoutes, Profiled
from anabranch.stats.step import ProbeStatistics, StateStatistics, StepStatistics
from tests.support.scripted import read_script

MESH = parse_mesh("mesh(a: b>c, c>b by (k <= 1.5 ? 0 : 1); b: a>c; c: a>b)")
MJOIN = parse("(a b c | a>b>c, b>a>c, c>a>b)")
ROUTES = LearntRoutes("two kinds of rows", (0.5, 0.5), (4e-6, 4e-6), 5e-6, 10e-6, 10e-6, certain_gain=1.0)
LEARNT = LearntMesh(MESH, {"a": ROUTES})
STEP = StepStatistics({"a": 10_000, "b": 10, "c": 10}, 100, states=(StateStatistics("a", 1_000, 1_000_000),))
CHANGED = Reason("statistics", "statistics changed by a factor of 2")


def the_query(condition: str = "") -> Query:
    script = read_script("\n".join(f"stream {name} (k bigint, v bigint)" for name in "abc"))
    windows = ", ".join(f"{name} [RANGE 10 SECONDS]" for name in "abc")
    return compile_query(f"SELECT a.k AS k FROM {windows} WHERE a.k = b.k AND a.k = c.k {condition}", script.catalog)


QUERY = the_query()


def advisor(gate: Gate | None = None, *, is_free: bool = True) -> RouteAdvisor:
    return RouteAdvisor(Settings(gate=gate or Gate()), Criteria(), is_free=is_free)


def history(step: StepStatistics = STEP, plan: Plan = MJOIN, batches: int = 1, query: Query = QUERY) -> History:
    """Batches of one second each."""
    now = replace(History.empty(query, None, ENGINE), passed=1_000.0)
    now = replace(now, trend=replace(now.trend, passed=1_000.0))
    for number in range(batches):
        now = now.after(Observation(BatchFacts(number, 1.0), plan, lambda: step))
    return now


def proposed(
    learnt: LearntMesh = LEARNT, step: StepStatistics = STEP, gate: Gate | None = None, plan: Plan = MJOIN
) -> Suggestion:
    return advisor(gate, is_free=False).propose(history(step, plan), CHANGED, learnt)


def test_a_mesh_that_saves_enough_is_taken_at_once_with_its_promise() -> None:
    found = proposed()
    assert found.decision.action == "migrate"
    assert found.decision.strategy == "none"
    assert found.decision.cost.cpu - found.decision.proposed_cost.cpu == pytest.approx(0.05)
    assert found.decision.to_json()["origin"] == "search"
    assert found.history.promise is not None
    assert found.history.promise.left == MJOIN
    assert found.history.promise.each < found.history.promise.before


@pytest.mark.parametrize(
    ("routes", "rows", "gate", "reason"),
    [
        (ROUTES, 500, Gate(), "0.005 are wanted"),
        (ROUTES, 10_000, Gate(ratio=3.0), "a ratio of 3 is wanted"),
        (replace(ROUTES, certain_gain=0.0), 10_000, Gate(), "saves no cpu"),
        (replace(ROUTES, running_seconds=5e-6), 10_000, Gate(), "saves no cpu"),
    ],
)
def test_one_that_does_not_is_not_taken(routes: LearntRoutes, rows: int, gate: Gate, reason: str) -> None:
    found = proposed(LearntMesh(MESH, {"a": routes}), replace(STEP, rows_in={"a": rows}), gate)
    assert found.decision.action == "keep"
    assert reason in found.decision.reason
    assert found.history.promise is None


def test_a_change_that_saves_too_little_of_a_whole_trigger_is_not_made() -> None:
    """It saves 50 ms of a batch: much of a trigger of 150 ms, nothing of one of ten seconds."""

    def action(trigger: float) -> str:
        seen = Observation(BatchFacts(0, 1.0, trigger=trigger), MJOIN, lambda: STEP)
        return advisor(is_free=False).propose(replace(history(), recent=(seen,)), CHANGED, LEARNT).decision.action

    assert action(0.15) == "migrate"
    assert action(10.0) == "keep"


def test_the_mesh_at_work_is_no_change() -> None:
    decision = proposed(plan=MESH).decision
    assert (decision.action, decision.strategy) == ("keep", None)


def test_what_every_plan_pays_counts_on_both_sides() -> None:
    """Many rows of other relations make the same saving a small one."""
    assert (
        "ratio of 1.2 is wanted" in proposed(step=replace(STEP, rows_in={"a": 10_000, "b": 5_000_000})).decision.reason
    )


def counted(matches: int) -> StepStatistics:
    """A mjoin in which a row of `a` meets so many rows at its first lookup."""
    probe = ProbeStatistics("(a b c)", "a", "b", 10_000, visited=10_000 * matches, matches=10_000 * matches)
    return replace(STEP, probes=(probe,))


def test_predicates_that_profiled_matches_have_passed_do_not_count_again() -> None:
    """Else a tree looks cheap behind a mesh whose lookups check predicates."""
    query = the_query("AND a.v > b.v")
    states = tuple(StateStatistics(name, 1_000, 8_000) for name in "abc")
    seen = history(replace(counted(50_000), states=states), MESH, query=query)
    learnt = replace(LEARNT, profiled=Profiled(2, 4, 1e-6, {"a b": 3.0, "b a": 3.0}))
    decision = advisor().propose(seen, CHANGED, learnt).decision
    assert decision.origin == "optimizer"
    assert decision.statistics.selectivities == {"a b": pytest.approx(0.003), "a.v > b.v": 1.0}


def test_profiles_are_asked_for_only_where_some_mesh_could_pay() -> None:
    def wants(seconds: float = 1_000.0, fruitless: int = 0, matches: int = 50) -> str:
        seen = replace(history(counted(matches)), passed=seconds, fruitless={"routes": fruitless})
        return advisor().wants(seen, CHANGED)

    assert wants() == "profile"
    assert wants(seconds=0.01) == "nothing"
    assert wants(fruitless=100_000) == "nothing"
    assert wants(matches=0) == "nothing"


# --- promises ---------------------------------------------------------------------------------------------------------


def running(promised: float, before: float, batches: int = 7) -> History:
    """A mesh whose rows cost more than promised, or less, from its first batch on."""
    seen = history(counted(50), MESH, batches=batches)
    each = price_of_step(counted(50), ENGINE) / sum(counted(50).rows_in.values())
    return replace(seen, promise=Promise(MESH, promised * each, MJOIN, before * each))


def test_a_mesh_that_costs_more_than_the_plan_before_it_is_left_for_that_plan() -> None:
    seen, routes = running(promised=0.3, before=0.5), advisor()
    reason = routes.occasion(seen)
    assert reason is not None
    assert routes.wants(seen, reason) == "search"
    search, is_long = routes.search(seen)
    assert not is_long
    found = routes.propose(seen, reason, search())
    assert (found.decision.action, found.decision.proposed) == ("migrate", MJOIN)
    assert "costs 2.00 times what it cost before the mesh; 0.60 times was promised" in found.decision.reason
    assert found.history.correction == pytest.approx(1 / 0.3)


def test_a_mesh_that_keeps_its_promise_stays() -> None:
    assert advisor().occasion(running(promised=0.9, before=2.0)) is None


def test_a_promise_is_held_against_the_first_batch_over_full_windows() -> None:
    filling = replace(history(batches=0), promise=running(0.3, 0.5).promise)
    filling = replace(filling, trend=CostTrend(window=10.0))
    seen = [filling := filling.after(one(number, counted(50))) for number in range(100, 112)]
    asked = [advisor().occasion(each) is not None for each in seen]
    assert asked == [False] * 10 + [True] * 2


def test_a_mesh_is_not_blamed_for_streams_that_change_later() -> None:
    seen = running(promised=0.9, before=2.0)
    for number in range(8, 12):
        seen = seen.after(one(number, counted(500)))
    assert seen.trend.recent[-1] > 2 * seen.trend.first
    assert advisor().occasion(seen) is None


def one(number: int, step: StepStatistics) -> Observation:
    return Observation(BatchFacts(number, 1.0), MESH, lambda: step)
