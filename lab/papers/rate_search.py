"""Rate-based choice among binary trees (Viglas and Naughton 2002): most results by a time, or earliest n results.

Two exact searches judge every tree by the integral of its output rate and are meant as the reference; two heuristics
judge by local estimates. Local rate maximisation builds the tree bottom up over sets of streams, keeping for each set
the one with the largest estimate; local time minimisation wants the tree whose slowest part is done first. All but
local rate maximisation look at every tree: (2n - 3)!! of them, so `MOST_TREES` bounds the streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from anabranch.errors import PlanError
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan
from lab.papers.rate_model import RateModel, join_rate, local_time, outputs, time_to

MOST_TREES = 8


@dataclass(frozen=True)
class Ranked:
    """A tree and the number it was ranked by."""

    plan: PhysicalPlan
    value: float


def most_results_by(model: RateModel, t: float, *, steps: int = 400) -> list[Ranked]:
    """All trees, the one with the most results by time t first."""
    times = np.linspace(0.0, t, steps)
    ranked = [Ranked(plan, float(outputs(plan, model, times)[-1])) for plan in trees(tuple(model.streams))]
    return sorted(ranked, key=lambda r: (-r.value, str(r.plan)))


def first_to(model: RateModel, results: float, *, horizon: float, steps: int = 1000) -> list[Ranked]:
    """All trees, by rising time to so many results."""
    plans = trees(tuple(model.streams))
    ranked = [Ranked(plan, time_to(plan, model, results, horizon=horizon, steps=steps)) for plan in plans]
    return sorted(ranked, key=lambda r: (r.value, str(r.plan)))


def maximise_local_rate(model: RateModel, t: float) -> Ranked:
    """The tree that local rate maximisation builds for the time up to t."""
    names = tuple(model.streams)
    best: dict[frozenset[str], Ranked] = {frozenset({n}): Ranked(Leaf(n), model.streams[n].rate) for n in names}
    for size in range(2, len(names) + 1):
        for chosen in combinations(names, size):
            candidates = []
            for left, right in _splits(chosen):
                one, other = best[frozenset(left)], best[frozenset(right)]
                handling = model.handling(left, right)
                rate = join_rate(one.value, other.value, model.selectivity(left, right), handling, handling, t / 2)
                candidates.append(Ranked(JoinNode((one.plan, other.plan)), rate))
            best[frozenset(chosen)] = max(candidates, key=lambda r: (r.value, str(r.plan)))
    return best[frozenset(names)]


def minimise_local_time(model: RateModel, results: float) -> Ranked:
    """The tree that local time minimisation picks for so many results."""
    ranked = (Ranked(plan, local_time(plan, model, results)) for plan in trees(tuple(model.streams)))
    return min(ranked, key=lambda r: (r.value, str(r.plan)))


def trees(names: tuple[str, ...]) -> Iterator[PhysicalPlan]:
    """All binary trees over some streams; the sides of a join have no order."""
    if len(names) > MOST_TREES:
        raise PlanError(f"the trees over {len(names)} streams are too many to look at", hint=f"at most {MOST_TREES}")
    if len(names) == 1:
        yield Leaf(names[0])
        return
    for left, right in _splits(names):
        for one in trees(left):
            for other in trees(right):
                yield JoinNode((one, other))


def _splits(names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """All ways to split some streams in two, each once: the first stream is always on the left."""
    head, rest = names[0], names[1:]
    for size in range(len(rest)):
        for others in combinations(rest, size):
            yield (head, *others), tuple(name for name in rest if name not in others)
