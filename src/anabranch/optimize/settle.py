"""Selects the best of the priced plans: hints and budget eliminate plans, the objective ranks the rest.

Every optimizer settles its own candidates, and `choose` settles the candidates of all optimizers together, so no
optimizer can propose a plan that violates a hint or the budget.

Invariant: every candidate gets a verdict and a reason. Limit: candidates are compared by estimates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from anabranch.cost.progress import crossing
from anabranch.cost.resources import Resources
from anabranch.optimize.problem import Problem
from anabranch.optimize.proposals import Bound, Budget, Candidate, Infeasible, Proposal, distinct, over_budget

ALIKE = 0.05
"""Without limits, plans within this fraction of the least CPU count as equally fast, and the smallest one is taken."""
MOST_ALIKE = 12
"""The number of candidates whose progress is shown if the cheapest keeps up: then no other can be ahead of it."""


def settle(problem: Problem, candidates: Iterable[Candidate], *, is_complete: bool = False) -> Proposal | Infeasible:
    """Returns the best of some candidates by the objective, or the bound that none of them keeps.

    There is at least one candidate. `is_complete` means that no plan outside the candidates can keep the budget if none
    of them does.
    """
    budget, hints = problem.budget, problem.hints
    allowed: list[Candidate] = []
    refused: list[Candidate] = []
    for candidate in distinct(candidates):
        reason = problem.objection(candidate.plan)
        if reason:
            refused.append(replace(candidate, reason=reason, standing="refused"))
        else:
            allowed.append(replace(candidate, reason="", standing="lost"))
    if not allowed:
        nearest = min(refused, key=lambda each: budget.use(each.cost))
        return Infeasible("hints", nearest.plan, nearest.cost, tuple(refused))
    qualified = [candidate for candidate in allowed if budget.allows(candidate.cost)]
    over = [
        replace(c, reason=over_budget(c.cost, budget), standing="over") for c in allowed if not budget.allows(c.cost)
    ]
    if not qualified:
        failed = infeasible(over, budget)
        is_proven = is_complete or (failed.bound == "memory" and problem.model.least_memory > budget.total_memory)
        return replace(failed, considered=(*failed.considered, *refused), is_proven=is_proven)
    ranked = _ranked(qualified, problem)
    best = ranked[0]
    rest = [replace(c, reason=_why_lost(c, best, budget)) if not c.reason else c for c in ranked[1:]]
    won = replace(best, reason=best.reason or "chosen", standing="chosen")
    reason = _why_won(ranked, problem) if hints.plan is None else "it was requested"
    return Proposal(best.plan, best.cost, reason, (won, *rest, *over, *refused))


def infeasible(candidates: list[Candidate], budget: Budget) -> Infeasible:
    """Returns the bound that no candidate keeps, with the candidate that comes nearest to it."""
    bound: Bound
    if (least := min(candidates, key=lambda c: c.cost.memory)).cost.memory > budget.total_memory:
        bound, best = "memory", least
    elif (least := min(candidates, key=lambda c: c.cost.cpu)).cost.cpu > budget.total_cpu:
        bound, best = "latency" if budget.slot_cpu < budget.cpu else "cpu", least
    else:
        bound, best = "cpu and memory together", min(candidates, key=lambda c: budget.use(c.cost))
    return Infeasible(bound, best.plan, best.cost, tuple(candidates))


def _ranked(plans: list[Candidate], problem: Problem) -> list[Candidate]:
    budget, objective = problem.budget, problem.objective
    by_cpu = sorted(plans, key=lambda c: (c.cost.cpu, c.cost.memory, str(c.plan)))
    match objective.kind:
        case "cpu":
            return by_cpu
        case "memory":
            return sorted(by_cpu, key=lambda c: c.cost.memory)
        case "qualified" if budget.is_limited:
            return sorted(by_cpu, key=lambda c: budget.use(c.cost))
        case "qualified":
            alike = [c for c in by_cpu if c.cost.cpu <= by_cpu[0].cost.cpu * (1 + ALIKE)]
            return sorted(alike, key=lambda c: c.cost.memory) + by_cpu[len(alike) :]
        case "rate" | "first":
            timed = []
            # A plan that is cheaper once its windows are full may cost more while they fill, so none is excluded.
            keeps_up = by_cpu[0].cost.cpu <= min(budget.total_cpu, float(budget.slots))
            going_first = by_cpu[:MOST_ALIKE] if keeps_up else by_cpu
            for candidate in going_first:
                going = problem.progress(candidate.plan)
                if objective.kind == "rate":
                    results = going.results_by(objective.amount)
                    timed.append((-results, replace(candidate, reason=f"{results:.3g} results by then")))
                else:
                    seconds = going.time_to(objective.amount)
                    timed.append((seconds, replace(candidate, reason=f"there after {seconds:.3g} s")))
            # Plans that keep up are equivalent; if equal to one part in a million, the cheaper one wins.
            timed.sort(key=lambda pair: float(f"{pair[0]:.6g}"))
            best, *others = (candidate for _, candidate in timed)
            return [best, *(_with_crossing(each, best, problem) for each in others), *by_cpu[len(timed) :]]


def _with_crossing(loser: Candidate, best: Candidate, problem: Problem) -> Candidate:
    """Returns a plan whose reason says when it is ahead of the best one all the same."""
    until, since = crossing(problem.progress(loser.plan), problem.progress(best.plan))
    parts = [f"ahead until {until:.3g} s"] if until is not None else []
    parts += [f"ahead from {since:.3g} s on"] if since is not None else []
    return replace(loser, reason=", ".join([loser.reason, *parts]))


def _why_won(ranked: list[Candidate], problem: Problem) -> str:
    budget, objective = problem.budget, problem.objective
    best, among = ranked[0], "of the plans within the budget"
    match objective.kind:
        case "cpu":
            return f"least CPU {among}"
        case "memory":
            return f"least memory {among}"
        case "rate":
            return f"most results after {objective.amount:g} s {among}: {best.reason}"
        case "first":
            return f"first to {objective.amount:g} results {among}: {best.reason}"
        case "qualified" if budget.is_limited:
            return f"most headroom: uses {budget.use(best.cost):.0%} of the tighter limit"
        case "qualified":
            if best.cost.cpu == min(c.cost.cpu for c in ranked):
                return "least CPU; no limits are set"
            return f"least memory of the plans within {ALIKE:.0%} of the least CPU; no limits are set"


def _why_lost(loser: Candidate, best: Candidate, budget: Budget) -> str:
    needs = _difference(loser.cost, best.cost)
    return f"{needs}, {budget.use(loser.cost):.0%} of the tighter limit" if budget.is_limited else needs


def _difference(loser: Resources, best: Resources) -> str:
    compared = (("CPU", loser.cpu, best.cpu), ("memory", loser.memory, best.memory))
    more = [_times(one, other, what) for what, one, other in compared if one > other * (1 + 1e-9)]
    less = [f"{1 - one / other:.1%} less {what}" for what, one, other in compared if one < other * (1 - 1e-9)]
    if not more:
        return f"needs {' and '.join(less)}" if less else "equal costs"
    return f"needs {' and '.join(more)}" + (f", though {less[0]}" if less else "")


def _times(more: float, less: float, what: str) -> str:
    ratio = more / less if less else math.inf
    return f"{ratio:.1f} times the {what}" if ratio >= 2 else f"{ratio - 1:.1%} more {what}"
