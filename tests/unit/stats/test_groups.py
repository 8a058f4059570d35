"""Numbers of groups from numbers of different rows, and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.stats.groups import groups_behind, share_left


@given(st.floats(2, 1e5), st.floats(10, 1e5))
def test_the_groups_behind_what_is_left_are_those_it_was_left_by(groups: float, rows: float) -> None:
    left = rows * share_left(groups, rows)
    if left < rows - 0.5 and left < 0.999 * groups:
        assert groups_behind(rows, left) == pytest.approx(groups, rel=0.02)


def test_rows_drawn_at_random_tell_their_groups() -> None:
    drawn = np.random.default_rng(1).integers(0, 5_000, 3_000)
    assert groups_behind(3_000.0, float(len(np.unique(drawn)))) == pytest.approx(5_000, rel=0.1)


def test_rows_of_which_no_two_agree_tell_of_many_groups() -> None:
    assert groups_behind(1_000.0, 1_000.0) > 400_000
    assert share_left(groups_behind(1_000.0, 1_000.0), 1_000.0) > 0.999
