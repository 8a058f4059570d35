"""The heuristics as optimizers: the mjoin, the tree with small states, and the paths between the two.

They take polynomial time, so they also work for queries with too many relations for a full search.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.optimize.hints import NO_HINTS
from anabranch.optimize.problem import Problem
from anabranch.optimize.proposals import NOTHING_FITS, Infeasible, Proposal
from anabranch.optimize.settle import settle
from anabranch.optimize.shapes import Shape
from anabranch.optimize.state_removal import remove_states
from anabranch.optimize.state_selection import select_states


def mjoin(problem: Problem) -> Proposal | Infeasible:
    """Returns one join of all relations, which needs the least memory."""
    return _settled(problem, [problem.orderer.mjoin()], "mjoin ordering")


def smallest_tree(problem: Problem) -> Proposal | Infeasible:
    """Returns the tree with small intermediate states."""
    return _settled(problem, [problem.tree], "min-state")


def state_selection(problem: Problem) -> Proposal | Infeasible:
    """Moves from the mjoin towards a tree, one state at a time, until the CPU fits."""
    return _settled(problem, select_states(problem.orderer, problem.budget), "state-selection")


def state_removal(problem: Problem) -> Proposal | Infeasible:
    """Moves from a tree towards the mjoin, one state at a time, until the memory fits."""
    # Hints and count windows may reject the first plan that fits; then all plans down to the mjoin are returned.
    is_free = problem.hints == NO_HINTS and not problem.graph.counted
    reach = problem.budget if is_free else NOTHING_FITS
    return _settled(problem, remove_states(problem.orderer, reach, problem.tree), "state-removal")


def _settled(problem: Problem, shapes: Iterable[Shape], origin: str) -> Proposal | Infeasible:
    found = [problem.orderer.considered(shape, origin) for shape in shapes]
    return settle(problem, [problem.amended(candidate) for candidate in found])
