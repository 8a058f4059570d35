"""One way to choose a plan: candidates from every strategy, hints and budget as filters, an objective to rank them.

Up to `EXHAUSTIVE` relations the candidates include all plans that no other dominates, so a plan within the budget is
found whenever there is one; beyond, those that the two-layer framework passes. Every candidate stays in the answer with
its cost and the reason it lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, TypeAlias

from anabranch.cost.estimates import Estimates, from_statistics
from anabranch.cost.progress import at, progress
from anabranch.cost.resources import ResourceModel, Resources
from anabranch.cost.units import ENGINE
from anabranch.errors import SpecError
from anabranch.optimize.hints import Hints, Objective
from anabranch.optimize.jtree_finder import find_jtrees
from anabranch.optimize.min_state import min_state
from anabranch.optimize.shapes import Orderer, in_order
from anabranch.optimize.state_removal import remove_states
from anabranch.optimize.state_selection import select_states
from anabranch.optimize.strategy import (
    Budget,
    Considered,
    Infeasible,
    Proposal,
    over_budget,
    pareto,
)
from anabranch.optimize.two_layer import infeasible
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import Leaf, PhysicalPlan
from anabranch.stats.view import StatisticsView

EXHAUSTIVE = 8
MOST_PROGRESS = 12
"""Candidates whose progress over time is worked out, the cheapest first."""

Policy: TypeAlias = Literal["any", "least cpu", "least memory", "most room"]


@dataclass(frozen=True)
class Choice:
    """An answer, with the numbers it rests on."""

    answer: Proposal | Infeasible
    model: ResourceModel
    budget: Budget
    objective: Objective

    @property
    def estimates(self) -> Estimates:
        return self.model.estimates


def choose(
    graph: JoinGraph,
    statistics: StatisticsView,
    budget: Budget | None = None,
    objective: Objective | None = None,
    hints: Hints | None = None,
    *,
    batch: float = 1.0,
) -> Choice:
    """The plan for a query: best by the objective among those that keep the budget and obey the hints.

    `batch` is the time between batches in seconds.
    """
    model = resource_model(graph, statistics, batch)
    budget, objective, hints = budget or Budget(), objective or Objective(), hints or Hints()
    return Choice(_answer(model, budget, objective, hints), model, budget, objective)


def resource_model(graph: JoinGraph, statistics: StatisticsView, batch: float = 1.0) -> ResourceModel:
    """What plans of a query are priced by: estimates from the statistics, and this engine's unit costs unless given."""
    return ResourceModel(from_statistics(graph, statistics), statistics.unit_costs() or ENGINE, batch=batch)


def _answer(model: ResourceModel, budget: Budget, objective: Objective, hints: Hints) -> Proposal | Infeasible:
    if len(model.estimates.names) == 1:
        candidates, hints = [_only(Leaf(model.estimates.names[0]), model, "only plan")], Hints()
    elif hints.plan is not None:
        candidates, hints = [_only(Orderer(model).complete(hints.plan), model, "forced by a hint")], Hints()
    else:
        candidates = _candidates(model, budget, objective, hints)
    allowed: list[Considered] = []
    refused: list[Considered] = []
    for candidate in candidates:
        reason = hints.objection(candidate.plan)
        (refused if reason else allowed).append(replace(candidate, reason=reason))
    if not allowed:
        allowed = [_only(_obeying(model, hints), model, "hints")]
    qualified = [candidate for candidate in allowed if budget.allows(candidate.cost)]
    over = [replace(c, reason=over_budget(c.cost, budget)) for c in allowed if not budget.allows(c.cost)]
    if not qualified:
        failed = infeasible(over, budget)
        return replace(failed, considered=(*failed.considered, *refused))
    ranked = _ranked(qualified, model, budget, objective)
    best = ranked[0]
    rest = [replace(c, reason=_why_lost(c, best, budget)) if not c.reason else c for c in ranked[1:]]
    won = replace(best, reason=best.reason or "chosen")
    return Proposal(best.plan, best.cost, _why_won(best, budget, objective), (won, *rest, *over, *refused))


def _only(plan: PhysicalPlan, model: ResourceModel, origin: str) -> Considered:
    return Considered(plan, model.price(plan), origin)


def by_policy(plans: tuple[Considered, ...], policy: Policy, budget: Budget, rng: Random) -> Considered:
    """One of several qualified plans by one of the papers' policies; none of them picks a dominated plan."""
    front = pareto(plans)
    match policy:
        case "any":
            return rng.choice(front)
        case "least cpu":
            return front[0]
        case "least memory":
            return front[-1]
        case "most room":
            return min(front, key=lambda c: (budget.use(c.cost), c.cost.cpu))


