"""Finds plans that defer a costly predicate to a join above, where fewer combinations are left to check.

A predicate over several relations is normally checked as soon as they are joined. If a check costs as much as several
lookups and the next join drops most combinations, it is cheaper to check the output of that join; the states in between
then hold combinations that the check will reject. Predicates are moved greedily, until no move saves anything. (Viglas
and Naughton 2002 order two selections by cost and selectivity; here the joins between them count too.)

Limit: this starts from the plans that are best without it, so a shape that is good only with a deferred predicate can
be missed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from anabranch.cost.resources import ResourceModel
from anabranch.errors import PlanError
from anabranch.optimize.proposals import Candidate
from anabranch.plan.check import require_no_guard
from anabranch.plan.cost_rank import COSTLY
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import JoinNode, PhysicalPlan, nodes, pre_groups

MOST_VARIED = 8
"""The maximum number of candidates whose variants are computed, cheapest first."""


def deferring_variants(found: Iterable[Candidate], model: ResourceModel, graph: JoinGraph) -> list[Candidate]:
    """Returns, for each of the cheapest candidates, the best plan with the same joins that defers costly predicates."""
    costly = _movable(model, graph)
    if not costly:
        return []
    variants = []
    # Merged rows cannot be distinguished, so predicates on their differences must have been checked.
    plain = (each for each in found if not any(pre_groups(each.plan)))
    for candidate in sorted(plain, key=lambda each: (each.cost.cpu, str(each.plan)))[:MOST_VARIED]:
        best = candidate
        while True:
            plans = [plan for position in costly for plan in _moved(best.plan, position, graph)]
            tried = [(model.price(plan), plan) for plan in plans]
            if not tried:
                break
            cost, plan = min(tried, key=lambda each: each[0].cpu)
            if cost.cpu >= best.cost.cpu:
                break
            best = replace(candidate, plan=plan, cost=cost, origin=f"{candidate.origin}, deferred")
        if best is not candidate:
            variants.append(best)
    return variants


def _movable(model: ResourceModel, graph: JoinGraph) -> list[int]:
    """Returns the positions of costly predicates that guard no other predicate against failing."""
    found = []
    for position, theta in enumerate(model.estimates.thetas):
        if theta.weight >= COSTLY and not theta.is_band and theta.selectivity > 0:
            try:
                require_no_guard(position, graph, "the optimizer")
            except PlanError:
                continue
            found.append(position)
    return found


def _moved(plan: PhysicalPlan, position: int, graph: JoinGraph) -> list[PhysicalPlan]:
    """Returns the plan with a predicate moved to each other join that has all its relations."""
    wanted = graph.thetas[position].relations
    return [
        _with_check(plan, position, node.shape)
        for node in nodes(plan)
        if wanted <= frozenset(node.relations) and position not in node.checks
    ]


def _with_check(plan: PhysicalPlan, position: int, at: str) -> PhysicalPlan:
    if not isinstance(plan, JoinNode):
        return plan
    others = tuple(check for check in plan.checks if check != position)
    checks = tuple(sorted((*others, position))) if plan.shape == at else others
    inputs = tuple(_with_check(child, position, at) for child in plan.inputs)
    return replace(plan, inputs=inputs, checks=checks)
