"""Choosing: a mesh written out, learnt from a sample or left for the run to learn; limits that no plan keeps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from anabranch import cql
from anabranch.adapt.facts import REMEMBERED
from anabranch.adapt.settings import Settings
from anabranch.calibrate.engine_costs import stream
from anabranch.errors import NoFeasiblePlan, PlanError
from anabranch.lang.catalog import Catalog
from anabranch.optimize.explain import explanation
from anabranch.optimize.proposals import kind
from anabranch.plan.mesh import parse_mesh
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query_set import ALONE, Plans, alone
from anabranch.plan.text import parse
from anabranch.planning.choosing import MOST_RIVALS, change_rules, decide, first_plan, headline, learns, proposal, taken
from anabranch.planning.explain import Explanation
from anabranch.planning.mesh_offer import Learn
from anabranch.planning.options import PlanOptions
from anabranch.run.work import Work
from anabranch.stats.mesh.learnt import LearntMesh, LearntRoutes
from anabranch.stats.view import FixedStatistics, Known

TEXT = """SELECT a.x AS x FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS], c [RANGE 10 SECONDS]
    WHERE a.x = b.x AND a.y = c.y"""
MESH = "mesh(a: b>c, c>b by (x <= 1.5 ? 0 : 1); b: a>c; c: a>b)"
BUSY = PlanOptions(
    given=FixedStatistics(rates=dict.fromkeys("abc", 50_000.0), selectivities={"a b": 1e-6, "a c": 1e-6, "b c": 1.0})
)
CATALOG = Catalog()
for name in "abc":
    CATALOG.register(stream(name, ("x", "y", "v")))
QUERY = cql.compile_query(TEXT, CATALOG)


def learning(gain: float, mesh: str = MESH) -> Learn:
    def learn(held: Mapping[str, float], rival: PhysicalPlan) -> LearntMesh:
        assert kind(rival) == "mjoin"
        assert held["a"] == pytest.approx(BUSY.given.rates["a"] * 10)
        seconds = 1e-6 / (1 + gain)
        routes = LearntRoutes("two kinds of rows", (0.6, 0.4), (seconds, seconds), seconds, 1e-6, 1e-6, gain)
        return LearntMesh(parse_mesh(mesh), {"a": routes, "b": routes, "c": routes})

    return learn


def never(held: Mapping[str, float], rival: PhysicalPlan) -> LearntMesh:
    raise AssertionError("nothing should be learnt")


def test_auto_takes_a_mesh_that_passes_the_gate() -> None:
    choice = decide(QUERY, BUSY, learn=learning(9.0))
    assert str(first_plan(choice)) == MESH
    assert headline(choice).startswith(f"plan {MESH}: saves ")
    assert learns(BUSY, choice)


def test_the_record_of_a_first_plan_has_its_reason_and_the_plans_that_lost() -> None:
    choice = decide(QUERY, BUSY, learn=learning(9.0))
    record = taken(choice, first_plan(choice))
    assert (str(record.plan), record.query) == (MESH, None)
    assert record.reason.startswith("saves ")
    assert 0 < len(record.rivals) <= MOST_RIVALS
    assert record.plan not in [rival.plan for rival in record.rivals]
    costs = [rival.cost.cpu for rival in record.rivals]
    assert costs == sorted(costs)
    assert record.rivals[0].reason == "the best plan that is not a mesh"
    # Chosen together with other queries, a plan may be another.
    other = record.rivals[0].plan
    assert taken(choice, other, "alerts").reason == "chosen together with the plans of the other queries"


def test_a_restart_records_the_plan_that_it_resumes() -> None:
    choice = decide(QUERY, BUSY)
    record = taken(choice, first_plan(choice))
    work = Work(alone(QUERY), Plans({ALONE: record.plan}), taken=(record,))
    assert work.starts(0) == [record]
    left = parse("((b c) a)")
    (resumed,) = replace(work, plans=Plans({ALONE: left})).starts(7)
    assert (resumed.batch, resumed.plan, resumed.rivals) == (7, left, ())
    assert resumed.reason == "the plan of the last batch before the restart"


def test_a_long_mesh_is_counted_where_a_line_is_short() -> None:
    tests = "(x <= 1.5 ? (x <= 0.5 ? 0 : 1) : (x <= 2.5 ? (x <= 2.25 ? 0 : 1) : (x <= 3.5 ? 0 : 1)))"
    choice = decide(QUERY, BUSY, learn=learning(9.0, f"mesh(a: b>c, c>b by {tests}; b: a>c; c: a>b)"))
    assert headline(choice).startswith("plan mesh of 4 routes: saves ")
    text = Explanation(TEXT, CATALOG).text("choice", lambda: choice)
    assert text.split("considered\n")[1].split("\n")[1].startswith("  mesh of 4 routes  ")
    assert f"plan {first_plan(choice)}" in text


def test_auto_leaves_a_mesh_that_gains_too_little_and_says_so() -> None:
    choice = decide(QUERY, BUSY, learn=learning(0.05))
    assert str(first_plan(choice)) != MESH
    assert choice.mesh is not None
    assert choice.mesh.cost is not None
    assert "a ratio of 1.2 is wanted" in choice.mesh.reason or "saves no cpu" in choice.mesh.reason
    assert not learns(BUSY, choice)


def test_auto_learns_nothing_where_no_mesh_could_pass() -> None:
    slow = replace(BUSY, given=replace(BUSY.given, rates=dict.fromkeys("abc", 10.0)))
    choice = decide(QUERY, slow, learn=never)
    assert choice.mesh is not None
    assert choice.mesh.reason.startswith("not learnt: even with free routes it saves ")


@pytest.mark.parametrize(
    "plan_options", [replace(BUSY, plan="tree"), BUSY.with_hints(keep=["a b"]), replace(BUSY, plan="mjoin")]
)
def test_a_plan_that_is_wished_for_leaves_no_room_for_a_mesh(plan_options: PlanOptions) -> None:
    assert decide(QUERY, plan_options, learn=never).mesh is None


def test_plan_mesh_takes_any_mesh_that_gains() -> None:
    plan_options = replace(BUSY, plan="mesh")
    assert str(first_plan(decide(QUERY, plan_options, learn=learning(0.03)))) == MESH
    choice = decide(QUERY, plan_options, learn=learning(0.0, "mesh(a: b>c; b: a>c; c: a>b)"))
    assert choice.mesh is not None
    assert not choice.mesh.is_taken
    assert learns(plan_options, choice)


def test_without_a_sample_it_is_learnt_while_running() -> None:
    text = Explanation(TEXT, CATALOG).text("choice", lambda: decide(QUERY, replace(BUSY, plan="mesh")))
    assert "mesh not taken: no sample" in text
    assert "learns a mesh while it runs" in text


def test_a_mesh_is_explained_with_tree_routes_shares_and_costs() -> None:
    text = Explanation(TEXT, CATALOG).text("choice", lambda: decide(QUERY, BUSY, learn=learning(9.0)))
    assert f"plan {MESH}" in text
    assert "mesh taken: saves " in text
    assert "  +900.0% over the best single routes, by the sample" in text
    assert "    classifier (x <= 1.5 ? 0 : 1)" in text
    assert "    route 0: b > c (60% of the rows, 0.1 µs each)" in text
    assert "    0.1 µs a row, with one route 1 µs; two kinds of rows" in text
    headings, first, second = text.split("considered\n")[1].split("\n")[:3]
    assert "verdict" in headings
    assert second.endswith("the best plan without routes")
    assert first.startswith(f"  {MESH}  mesh")


def test_a_mesh_that_is_written_out_is_checked_and_explained() -> None:
    choice = decide(QUERY, replace(BUSY, plan=MESH))
    assert str(first_plan(choice)) == MESH
    assert "route 1: c > b" in Explanation(TEXT, CATALOG).text("physical", lambda: choice)
    with pytest.raises(PlanError, match="does not probe every other relation once"):
        decide(QUERY, replace(BUSY, plan="mesh(a: b; b: a>c; c: a>b)"))


@pytest.mark.parametrize(("cpu", "memory"), [(1e-3, 1e3), (1e-3, 1e12), (1e3, 1e3)])
def test_with_the_limits_that_an_error_names_there_is_a_plan(cpu: float, memory: float) -> None:
    # The hint named one limit only, and whoever raised it was told of the other next.
    plan_options = replace(BUSY, cpu=cpu, memory=memory)
    with pytest.raises(NoFeasiblePlan) as caught:
        proposal(decide(QUERY, plan_options))
    named = dict(re.findall(r"(cpu|memory): ([^,}]+)", caught.value.hint or ""))
    raised = plan_options.with_limits(float(named["cpu"]) if "cpu" in named else None, named.get("memory"))
    assert proposal(decide(QUERY, raised)).plan


def test_a_query_that_adapts_knows_what_was_sampled_before_the_start() -> None:
    """What its plan does not measure was taken for unknown, so a guess decided against the sample."""
    seen = FixedStatistics(rates={"a": 7.0}, selectivities={"a b": 1e-6, "a c": 0.5}, provenance="sampled")
    plan_options = PlanOptions(given=FixedStatistics(selectivities={"a c": 0.25}))
    known = change_rules(QUERY, plan_options, decide(QUERY, plan_options, seen=seen), adapt=Settings()).criteria.given
    assert known.rate("a", "a") == Known(7.0, "sampled")
    assert known.pair_selectivity("a", "b") == Known(1e-6, "sampled")
    assert known.pair_selectivity("a", "c") == Known(0.25, "given")


def test_a_free_plan_that_adapts_looks_for_a_mesh_whatever_it_began_with() -> None:
    choice = decide(QUERY, BUSY)
    assert change_rules(QUERY, BUSY, choice).first_search is None
    assert change_rules(QUERY, BUSY, choice, adapt=Settings()).first_search == REMEMBERED
    for plan_options in (replace(BUSY, plan="tree"), replace(BUSY, forbid=("tree",)), replace(BUSY, keep=("a b",))):
        assert change_rules(QUERY, plan_options, decide(QUERY, plan_options), adapt=Settings()).first_search is None
    wanted = replace(BUSY, plan="mesh")
    assert change_rules(QUERY, wanted, decide(QUERY, wanted)).first_search == REMEMBERED


def test_a_latency_limit_admits_only_plans_that_process_a_batch_in_time() -> None:
    costs = sorted(each.cost.cpu for each in proposal(decide(QUERY, BUSY, batch=2.0)).considered)
    cores = (costs[0] + costs[-1]) / 2
    assert costs[0] < cores < 1
    choice = decide(QUERY, replace(BUSY, latency=2.0 * (1 + cores)), batch=2.0)
    found = proposal(choice)
    assert choice.budget.latency_of(found.cost) <= 2.0 * (1 + cores)
    over = [each for each in found.considered if each.standing == "over"]
    assert over
    assert all(each.cost.cpu > cores and "latency is over" in each.reason for each in over)
    assert f"budget {2.0 * (1 + cores):g} s of latency" in explanation(choice)


def test_a_latency_that_no_plan_keeps_is_named_with_a_remedy() -> None:
    with pytest.raises(NoFeasiblePlan, match=r"no plan fits within 'limits\.latency'") as raised:
        proposal(decide(QUERY, replace(BUSY, latency=1.0), batch=2.0))
    assert "batches come every 2 s" in (raised.value.detail or "")
    assert "set a shorter trigger" in (raised.value.hint or "")
