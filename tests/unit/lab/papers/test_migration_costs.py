"""The papers' models against numbers worked out by hand from the printed equations."""

from __future__ import annotations

import pytest

from anabranch.errors import PlanError
from anabranch.plan.text import parse
from lab.papers.migration_costs import (
    Streams,
    moving_state_length,
    parallel_track_length,
)

OLD, NEW = parse("(((a b) c) d)"), parse("(((b c) d) a)")
PAIRS = {("a", "b"): 0.1, ("b", "c"): 0.05, ("c", "d"): 0.02}
STREAMS = Streams({"a": 10.0, "b": 20.0, "c": 30.0, "d": 40.0}, 2.0, PAIRS, compare=1e-3, insert=1e-4)


def test_the_length_of_moving_state_is_equation_16_1() -> None:
    b, c, d, w, bc, bcd = 20.0, 30.0, 40.0, 2.0, 0.05, 0.02
    expected = b * c * w**2 * (1e-3 + 1e-4 * bc) + 2 * b * c * d * w**3 * (1e-3 * bc + 1e-4 * bc * bcd)
    assert moving_state_length(OLD, NEW, STREAMS) == pytest.approx(expected)


def test_states_that_both_plans_keep_cost_nothing() -> None:
    assert moving_state_length(OLD, parse("(((b a) c) d)"), STREAMS) == 0


def test_one_window_for_one_join_and_two_above() -> None:
    assert parallel_track_length(parse("(a b c d)"), 2.0) == 2.0
    assert parallel_track_length(OLD, 2.0) == 4.0


def test_the_models_are_for_binary_trees() -> None:
    with pytest.raises(PlanError, match=r"\(b c d\)"):
        moving_state_length(OLD, parse("((b c d) a)"), STREAMS)
