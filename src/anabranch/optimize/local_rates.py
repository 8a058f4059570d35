"""Local rate maximization and local time minimization: trees in which each join is evaluated by itself.

Both are heuristics of Viglas and Naughton 2002 (Section 4.2) that a user may select instead of the full search. Local
rate fixes the time (`rate@t`): a set of relations that keeps up emits its birth rate at half of that time, a join that
needs more cores than available emits proportionally less, and each set keeps the split with the highest output. Local
time fixes the number of results (`first@n`) and works from the top down: a join that must emit a fraction p of its
output needs the fraction sqrt(p) of each input, and the time of a tree is that of its slowest part.

Limit: each join is priced as if it had all the cores. The streams have no end, so fractions refer to the rows that
come until plans that keep up have n results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from anabranch.cost.progress import at
from anabranch.cost.resources import ResourceModel
from anabranch.optimize.jtree_finder import LARGEST
from anabranch.optimize.problem import Problem
from anabranch.optimize.proposals import Infeasible, Proposal
from anabranch.optimize.settle import settle
from anabranch.optimize.shapes import Shape, in_order


@dataclass(frozen=True)
class _Part:
    """A tree over some relations: the fraction of its combinations emitted in time, and the work of its joins."""

    shape: Shape
    share: float
    work: float
    time: float = 0.0
    """The time until the tree has emitted the results that are needed, in lengths of the streams."""


def local_rate(problem: Problem) -> Proposal | Infeasible:
    """Returns the tree whose joins, each by itself, emit most by the time of `rate@`; else while the windows fill."""
    longest = max(problem.model.estimates.windows)
    return _built(problem, problem.objective.amount if problem.objective.kind == "rate" else longest, "local-rate")


def local_time(problem: Problem) -> Proposal | Infeasible:
    """Returns the tree whose slowest part is the first to emit its share of the results of `first@`."""
    seconds = problem.horizon
    if problem.objective.kind != "first":
        return _built(problem, seconds, "local-time")
    model = at(problem.model, seconds / 2)
    births = model.births(model.estimates.everything) * seconds
    return _built(problem, seconds, "local-time", problem.objective.amount / births if births else 1.0)


def _built(problem: Problem, seconds: float, origin: str, fraction: float | None = None) -> Proposal | Infeasible:
    cores = min(problem.budget.total_cpu, float(problem.budget.slots))
    model = at(problem.model, seconds / 2)
    if len(problem.graph.names) > LARGEST:
        shape = problem.tree
    elif fraction is None:
        shape = _best_tree(model, cores)
    else:
        shape = _soonest_tree(model, cores, fraction)
    return settle(problem, [problem.amended(problem.orderer.considered(shape, origin))])


def _best_tree(model: ResourceModel, cores: float) -> Shape:
    """Returns the tree in which every set of relations is joined from the two parts with the highest output."""
    everything = model.estimates.everything
    best = {1 << position: _Part({}, 1.0, 0.0) for position in range(everything.bit_length())}
    for mask in range(1, everything + 1):
        if mask in best:
            continue
        found = [_joined(left, right, best[left], best[right], model, cores) for left, right in _splits(mask)]
        best[mask] = max(found, key=lambda part: (float(f"{part.share:.9g}"), -part.work))
    return best[everything].shape


def _soonest_tree(model: ResourceModel, cores: float, fraction: float) -> Shape:
    """Returns the tree that is the first to emit a fraction of its combinations."""

    @cache
    def best(mask: int, depth: int) -> _Part:
        needed = fraction**0.5**depth
        if mask & mask - 1 == 0:
            return _Part({}, 1.0, 0.0, needed)
        found = [
            _in_time(_joined(left, right, best(left, depth + 1), best(right, depth + 1), model, cores), needed)
            for left, right in _splits(mask)
        ]
        return min(found, key=lambda part: (float(f"{part.time:.9g}"), part.work))

    return best(model.estimates.everything, 0).shape


def _in_time(joined: _Part, needed: float) -> _Part:
    """Returns the join with the time to the fraction that it needs, and with the mean output until then."""
    time = max(joined.time, needed / joined.share)
    return replace(joined, time=time, share=needed / time)


def _splits(mask: int) -> Iterator[tuple[int, int]]:
    """Yields each split of a set into two parts once: the left part has the lowest relation."""
    lowest = mask & -mask
    rest = inside = mask ^ lowest
    while inside:
        inside = (inside - 1) & rest
        yield lowest | inside, rest ^ inside


def _joined(mine: int, other: int, left: _Part, right: _Part, model: ResourceModel, cores: float) -> _Part:
    """Joins two parts. The work is that of the rows that the parts emit per second."""
    probing = model.turnover(mine) * left.share * model.step(mine, other)
    probing += model.turnover(other) * right.share * model.step(other, mine)
    keeping = 0.0 if mine | other == model.estimates.everything else model.upkeep(mine | other)
    work = probing + keeping
    share = left.share * right.share / max(1.0, work / cores)
    shape = {**left.shape, **right.shape, mine | other: in_order((mine, other))}
    return _Part(shape, share, left.work + right.work + work, max(left.time, right.time))
