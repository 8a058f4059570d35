"""How long a change of plan may count on: as long as a phase has lasted at first, then what phases were like."""

from __future__ import annotations

import pytest

from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.stability import Phase, Stability

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


def test_then_half_of_what_is_left_of_a_usual_phase() -> None:
    stability = after(after(after(Stability(), ONE, 20), OTHER, 20), ONE, 4)
    assert stability.horizon(600.0) == pytest.approx(8.0)
    assert stability.horizon(5.0) == 5.0


def test_a_phase_that_outlasts_the_others_is_trusted_for_as_long_again() -> None:
    stability = after(after(after(Stability(), ONE, 20), OTHER, 20), ONE, 300)
    assert stability.horizon(600.0) == pytest.approx(300.0)


def test_a_small_change_begins_no_phase_and_a_change_began_before_it_was_noticed() -> None:
    stability = after(after(Stability(), ONE, 20), Knowledge({"a": 12.0}), 5)
    assert stability.phases == (Phase(ONE, 25.0),)
    assert after(stability, OTHER, 0, measured=3.0).phases == (Phase(ONE, 22.0), Phase(OTHER, 3.0))
