"""Published searches of a mesh, and the starts that they were compared by (Nehme et al. 2012, sections 4.3 to 4.7).

`exhaustive` (Opt-QM) is exact up to ten rows: partitions are examined by rising lower bound (their routes, their
overhead and the entropy of their shares, which no binary tree can beat) until the bound exceeds the best cost.
`improve` (II-QM) accepts random downhill moves until none is found for a while, from several starts; `anneal` (SA-QM)
accepts uphill moves with a decreasing probability. Moves split a subset, merge two, or move one row. All randomness
comes from the given generator.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numba import njit

from anabranch.lang.arrays import Doubles, Integers
from anabranch.mesh.search import Solution, Space, by_route, one_subset
from anabranch.mesh.training import TrainingSet

Start: TypeAlias = Literal["content", "route", "random", "one", "each"]
"""Content-driven (CDA), route-driven (RDA), random-pick (RP), extreme-1 and extreme-N."""
STARTS: tuple[Start, ...] = ("content", "route", "random", "one", "each")
MOST_EXHAUSTIVE = 10
"""The maximum number of rows whose partitions are all examined; ten rows have 115,975."""
RANDOM_PICKS = 10
DESCENTS = 3
FIRST_TEMPERATURE = 0.01
LAST_TEMPERATURE = 0.01


@dataclass(frozen=True)
class Stop:
    """The limits of a search; the first that is reached ends it."""

    iterations: int = 2_000
    """The maximum number of priced meshes."""
    plateau: int = 500
    """The maximum number of priced meshes since the best was found."""
    seconds: float = math.inf
    """Wall-clock seconds; the only limit that makes a search nondeterministic."""


@njit("int64[:, ::1](int64, int64)", cache=True)
def partitions(size: int, count: int) -> Integers:
    """Returns all partitions of a set, one per row: the subset of each element, numbered by first elements."""
    out = np.zeros((count, size), np.int64)
    highest = np.zeros(size, np.int64)
    for place in range(1, count):
        for element in range(size):
            out[place, element] = out[place - 1, element]
        element = size - 1
        while out[place, element] > highest[element - 1]:
            element -= 1
        out[place, element] += 1
        highest[element] = max(highest[element - 1], out[place, element])
        for later in range(element + 1, size):
            out[place, later] = 0
            highest[later] = highest[element]
    return out


def bell(size: int) -> int:
    """Returns the number of partitions of a set (Equation 1).

    >>> [bell(n) for n in range(6)]
    [1, 1, 2, 5, 15, 52]
    """
    row = [1]
    for _ in range(size):
        following = [row[-1]]
        for value in row:
            following.append(following[-1] + value)
        row = following
    return row[0]


def exhaustive(space: Space) -> Solution:
    """Returns the best of all meshes; at most ten rows."""
    if space.size > MOST_EXHAUSTIVE:
        raise ValueError(
            f"{space.size} rows have {bell(space.size)} partitions; at most {MOST_EXHAUSTIVE} are searched"
        )
    every = partitions(space.size, bell(space.size))
    bounds = _bounds(space, every)
    best: Solution | None = None
    for place in np.argsort(bounds, kind="stable"):
        if best is not None and bounds[place] >= best.cost:
            break
        solution = space.solution(every[place])
        if best is None or solution.cost < best.cost:
            best = solution
    assert best is not None
    return best


def _bounds(space: Space, every: Integers) -> Doubles:
    """Returns a lower bound of the cost of each partition, if all its subsets have different routes.

    A partition in which two subsets share a route may cost less, but then the partition that joins them costs no more.
    """
    masks = np.arange(1 << space.size)
    members = (masks[:, None] >> np.arange(space.size) & 1).astype(np.bool_)
    share = members @ space.training.shares
    price = np.zeros(masks.size)
    for mask in masks[1:]:
        price[mask] = space.router.best(np.flatnonzero(members[mask])).cost
    disorder = -np.where(share > 0, share * np.log2(np.maximum(share, 1e-300)), 0.0)
    own = price + space.costs.test * disorder + np.where(masks > 0, space.costs.route, 0.0)
    bounds = np.zeros(every.shape[0])
    for subset in range(space.size):
        bounds += own[((every == subset) << np.arange(space.size)).sum(axis=1)]
    return bounds


def start_solution(space: Space, start: Start, rng: np.random.Generator) -> Solution:
    """Returns the partition at which a search begins."""
    match start:
        case "content":
            return space.solution(_by_content(space.training, parts=2))
        case "route":
            return by_route(space)
        case "random":
            drawn = [space.solution(_random_partition(space.size, rng)) for _ in range(RANDOM_PICKS)]
            return min(drawn, key=lambda solution: solution.cost)
        case "one":
            return one_subset(space)
        case "each":
            return space.solution(np.arange(space.size))


def _by_content(training: TrainingSet, parts: int) -> Integers:
    """Groups rows whose numbers are in the same part of their range and whose categories are equal."""
    columns = []
    for attribute in training.attributes:
        if attribute.categories is None and attribute.levels.size:
            low, high = attribute.levels[0], attribute.levels[-1]
            width = (high - low) / parts or 1.0
            pieces = np.minimum((attribute.values - low) // width, parts - 1)
        else:
            pieces = attribute.values
        columns.append(np.nan_to_num(pieces, nan=-1.0))
    if not columns:
        return np.zeros(training.rows, np.int64)
    return np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _random_partition(size: int, rng: np.random.Generator) -> Integers:
    return rng.integers(0, rng.integers(1, size, endpoint=True), size)


def improve(
    space: Space,
    start: Solution,
    rng: np.random.Generator,
    stop: Stop | None = None,
    *,
    afresh: Start = "random",
) -> Solution:
    """Returns the best local minimum of iterative improvement from the start, and then from new starts.

    A mesh counts as a local minimum if twice as many random neighbours as it has rows cost no less.
    """
    counter = _Counter(stop or Stop(), start)
    patience = 2 * space.size
    for descent in range(DESCENTS):
        current = start if descent == 0 else start_solution(space, afresh, rng)
        counter.saw(current)
        failures = 0
        while failures < patience and not counter.is_over:
            candidate = space.solution(neighbour(space, current.subsets, rng))
            counter.saw(candidate)
            if candidate.cost < current.cost:
                current, failures = candidate, 0
            else:
                failures += 1
        if counter.is_over:
            break
    return counter.best


def anneal(space: Space, start: Solution, rng: np.random.Generator, stop: Stop | None = None) -> Solution:
    """Returns the best mesh found by simulated annealing from the start.

    The temperature starts at a hundredth of the start's cost, about the effect of a move, and falls to a hundredth of
    that over the iterations.
    """
    counter = _Counter(stop or Stop(), start)
    temperature = start.cost * FIRST_TEMPERATURE
    cooling = LAST_TEMPERATURE ** (1 / max(1, counter.stop.iterations))
    current = start
    while not counter.is_over:
        candidate = space.solution(neighbour(space, current.subsets, rng))
        counter.saw(candidate)
        worse = candidate.cost - current.cost
        if worse <= 0 or (temperature > 0 and rng.random() < math.exp(-worse / temperature)):
            current = candidate
        temperature *= cooling
    return counter.best


class _Counter:
    """Counts meshes against a stop condition and keeps the best."""

    def __init__(self, stop: Stop, start: Solution) -> None:
        self.stop = stop
        self.best = start
        self._seen = 0
        self._since = 0
        self._began = time.perf_counter()

    def saw(self, solution: Solution) -> None:
        self._seen += 1
        self._since += 1
        if solution.cost < self.best.cost:
            self.best, self._since = solution, 0

    @property
    def is_over(self) -> bool:
        return (
            self._seen >= self.stop.iterations
            or self._since >= self.stop.plateau
            or time.perf_counter() - self._began >= self.stop.seconds
        )


def neighbour(space: Space, subsets: Integers, rng: np.random.Generator) -> Integers:
    """Returns a partition one move away: a subset split, two merged, or one row moved to another subset."""
    count = int(subsets.max()) + 1
    moves: list[Callable[[], Integers]] = []
    if count < space.size:
        moves.append(lambda: _split(space.training, subsets, rng))
    if count > 1:
        moves.append(lambda: _merged(subsets, rng))
        moves.append(lambda: _moved(subsets, rng))
    return moves[rng.integers(len(moves))]() if moves else subsets


def _split(training: TrainingSet, subsets: Integers, rng: np.random.Generator) -> Integers:
    """Splits one subset in two: at a value of an attribute, which a classifier can follow, or else at random."""
    large = np.flatnonzero(np.bincount(subsets) > 1)
    rows = np.flatnonzero(subsets == large[rng.integers(large.size)])
    apart = rng.random(rows.size) < 0.5
    if training.attributes and rng.random() < 0.5:
        ranks = training.attributes[rng.integers(len(training.attributes))].ranks[rows]
        apart = ranks > ranks[rng.integers(rows.size)]
    if apart.all() or not apart.any():
        apart = np.arange(rows.size) == rng.integers(rows.size)
    changed = subsets.copy()
    changed[rows[apart]] = subsets.max() + 1
    return changed


def _merged(subsets: Integers, rng: np.random.Generator) -> Integers:
    kept, joined = rng.choice(int(subsets.max()) + 1, 2, replace=False)
    return np.where(subsets == joined, kept, subsets)


def _moved(subsets: Integers, rng: np.random.Generator) -> Integers:
    row = int(rng.integers(subsets.size))
    others = np.setdiff1d(np.unique(subsets), subsets[row])
    changed = subsets.copy()
    changed[row] = others[rng.integers(others.size)]
    return changed
