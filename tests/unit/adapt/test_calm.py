"""Batches like those measured last need no measuring; chance is no change, and a change is none of chance."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.adapt.calm import are_alike, counts
from anabranch.stats.step import ProbeStatistics, StepStatistics


def batch(rows: int, matches: int) -> StepStatistics:
    return StepStatistics({"a": rows, "b": rows}, probes=(ProbeStatistics("(a b)", "a", "b", rows, 0, 0, matches),))


KNOWN = counts([batch(1000, 60)] * 8, 8.0)


def test_few_matches_that_differ_by_chance_are_alike() -> None:
    """A factor alone would call one in ten of these batches a change."""
    drawn = np.random.default_rng(1).poisson(60, 200)
    assert sum(max(60 / matches, matches / 60) > 1.2 for matches in drawn) >= 15
    assert sum(not are_alike(counts([batch(1000, int(matches))], 1.0), KNOWN) for matches in drawn) == 0


@pytest.mark.parametrize("changed", [batch(1500, 90), batch(1000, 120), batch(1000, 5), batch(400, 24)])
def test_a_change_is_seen_in_one_batch(changed: StepStatistics) -> None:
    assert not are_alike(counts([changed], 1.0), KNOWN)


def test_a_change_that_hides_in_one_batch_shows_in_several() -> None:
    assert are_alike(counts([batch(1000, 90)], 1.0), KNOWN)
    assert not are_alike(counts([batch(1000, 90)] * 8, 8.0), KNOWN)


def test_lookups_of_another_plan_are_not_alike() -> None:
    assert not are_alike(counts([StepStatistics({"a": 1000, "b": 1000})], 1.0), KNOWN)
    assert counts([batch(1, 1)], 0.0) == {}
