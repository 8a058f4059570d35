"""Local rate maximization and local time minimization: builds trees bottom-up, with each join evaluated by itself.

Both are heuristics of Viglas and Naughton 2002 (Section 4.2) that a user may select instead of the full search. The
output of a set of relations that keeps up is its birth rate at half of the requested time; a join that needs more cores
than available emits proportionally less. For each set the split with the highest output is kept, so the search takes
3^n steps instead of examining every tree.

Local rate fixes the time (`rate@t`), local time the number of results (`first@n`): the time is then the one at which
plans that keep up have emitted n results. The top join finishes last, so the tree whose slowest part finishes first is
the one with the highest output in that time.

Limit: each join is priced as if it had all the cores. Windows, which the paper omits, follow the model.
"""

from __future__ import annotations

from dataclasses import dataclass

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


def local_rate(problem: Problem) -> Proposal | Infeasible:
    """Returns the tree whose joins, each by itself, emit most by the time of `rate@`; else while the windows fill."""
    longest = max(problem.model.estimates.windows)
    return _built(problem, problem.objective.amount if problem.objective.kind == "rate" else longest, "local-rate")


def local_time(problem: Problem) -> Proposal | Infeasible:
    """Returns the tree whose slowest join is the first to finish its share of the results of `first@`."""
    longest = max(problem.model.estimates.windows)
    if problem.objective.kind != "first":
        return _built(problem, longest, "local-time")
    return _built(problem, problem.horizon, "local-time")


def _built(problem: Problem, seconds: float, origin: str) -> Proposal | Infeasible:
    if len(problem.graph.names) > LARGEST:
        shape = problem.tree
    else:
        shape = _best_tree(at(problem.model, seconds / 2), min(problem.budget.total_cpu, float(problem.budget.slots)))
    return settle(problem, [problem.amended(problem.orderer.considered(shape, origin))])


def _best_tree(model: ResourceModel, cores: float) -> Shape:
    """Returns the tree in which every set of relations is joined from the two parts with the highest output."""
    everything = model.estimates.everything
    best = {1 << position: _Part({}, 1.0, 0.0) for position in range(everything.bit_length())}
    for mask in range(1, everything + 1):
        if mask in best:
            continue
        # Each split once: the left part has the lowest relation.
        lowest = mask & -mask
        rest = mask ^ lowest
        inside, found = rest, []
        while inside:
            inside = (inside - 1) & rest
            left, right = lowest | inside, mask ^ lowest ^ inside
            found.append(_joined(left, right, best[left], best[right], model, cores))
        best[mask] = max(found, key=lambda part: (float(f"{part.share:.9g}"), -part.work))
    return best[everything].shape


def _joined(mine: int, other: int, left: _Part, right: _Part, model: ResourceModel, cores: float) -> _Part:
    """Joins two parts. The work is that of the rows that the parts emit per second."""
    probing = model.turnover(mine) * left.share * model.step(mine, other)
    probing += model.turnover(other) * right.share * model.step(other, mine)
    keeping = 0.0 if mine | other == model.estimates.everything else model.upkeep(mine | other)
    work = probing + keeping
    share = left.share * right.share / max(1.0, work / cores)
    shape = {**left.shape, **right.shape, mine | other: in_order((mine, other))}
    return _Part(shape, share, left.work + right.work + work)
