"""Streams that change in four ways, for the experiments on policies: never, periodically, at random and in bursts.

Three streams in a chain, a to b to c. What changes is how many partners a row of b meets in a and in c, so every plan
is the best one at some time. Intervals are in windows, because a window is how long old rows take to leave.

- *never*: the two fan-outs stay.
- *periodic*: they change places after every interval.
- *random*: after times that are drawn (exponentially, the interval is their mean) both are drawn anew, each between a
  fifth and four on a logarithmic scale.
- *bursts*: they change places for a fifth of an interval, and then back; bursts begin after times that are drawn alike.

Invariant: the fan-outs of a batch follow from the seed, the kind of change and the interval alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from lab.regret_workloads import INTEGERS, WINDOW, FanOuts, Workload, chain, chained

STREAMS = "abc"
LOW, HIGH = 0.2, 4.0
"""Partners that a row meets in a window; those of the swap in the regret suite."""
FIRST, SECOND = (LOW, HIGH), (HIGH, LOW)
BURST = 0.2
"""The length of a burst, in intervals."""

Change: TypeAlias = Literal["never", "periodic", "random", "bursts"]
Pair: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Pattern:
    """A kind of change, and its mean interval in windows."""

    change: Change
    windows: float = 0.0

    @property
    def name(self) -> str:
        return self.change if self.change == "never" else f"{self.change} {self.windows:g} W"

    @property
    def interval(self) -> int:
        """Batches."""
        return max(1, round(self.windows * WINDOW))

    def fan_outs(self, seed: int, batches: int) -> list[Pair]:
        """The fan-outs of every batch."""
        rng = np.random.default_rng((seed, CHANGES.index(self.change), self.interval))
        match self.change:
            case "never":
                return [FIRST] * batches
            case "periodic":
                return [SECOND if number // self.interval % 2 else FIRST for number in range(batches)]
            case "random":
                return self._filled(rng, batches, lambda: [(drawn(rng), drawn(rng))])
            case "bursts":
                length = max(1, round(BURST * self.interval))
                return self._filled(rng, batches, lambda: [FIRST], [SECOND] * length)

    def _filled(
        self, rng: np.random.Generator, batches: int, calm: Callable[[], list[Pair]], after: Sequence[Pair] = ()
    ) -> list[Pair]:
        """Stretches of drawn lengths, each followed by the same few batches; the first has the first fan-outs."""
        found: list[Pair] = []
        while len(found) < batches:
            length = max(1, round(rng.exponential(self.interval)))
            found += (calm() if found else [FIRST]) * length + list(after)
        return found[:batches]

    def workload(self, seed: int, batches: int) -> Workload:
        """The streams, for a run of so many batches."""
        return chain_of(self.name, STREAMS, self.fan_outs(seed, batches))


CHANGES: tuple[Change, ...] = ("never", "periodic", "random", "bursts")


def patterns(intervals: Sequence[float]) -> tuple[Pattern, ...]:
    """All kinds of change at these intervals."""
    return (Pattern("never"), *(Pattern(change, each) for change in CHANGES[1:] for each in intervals))


def chain_of(name: str, streams: str, fan_outs: Sequence[tuple[float, ...]]) -> Workload:
    """Streams in a chain, with the fan-outs of every batch of a run."""
    drawing = chained(streams, by_batch(fan_outs))
    return Workload(name, "changing", "", chain(streams), INTEGERS, drawing, tuple(streams))


def by_batch(fan_outs: Sequence[tuple[float, ...]]) -> FanOuts:
    """The fan-outs of a run of as many batches, by the share of it."""
    return lambda share: fan_outs[min(len(fan_outs) - 1, round(share * len(fan_outs)))]


def drawn(rng: np.random.Generator) -> float:
    """A fan-out, evenly on a logarithmic scale."""
    return float(LOW * (HIGH / LOW) ** rng.random())
