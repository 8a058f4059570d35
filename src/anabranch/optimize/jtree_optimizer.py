"""JTree-Finder as an optimizer: every undominated plan, up to `jtree_finder.LARGEST` relations.

If no candidate keeps the budget, no plan in its search space does: mjoins, trees and mixtures without deferred
predicates and merged rows.

Limit: with more relations it proposes the mjoin and proves nothing.
"""

from __future__ import annotations

from anabranch.cost.progress import at
from anabranch.optimize.hints import KINDS
from anabranch.optimize.jtree_finder import LARGEST, ORIGIN, Space
from anabranch.optimize.problem import Problem
from anabranch.optimize.proposals import Infeasible, Proposal
from anabranch.optimize.settle import settle


def jtree_finder(problem: Problem) -> Proposal | Infeasible:
    """Returns the best of all undominated plans."""
    space, objective, hints = problem.space, problem.objective, problem.hints
    if space is None:
        mjoin = problem.orderer.considered(problem.orderer.mjoin(), ORIGIN)
        return settle(problem, [problem.amended(mjoin)])
    widest = 2 if hints.kinds == ("tree",) else LARGEST
    found = list(space.undominated(forbidden=problem.forbidden, needed=problem.needed, widest=widest))
    if objective.kind in ("rate", "first"):
        # Early on, while the windows are short, another plan may be the cheapest.
        soon = min(problem.model.estimates.longest_window, objective.amount) / 2 if objective.kind == "rate" else 1.0
        early = Space(at(problem.model, soon)).undominated(
            forbidden=problem.forbidden, needed=problem.needed, widest=widest
        )
        found += [problem.candidate(each.plan, f"{ORIGIN}, early") for each in early]
    if not found:
        # The hints exclude every plan in the search space; their objection to the mjoin is the reason.
        found = [problem.orderer.considered(problem.orderer.mjoin(), ORIGIN)]
    is_complete = hints.kinds in (KINDS, ("tree",)) and not hints.forbids_orders and hints.plan is None
    return settle(problem, [problem.amended(each) for each in found], is_complete=is_complete)
