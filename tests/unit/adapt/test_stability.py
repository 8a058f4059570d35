"""How long a change of plan may count on: as long as a phase has lasted at first, then what phases were like."""

from __future__ import annotations

import pytest

from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.stability import Phase, Stability
from anabranch.optimize.problem import resource_model
from anabranch.plan.text import parse
from tests.unit.adapt.simulated import QUERY, SECONDS, truth

ONE, OTHER = Knowledge({"a": 10.0}), Knowledge({"a": 30.0})


def after(stability: Stability, known: Knowledge, seconds: int, measured: float = 0.0) -> Stability:
    stability = stability.decided(known, measured)
    for _ in range(seconds):
        stability = stability.after(1.0)
    return stability


def test_while_little_is_known_a_phase_counts_for_as_long_as_it_has_lasted() -> None:
    first = after(Stability(), ONE, 20)
    assert (first.horizon(600.0), first.horizon(5.0), first.before) == (20.0, 5.0, None)
    stability = after(first, OTHER, 30)
    assert stability.horizon(600.0) == 30.0
    assert stability.before == ONE
    assert not stability.is_restless(600.0)


def test_a_change_before_any_decision_ends_a_phase_too() -> None:
    began = Stability().began(ONE, 12.0)
    assert began.began(OTHER, 3.0) == began
    assert after(began, OTHER, 0, measured=4.0).phases == (Phase(ONE, 8.0), Phase(OTHER, 4.0))


def test_the_odds_of_a_turn_back_are_even_until_phases_have_ended() -> None:
    stability = after(after(Stability(), ONE, 20), OTHER, 30)
    assert (stability.odds, after(stability, ONE, 20).odds) == (0.5, 1.0)


def test_then_half_of_what_is_left_of_a_usual_phase() -> None:
    stability = after(after(after(Stability(), ONE, 20), OTHER, 20), ONE, 4)
    assert stability.horizon(600.0) == pytest.approx(8.0)
    assert stability.is_restless(600.0)
    assert stability.horizon(5.0) == 5.0


def test_a_phase_that_outlasts_the_others_is_trusted_for_as_long_again() -> None:
    stability = after(after(after(Stability(), ONE, 20), OTHER, 20), ONE, 300)
    assert stability.horizon(600.0) == pytest.approx(300.0)
    assert not stability.is_restless(600.0)


def test_a_small_change_begins_no_phase_and_a_change_began_before_it_was_noticed() -> None:
    stability = after(after(Stability(), ONE, 20), Knowledge({"a": 12.0}), 5)
    assert stability.phases == (Phase(ONE, 25.0),)
    assert after(stability, OTHER, 0, measured=3.0).phases == (Phase(ONE, 22.0), Phase(OTHER, 3.0))


def test_plans_are_averaged_over_phases_by_their_length() -> None:
    plans = {text: parse(text) for text in ("((a b) c)", "(a (b c))")}
    views = {10.0: truth(0.0001, 0.01), 30.0: truth(0.01, 0.0001)}

    def model(known: Knowledge):  # type: ignore[no-untyped-def]
        return resource_model(QUERY.graph, views[known.rates["a"]], SECONDS)

    means = Stability((Phase(ONE, 30.0), Phase(OTHER, 10.0))).mean_costs(plans, model)
    apart = [model(known).price(plans["((a b) c)"]).cpu for known in (ONE, OTHER)]
    assert means["((a b) c)"].cpu == pytest.approx(0.75 * apart[0] + 0.25 * apart[1])
    assert means["((a b) c)"].cpu < means["(a (b c))"].cpu