def _candidates(model: ResourceModel, budget: Budget, objective: Objective, hints: Hints) -> list[Considered]:
    orderer = Orderer(model)
    tree = min_state(orderer)
    shapes = [(orderer.mjoin(), "mjoin ordering"), (tree, "min-state")]
    shapes += [(shape, "state-selection") for shape in select_states(orderer, budget)[1:]]
    # Hints may refuse what fits first, so with hints the whole way from the tree to the mjoin is laid out.
    reach = budget if hints == Hints() else Budget(memory=math.ulp(0.0))
    shapes += [(shape, "state-removal") for shape in remove_states(orderer, reach, tree)[1:]]
    found = [orderer.considered(shape, origin) for shape, origin in shapes]
    if len(model.estimates.names) <= EXHAUSTIVE:
        forbidden, needed = hints.forbidden_sets(model), hints.needed_sets(model)
        found += find_jtrees(model, Budget(), forbidden=forbidden, needed=needed)
        if objective.kind in ("rate", "first"):
            # Early on, while the windows are short, another plan may be the cheapest.
            early = at(
                model, min(max(model.estimates.windows), objective.amount) / 2 if objective.kind == "rate" else 1
            )
            plans = [c.plan for c in find_jtrees(early, Budget(), forbidden=forbidden, needed=needed)]
            found += [Considered(plan, model.price(plan), "jtree-finder, early") for plan in plans]
    distinct: dict[str, Considered] = {}
    for candidate in found:
        plan = hints.amended(candidate.plan, model)
        if plan != candidate.plan:
            candidate = replace(candidate, plan=plan, cost=model.price(plan))
        distinct.setdefault(str(plan), candidate)
    return list(distinct.values())


def _obeying(model: ResourceModel, hints: Hints) -> PhysicalPlan:
    """A plan built from the wanted joins alone, for when the strategies found none that obeys the hints."""
    orderer = Orderer(model)
    parts, shape = orderer.leaves, {}
    for wanted in sorted(hints.needed_sets(model), key=lambda mask: (mask.bit_count(), mask)):
        inside = tuple(part for part in parts if part & wanted == part)
        if sum(inside) != wanted:
            raise SpecError(
                "two hints want overlapping joins", hint="keep joins that are apart or one inside the other"
            )
        if wanted != orderer.everything:
            shape[wanted] = inside
            parts = in_order([*(part for part in parts if part not in inside), wanted])
    shape[orderer.everything] = parts
    plan = hints.amended(orderer.plan(shape), model)
    if objection := hints.objection(plan):
        raise SpecError("the hints leave no plan", detail=f"{plan} {objection}", hint="forbid less")
    return plan


def _ranked(plans: list[Considered], model: ResourceModel, budget: Budget, objective: Objective) -> list[Considered]:
    by_cpu = sorted(plans, key=lambda c: (c.cost.cpu, c.cost.memory, str(c.plan)))
    match objective.kind:
        case "cpu":
            return by_cpu
        case "memory":
            return sorted(by_cpu, key=lambda c: c.cost.memory)
        case "qualified":
            return sorted(by_cpu, key=lambda c: budget.use(c.cost))
        case "rate" | "first":
            cores = min(budget.total_cpu, float(budget.slots))
            timed = []
            for candidate in by_cpu[:MOST_PROGRESS]:
                going = progress(candidate.plan, model, cores)
                if objective.kind == "rate":
                    results = going.results_by(objective.amount)
                    timed.append((-results, replace(candidate, reason=f"{results:.3g} results by then")))
                else:
                    seconds = going.time_to(objective.amount)
                    timed.append((seconds, replace(candidate, reason=f"there after {seconds:.3g} s")))
            # Plans that keep up are alike; equal to a part in a million, the cheaper one wins.
            timed.sort(key=lambda pair: float(f"{pair[0]:.6g}"))
            return [candidate for _, candidate in timed] + by_cpu[MOST_PROGRESS:]


def _why_won(best: Considered, budget: Budget, objective: Objective) -> str:
    match objective.kind:
        case "cpu":
            return "least CPU of the plans within the budget"
        case "memory":
            return "least memory of the plans within the budget"
        case "rate":
            return f"most results after {objective.amount:g} s of the plans within the budget: {best.reason}"
        case "first":
            return f"first to {objective.amount:g} results of the plans within the budget: {best.reason}"
        case "qualified":
            if budget.cpu == budget.memory == math.inf:
                return "least CPU; no limits are set"
            return f"most room within the budget: uses {budget.use(best.cost):.0%} of it"


def _why_lost(loser: Considered, best: Considered, budget: Budget) -> str:
    needs = f"needs {_more(loser.cost, best.cost)}"
    limited = min(budget.cpu, budget.memory) < math.inf
    return f"{needs}, {budget.use(loser.cost):.0%} of the budget" if limited else needs


def _more(loser: Resources, best: Resources) -> str:
    parts = []
    if loser.cpu > best.cpu:
        parts.append(f"{_times(loser.cpu, best.cpu)} more CPU")
    if loser.memory > best.memory:
        parts.append(f"{_times(loser.memory, best.memory)} more memory")
    return " and ".join(parts) or "no less"


def _times(more: float, less: float) -> str:
    ratio = more / less if less else float("inf")
    return f"{ratio:.1f} times" if ratio >= 2 else f"{ratio - 1:.1%}"
