"""Tells whether batches are like those measured last; then nothing needs measuring again.

Deciding must cost next to nothing where nothing changes, and measuring costs as much as a small batch. Counts are
compared instead: rows of each relation, and matches of each lookup. A count also differs by chance, the more the fewer
it counts. A single batch of few rows would look like a change all the time, so what chance explains is no change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import TypeAlias

from anabranch.stats.step import StepStatistics

ALIKE = 1.2
"""The factor up to which counts of like batches may differ."""
CHANCE = 3.0
"""Standard deviations up to which a difference is chance: one count in 370 differs by more."""

Counts: TypeAlias = Mapping[object, tuple[float, float]]
"""What was counted, and out of how much: rows in so many seconds, matches of so many lookups."""


@dataclass(frozen=True)
class Calm:
    """How long a loop may be left alone."""

    silent: int = 0
    """Batches in which it would decide nothing, whatever they bring."""
    lasted: int = 0
    """Batches in which the streams have been what they were when measured last."""
    usual: Counts = field(default_factory=dict)
    """What was counted then."""
    waiting: int = 0
    """Batches in which it would decide nothing unless its plan becomes dear."""
    bound: float = 0.0
    """Seconds of a core for a row, beyond which its plan is dear."""
    allowed: float = inf
    """Seconds of a core that another plan might not take, up to which a decision does not pay."""


def counts(steps: Sequence[StepStatistics], seconds: float) -> Counts:
    """The counts of some batches that cover so much event time."""
    if not seconds:
        return {}
    rows: dict[str, int] = {}
    found: dict[object, tuple[float, float]] = {}
    for step in steps:
        for name, count in step.rows_in.items():
            rows[name] = rows.get(name, 0) + count
        for probe in step.probes:
            key = probe.join, probe.origin, probe.target
            matches, probes = found.get(key, (0, 0))
            found[key] = matches + probe.matches, probes + probe.probes
    return {**found, **{name: (count, seconds) for name, count in rows.items()}}


def are_alike(now: Counts, known: Counts) -> bool:
    """True when the counts are what the known ones let expect, but for chance."""
    if now.keys() != known.keys():
        return False
    for name, (count, out_of) in now.items():
        known_count, known_out_of = known[name]
        expected = known_count / known_out_of * out_of if known_out_of else 0.0
        if not is_near(count, expected):
            return False
    return True


def is_near(count: float, expected: float) -> bool:
    """True when a count is what was expected, but for chance."""
    return abs(count - expected) <= (ALIKE - 1) * expected + CHANCE * sqrt(max(expected, count))
