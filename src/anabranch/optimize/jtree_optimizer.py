"""JTree-Finder as an optimizer: every undominated plan, up to `jtree_finder.LARGEST` relations.

A quick search comes first. A second one covers the plans that would be better than the first answer: those within the
budget if nothing fits, those with more headroom, or those with less memory. If it ends within its effort and nothing
fits, no plan in the search space does: mjoins, trees and mixtures without deferred predicates and merged rows.

Limit: with more relations it proposes the mjoin and proves nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace

from anabranch.cost.progress import at
from anabranch.optimize.hints import KINDS
from anabranch.optimize.jtree_finder import LARGEST, ORIGIN, QUICK, THOROUGH, WITHIN, Effort, Front, Space
from anabranch.optimize.problem import Problem
from anabranch.optimize.proposals import UNLIMITED, Budget, Infeasible, Proposal
from anabranch.optimize.settle import settle


def jtree_finder(problem: Problem) -> Proposal | Infeasible:
    """Returns the best of all undominated plans."""
    space, objective, hints = problem.space, problem.objective, problem.hints
    if space is None:
        mjoin = problem.orderer.considered(problem.orderer.mjoin(), ORIGIN)
        return settle(problem, [problem.amended(mjoin)])
    widest = 2 if hints.kinds == ("tree",) else LARGEST

    def undominated(space: Space, budget: Budget, effort: Effort) -> Front:
        return space.undominated(
            budget, forbidden=problem.forbidden, needed=problem.needed, widest=widest, effort=effort
        )

    found = list(undominated(space, UNLIMITED, QUICK).plans)
    if objective.kind in ("rate", "first"):
        # Early on, while the windows are short, another plan may be the cheapest.
        soon = min(problem.model.estimates.longest_window, problem.horizon) / 2
        early = undominated(Space(at(problem.model, soon)), UNLIMITED, QUICK).plans
        found += [problem.candidate(each.plan, f"{ORIGIN}, early") for each in early]
    if not found:
        # The hints exclude every plan in the search space; their objection to the mjoin is the reason.
        found = [problem.orderer.considered(problem.orderer.mjoin(), ORIGIN)]
    answer = settle(problem, [problem.amended(each) for each in found])
    better = _better(problem, answer)
    if better is None:
        return answer
    within = undominated(space, better, THOROUGH if isinstance(answer, Infeasible) else WITHIN)
    is_free = hints.kinds in (KINDS, ("tree",)) and not hints.forbids_orders and hints.plan is None
    found += within.plans
    return settle(problem, [problem.amended(each) for each in found], is_complete=is_free and within.is_complete)


def _better(problem: Problem, answer: Proposal | Infeasible) -> Budget | None:
    """Returns the budget that only better plans keep; None if the quick search covers all of them."""
    budget, kind = problem.budget, problem.objective.kind
    if isinstance(answer, Infeasible):
        return budget
    if kind == "memory":
        return replace(budget, memory=budget.of_slot(answer.cost).memory)
    if kind == "qualified" and budget.is_limited:
        use = budget.use(answer.cost)
        cpu = budget.slot_cpu if budget.slot_cpu < math.inf else 1.0
        return replace(budget, cpu=use * cpu, memory=use * budget.memory)
    return None
