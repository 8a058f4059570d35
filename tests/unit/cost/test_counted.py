"""A plan in its steady state costs by its counts what the model says, and a plan that does more work costs more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.cost.counted import counted_cpu
from anabranch.cost.resources import with_default_orders
from anabranch.optimize.problem import resource_model
from anabranch.plan.mesh import parse_mesh
from anabranch.plan.text import parse
from anabranch.stats.step import ProbeStatistics, StateStatistics, StepStatistics
from tests.unit.adapt.simulated import QUERY, SECONDS, steady_step, truth

KNOWN = truth(0.0002, 0.001)
MODEL = resource_model(QUERY.graph, KNOWN, SECONDS)


@pytest.mark.parametrize("text", ["(a b c)", "(a b c | a>c>b, b>c>a, c>a>b)", "((a b) c)", "(a (b c))"])
def test_counts_of_a_steady_plan_cost_what_the_model_says(text: str) -> None:
    plan = with_default_orders(parse(text), QUERY.graph)
    counted = counted_cpu(plan, steady_step(QUERY, plan, KNOWN), 1, SECONDS, MODEL, QUERY.graph)
    # A simulated lookup passes no candidate that does not match.
    assert counted == pytest.approx(MODEL.price(plan).cpu, rel=0.1)


def test_a_badly_ordered_mjoin_is_not_charged_as_the_best_one() -> None:
    good, bad = parse("(a b c | a>b>c, b>a>c, c>b>a)"), parse("(a b c | a>c>b, b>c>a, c>a>b)")
    costs = [counted_cpu(p, steady_step(QUERY, p, KNOWN), 1, SECONDS, MODEL, QUERY.graph) for p in (good, bad)]
    assert costs[1] > 10 * costs[0]


def test_a_mesh_is_charged_its_lookups_and_its_calls() -> None:
    probes = (ProbeStatistics("mesh", "a", "b", 1000, 0, 500, 400, 400), ProbeStatistics("mesh", "a", "c", 400))
    states = tuple(StateStatistics(name, 100, 1, 1000) for name in "abc")
    step = StepStatistics({"a": 1000, "b": 1000, "c": 1000}, 10, probes, states)
    one = parse_mesh("mesh(a: b>c; b: a>c; c: b>a)")
    two = parse_mesh("mesh(a: b>c, c>b by (l <= 3.5 ? 0 : 1); b: a>c; c: b>a)")
    units = MODEL.units

    def cost(mesh: object, seen: StepStatistics, batches: int = 1) -> float:
        return counted_cpu(mesh, seen, batches, 1.0, MODEL, QUERY.graph)  # type: ignore[arg-type]

    assert cost(two, step) - cost(one, step) == pytest.approx(2 * units.call + 2000 * units.link)
    asking = parse_mesh("mesh(a: c?>b>c; b: a>c; c: b>a)")
    # c is asked by the column of a, and probed by those of a and b; a call more.
    assert cost(asking, step) - cost(one, step) == pytest.approx(units.call + 1000 * units.link)
    question = ProbeStatistics("mesh", "a", "c?", 1000, 0, 0, 0, 300)
    asked = replace(step, probes=(*probes, question))
    passing = 300 * (units.match + units.match_relation)
    assert cost(asking, asked) - cost(asking, step) == pytest.approx(1000 * units.probe + passing)
    assert cost(one, step, 3) - cost(one, step) == pytest.approx(2 * 9 * units.call)
    more = replace(step, probes=(replace(probes[0], probes=2000), probes[1]))
    assert cost(one, more) - cost(one, step) == pytest.approx(1000 * units.probe)
