"""One way to choose a plan: candidates from every strategy, hints and budget as filters, an objective to rank them.

Up to `EXHAUSTIVE` relations the candidates include all plans that no other dominates, so a plan within the budget is
found whenever there is one, and nothing is compiled for it; beyond, those that the two-layer framework passes. Every
candidate stays in the answer with its cost and the reason it lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, TypeAlias

from anabranch.cost.estimates import Estimates, from_statistics
from anabranch.cost.progress import at, progress
from anabranch.cost.resources import ResourceModel, Resources
from anabranch.cost.units import ENGINE
from anabranch.errors import SpecError
from anabranch.optimize.hints import Hints, Objective
from anabranch.optimize.merging import merging_variants
from anabranch.optimize.min_state import min_state
from anabranch.optimize.plain import LARGEST as EXHAUSTIVE
from anabranch.optimize.plain import Chains, exact_orderer, undominated
from anabranch.optimize.shapes import Orderer, in_order
from anabranch.optimize.state_removal import remove_states
from anabranch.optimize.state_selection import select_states
from anabranch.optimize.strategy import (
    Budget,
    Considered,
    Infeasible,
    MeshOffer,
    Proposal,
    over_budget,
    pareto,
)
from anabranch.optimize.two_layer import infeasible
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import Leaf, PhysicalPlan
from anabranch.plan.query import Grouping
from anabranch.stats.view import Source, StatisticsView

ALIKE = 0.05
"""Without limits, plans this near to the least CPU count as equally fast, and the smallest of them is taken."""
MOST_PROGRESS = 12
"""Candidates whose progress over time is worked out, the cheapest first."""

Policy: TypeAlias = Literal["any", "least cpu", "least memory", "most room"]


_Vary: TypeAlias = Callable[[list[Considered]], list[Considered]]
"""Finds more candidates, given some."""


@dataclass(frozen=True)
class Choice:
    """An answer, with the numbers it rests on."""

    answer: Proposal | Infeasible
    model: ResourceModel
    budget: Budget
    objective: Objective
    units_from: Source = "assumed"
    mesh: MeshOffer | None = None
    """Where a mesh was thought of."""

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
    grouping: Grouping | None = None,
) -> Choice:
    """The plan for a query: best by the objective among those that keep the budget and obey the hints.

    `batch` is the time between batches in seconds. With the `grouping` of a grouped query, plans that merge rows before
    they join are considered too.
    """
    model = resource_model(graph, statistics, batch, grouping)
    budget, objective, hints = budget or Budget(), objective or Objective(), hints or Hints()

    def vary(found: list[Considered]) -> list[Considered]:
        if grouping is None or not hints.may_merge:
            return []
        return merging_variants(found, model, graph, grouping, statistics)

    costs = statistics.unit_costs()
    units_from = costs.source if costs is not None else "assumed"
    return Choice(_answer(model, budget, objective, hints, vary), model, budget, objective, units_from)


def resource_model(
    graph: JoinGraph, statistics: StatisticsView, batch: float = 1.0, grouping: Grouping | None = None
) -> ResourceModel:
    """What plans of a query are priced by: estimates from the statistics, and this engine's unit costs unless given."""
    costs = statistics.unit_costs()
    units = costs.units if costs is not None else ENGINE
    slide = grouping.slide / 1e6 if grouping is not None else 0.0
    return ResourceModel(from_statistics(graph, statistics, slide=slide), units, batch=batch)


def _answer(
    model: ResourceModel, budget: Budget, objective: Objective, hints: Hints, vary: _Vary
) -> Proposal | Infeasible:
    if len(model.estimates.names) == 1:
        candidates, hints = [_only(Leaf(model.estimates.names[0]), model, "only plan")], Hints()
    elif hints.plan is not None:
        orderer, _ = _orderer(model)
        # Beside the forced plan the two ends of the scale, for comparison.
        others = [(orderer.mjoin(), "mjoin ordering"), (min_state(orderer), "min-state")]
        forced = _only(orderer.complete(hints.plan), model, "given")
        candidates = _distinct([forced, *(orderer.considered(shape, origin) for shape, origin in others)])
        hints = replace(hints, plan=forced.plan)
    else:
        candidates = _candidates(model, budget, objective, hints)
        candidates += vary([each for each in candidates if not hints.objection(each.plan)])
    allowed: list[Considered] = []
    refused: list[Considered] = []
    for candidate in candidates:
        reason = hints.objection(candidate.plan)
        if reason:
            refused.append(replace(candidate, reason=reason, standing="refused"))
        else:
            allowed.append(candidate)
    if not allowed:
        allowed = [_only(_obeying(model, hints), model, "hints")]
    qualified = [candidate for candidate in allowed if budget.allows(candidate.cost)]
    over = [
        replace(c, reason=over_budget(c.cost, budget), standing="over") for c in allowed if not budget.allows(c.cost)
    ]
    if not qualified:
        failed = infeasible(over, budget)
        return replace(failed, considered=(*failed.considered, *refused))
    ranked = _ranked(qualified, model, budget, objective)
    best = ranked[0]
    rest = [replace(c, reason=_why_lost(c, best, budget)) if not c.reason else c for c in ranked[1:]]
    won = replace(best, reason=best.reason or "chosen", standing="chosen")
    reason = _why_won(ranked, budget, objective) if hints.plan is None else "it was asked for"
    return Proposal(best.plan, best.cost, reason, (won, *rest, *over, *refused))


