"""Drift: found when rows move between leaves or an operator changes, and not when chance alone explains it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.mesh.drift import DriftLimits, MeshUse, drifted
from anabranch.plan.token import Passed

BEFORE = MeshUse((7000, 2000, 1000), {(0, "b"): Passed(10_000, 1000), (1, "b"): Passed(10_000, 9000)})


def test_rows_that_move_to_another_leaf_are_drift() -> None:
    now = MeshUse((450, 500, 50), BEFORE.passed)
    assert drifted(BEFORE, now) == "leaf 1 of the classifier gets 50% of the rows, and got 20%"
    assert drifted(BEFORE, MeshUse((650, 250, 100), BEFORE.passed)) is None, "a twentieth of the rows is no drift"
    assert drifted(BEFORE, MeshUse((4, 5, 1), BEFORE.passed)) is None, "ten rows prove nothing"
    assert drifted(BEFORE, MeshUse((0, 0, 0))) is None
    assert drifted(BEFORE, MeshUse((1, 1))) == "the classifier has 2 leaves and had 3"


def test_an_operator_that_lets_more_or_less_through_is_drift() -> None:
    for rows_out, words in ((400, "0.4"), (10, "0.01")):
        now = MeshUse(BEFORE.leaves, {(0, "b"): Passed(1000, rows_out), (1, "b"): Passed(1000, 900)})
        assert drifted(BEFORE, now) == f"operator 'b' gives {words} rows per row on route 0, and gave 0.1"
    assert drifted(BEFORE, MeshUse(BEFORE.leaves, {(0, "b"): Passed(1000, 120)})) is None
    assert drifted(BEFORE, MeshUse(BEFORE.leaves, {(0, "b"): Passed(10, 4)})) is None, "too few rows"
    assert drifted(BEFORE, MeshUse(BEFORE.leaves, {(2, "new"): Passed(1000, 0)})) is None, "nothing to compare with"


def test_the_worst_change_is_named() -> None:
    now = MeshUse(BEFORE.leaves, {(0, "b"): Passed(10_000, 2000), (1, "b"): Passed(10_000, 1000)})
    assert "on route 1" in str(drifted(BEFORE, now))


@given(st.integers(0, 10**6), st.integers(10, 5000), st.integers(10, 5000))
def test_two_looks_at_the_same_stream_are_not_drift(seed: int, earlier: int, later: int) -> None:
    rng = np.random.default_rng(seed)

    def look(rows: int) -> MeshUse:
        leaves = rng.multinomial(rows, [0.6, 0.3, 0.1])
        passed = {(0, "b"): Passed(rows, int(rng.poisson(0.3, rows).sum()))}
        return MeshUse(tuple(leaves.tolist()), passed)

    assert drifted(look(earlier), look(later)) is None


@pytest.mark.parametrize("limits", [DriftLimits(share=0.4), DriftLimits(certainty=1e9)])
def test_limits_may_be_widened(limits: DriftLimits) -> None:
    assert drifted(BEFORE, MeshUse((400, 500, 100)), limits) is None
