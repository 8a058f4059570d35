"""The migration experiments on small inputs: what must hold of the figures, whatever the numbers."""

from __future__ import annotations

import pytest

from lab.migration_length import measure, set_1
from lab.migration_low_high import CONFIGURATIONS, follow


def test_parallel_tracks_last_a_window_and_by_the_papers_rule_two() -> None:
    lengths = measure(set_1(1000.0), runs=2, seed=1)
    assert lengths.parallel == pytest.approx(1.0, rel=0.25)
    assert lengths.parallel < lengths.parallel_by_newest <= lengths.predicted_parallel == 2.0


def test_moving_state_takes_more_than_its_share_with_the_window() -> None:
    short, long = (measure(set_1(window), runs=3, seed=1) for window in (1000.0, 3000.0))
    assert long.moving > 5 * short.moving


def test_every_case_gives_the_same_results() -> None:
    totals = {
        case: follow(CONFIGURATIONS["low"], case, seconds=14.0, seed=2)
        for case in ("moving state", "parallel track", "old only", "new only")
    }
    counts = {case: sum(moment.results for moment in course.moments) for case, course in totals.items()}
    assert len(set(counts.values())) == 1
    assert totals["moving state"].silence > 0
    assert totals["parallel track"].silence == 0
    assert totals["parallel track"].ended > totals["moving state"].ended
