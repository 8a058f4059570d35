"""What was counted corrects the model, also while windows fill; an error that all plans share decides nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.adapt.experience import Experience, as_filled
from anabranch.cost.resources import with_default_orders
from anabranch.optimize.problem import resource_model
from anabranch.plan.text import parse
from tests.unit.adapt.simulated import QUERY, SECONDS, chain, steady_step, truth

KNOWN = truth(0.0002, 0.001)
MODEL = resource_model(QUERY.graph, KNOWN, SECONDS)


@pytest.mark.parametrize("text", ["(a b c)", "((a b) c)", "(a (b c))"])
@pytest.mark.parametrize("passed", [2, 5, 10])
def test_counts_of_windows_that_fill_are_held_against_windows_as_full(text: str, passed: int) -> None:
    """After so many seconds a window of ten seconds finds what one of that length would find."""
    plan = with_default_orders(parse(text), QUERY.graph)
    step = steady_step(chain(window=passed), plan, KNOWN)
    held = round(1000 * (passed + SECONDS / 2))  # rows of a batch meet half of it
    states = tuple(replace(state, rows=held) if state.state in "abc" else state for state in step.states)
    step = replace(step, states=states)
    found = Experience().after(plan, [step], SECONDS, MODEL, QUERY.graph)
    assert found.factors[str(plan)] == pytest.approx(1.0, rel=0.15)


def test_a_full_window_is_as_long_as_it_says_and_a_filling_one_as_what_it_holds() -> None:
    full = steady_step(QUERY, parse("(a b c)"), KNOWN)
    assert as_filled(MODEL, full, 1, SECONDS).estimates.windows == (10.0, 10.0, 10.0)
    half = steady_step(chain(window=4), parse("(a b c)"), KNOWN)
    windows = as_filled(MODEL, half, 1, SECONDS).estimates.windows
    assert list(windows) == pytest.approx([4.5] * 3)  # a state holds its window and a batch


def test_a_plan_that_never_ran_gets_the_factor_of_the_one_that_runs() -> None:
    ran, other = (with_default_orders(parse(text), QUERY.graph) for text in ("((a b) c)", "(a (b c))"))
    step = steady_step(QUERY, ran, KNOWN)
    dear = replace(step, probes=tuple(replace(probe, visited=50 * probe.visited) for probe in step.probes))
    found = Experience().after(ran, [dear], SECONDS, MODEL, QUERY.graph)
    factor = found.factors[str(ran)]
    assert factor > 1.5
    base = MODEL.base.cpu
    assert found.price(other, MODEL, ran).cpu - base == pytest.approx(factor * (MODEL.price(other).cpu - base))
