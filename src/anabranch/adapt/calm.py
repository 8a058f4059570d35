"""Tells whether batches are like those measured last; then nothing needs measuring again.

Deciding must cost next to nothing where nothing changes, and measuring costs as much as a small batch. Counts are
compared instead: rows of each relation, and matches of each lookup. A count also differs by chance, the more the fewer
it counts. A single batch of few rows would look like a change all the time, so what chance explains is no change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import TypeAlias

from anabranch.stats.step import StepStatistics, merge

ALIKE = 1.2
"""The factor up to which counts of like batches may differ."""
CHANCE = 3.0
"""Standard deviations up to which a difference is chance: one count in 370 differs by more."""

Counts: TypeAlias = Mapping[object, tuple[float, float]]
"""What was counted, and out of how much: rows in so many seconds, matches of so many lookups."""


def counts(steps: Sequence[StepStatistics], seconds: float) -> Counts:
    """The counts of some batches that cover so much event time."""
    if not seconds:
        return {}
    step = merge(steps) if len(steps) > 1 else steps[0]
    found: dict[object, tuple[float, float]] = {name: (rows, seconds) for name, rows in step.rows_in.items()}
    for probe in step.probes:
        found[probe.join, probe.origin, probe.target] = probe.matches, probe.probes
    return found


def are_alike(now: Counts, known: Counts) -> bool:
    """True when the counts are what the known ones let expect, but for chance."""
    if now.keys() != known.keys():
        return False
    for name, (count, out_of) in now.items():
        known_count, known_out_of = known[name]
        expected = known_count / known_out_of * out_of if known_out_of else 0.0
        if abs(count - expected) > (ALIKE - 1) * expected + CHANCE * sqrt(max(expected, count)):
            return False
    return True