def _orderer(model: ResourceModel) -> tuple[Orderer, Chains | None]:
    """What orders the probes of a query's joins; with few relations also the chains that a full search goes by."""
    if len(model.estimates.names) <= EXHAUSTIVE:
        chains = Chains(model)
        return exact_orderer(chains), chains
    # Only here: loading the compiled kernels takes longer than a small query's whole search.
    from anabranch.optimize.ranking import ranked_orderer

    return ranked_orderer(model), None


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
    orderer, chains = _orderer(model)
    tree = min_state(orderer)
    shapes = [(orderer.mjoin(), "mjoin ordering"), (tree, "min-state")]
    shapes += [(shape, "state-selection") for shape in select_states(orderer, budget)[1:]]
    # Hints may refuse what fits first, so with hints the whole way from the tree to the mjoin is laid out.
    reach = budget if hints == Hints() else Budget(memory=math.ulp(0.0))
    shapes += [(shape, "state-removal") for shape in remove_states(orderer, reach, tree)[1:]]
    found = [orderer.considered(shape, origin) for shape, origin in shapes]
    if chains is not None:
        forbidden, needed = hints.forbidden_sets(model), hints.needed_sets(model)
        found += undominated(chains, forbidden=forbidden, needed=needed)
        if objective.kind in ("rate", "first"):
            # Early on, while the windows are short, another plan may be the cheapest.
            soon = min(max(model.estimates.windows), objective.amount) / 2 if objective.kind == "rate" else 1.0
            early = undominated(Chains(at(model, soon)), forbidden=forbidden, needed=needed)
            found += [Considered(c.plan, model.price(c.plan), f"{c.origin}, early") for c in early]
    amended = []
    for candidate in found:
        plan = hints.amended(candidate.plan, model)
        amended.append(candidate if plan == candidate.plan else replace(candidate, plan=plan, cost=model.price(plan)))
    return _distinct(amended)


def _distinct(found: list[Considered]) -> list[Considered]:
    """Each plan once, as it was found first."""
    distinct: dict[str, Considered] = {}
    for candidate in found:
        distinct.setdefault(str(candidate.plan), candidate)
    return list(distinct.values())


def _obeying(model: ResourceModel, hints: Hints) -> PhysicalPlan:
    """A plan built from the wanted joins alone, for when the strategies found none that obeys the hints."""
    orderer, _ = _orderer(model)
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
        case "qualified" if budget.is_limited:
            return sorted(by_cpu, key=lambda c: budget.use(c.cost))
        case "qualified":
            alike = [c for c in by_cpu if c.cost.cpu <= by_cpu[0].cost.cpu * (1 + ALIKE)]
            return sorted(alike, key=lambda c: c.cost.memory) + by_cpu[len(alike) :]
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


def _why_won(ranked: list[Considered], budget: Budget, objective: Objective) -> str:
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
            return f"most room within the budget: uses {budget.use(best.cost):.0%} of it"
        case "qualified":
            if best.cost.cpu == min(c.cost.cpu for c in ranked):
                return "least CPU; no limits are set"
            return f"least memory of the plans within {ALIKE:.0%} of the least CPU; no limits are set"


def _why_lost(loser: Considered, best: Considered, budget: Budget) -> str:
    needs = _difference(loser.cost, best.cost)
    return f"{needs}, {budget.use(loser.cost):.0%} of the budget" if budget.is_limited else needs


def _difference(loser: Resources, best: Resources) -> str:
    compared = (("CPU", loser.cpu, best.cpu), ("memory", loser.memory, best.memory))
    more = [_times(one, other, what) for what, one, other in compared if one > other * (1 + 1e-9)]
    less = [f"{1 - one / other:.1%} less {what}" for what, one, other in compared if one < other * (1 - 1e-9)]
    if not more:
        return f"needs {' and '.join(less)}" if less else "costs the same"
    return f"needs {' and '.join(more)}" + (f", though {less[0]}" if less else "")


def _times(more: float, less: float, what: str) -> str:
    ratio = more / less if less else math.inf
    return f"{ratio:.1f} times the {what}" if ratio >= 2 else f"{ratio - 1:.1%} more {what}"
