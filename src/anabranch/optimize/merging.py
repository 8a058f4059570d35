"""Finds plans of a grouped query that merge rows before they join: tries which inputs of a plan to merge.

Merging pays if many rows fall into one group between two boundaries. It is considered only if that is known: if the
number of groups was given, sampled or measured, or if rows need only agree in keys of known selectivity and each key
occurs at least twice. A selectivity alone cannot distinguish keys that never repeat from as many keys as there are rows
in a window; requiring two of each excludes such keys if a slide is no longer than the window.

Inputs are added greedily, until none saves anything. (Zhu 2006, Section 14.1, defines what may be pushed below a join,
not when.)

Limit: this starts from the plans that are best without merging, so a shape that is good only with it can be missed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from anabranch.cost.resources import ResourceModel
from anabranch.lang.schema import is_nested
from anabranch.optimize.proposals import Candidate
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import JoinNode, PhysicalPlan, PreGroup, nodes
from anabranch.plan.pregrouping import agreement
from anabranch.plan.query import Grouping
from anabranch.stats.view import StatisticsView

MOST_VARIED = 8
"""The maximum number of candidates whose merging variants are computed, cheapest first."""
TWICE = 2.0


def merging_variants(
    found: Iterable[Candidate], model: ResourceModel, graph: JoinGraph, grouping: Grouping, seen: StatisticsView
) -> list[Candidate]:
    """Returns, for each of the cheapest candidates, the best plan with the same joins and some merged inputs."""

    @cache
    def may_pay(relations: frozenset[str]) -> bool:
        return _is_known(relations, model, graph, grouping, seen)

    variants = []
    for candidate in sorted(found, key=lambda each: (each.cost.cpu, str(each.plan)))[:MOST_VARIED]:
        inputs = {frozenset(child.relations) for node in nodes(candidate.plan) for child in node.inputs}
        open_inputs = sorted((each for each in inputs if may_pay(each)), key=sorted)
        best, merged = candidate, frozenset[frozenset[str]]()
        while True:
            plans = [(merged | {each}, _merged(candidate.plan, merged | {each})) for each in open_inputs]
            tried = [(model.price(plan), chosen, plan) for chosen, plan in plans if chosen != merged]
            if not tried:
                break
            cost, chosen, plan = min(tried, key=lambda each: each[0].cpu)
            if cost.cpu >= best.cost.cpu:
                break
            best, merged = replace(candidate, plan=plan, cost=cost, origin=f"{candidate.origin}, merged"), chosen
        if merged:
            variants.append(best)
    return variants


def _is_known(
    relations: frozenset[str], model: ResourceModel, graph: JoinGraph, grouping: Grouping, seen: StatisticsView
) -> bool:
    """True if the rows of these relations may be merged, and enough is known to price it."""
    agreed = agreement(graph, grouping, relations)
    if any(is_nested(value.type) for value in agreed.values):
        return False
    if seen.number_of_groups(relations) is not None:
        return True
    keys = [key for key in graph.keys if key.name in agreed.codes]
    members = {member for key in keys for relation, member in key.members if relation in relations}
    if any(value not in members for value in agreed.values):
        return False
    for key in keys:
        pairs = ((one, other) for one in key.relations & relations for other in key.relations - relations)
        if all(seen.pair_selectivity(one, other) is None for one, other in pairs):
            return False
    mask = model.estimates.mask(tuple(relations))
    return model.counting(mask) >= TWICE * model.groups(mask)


def _merged(plan: PhysicalPlan, merged: frozenset[frozenset[str]]) -> PhysicalPlan:
    """Returns the plan with the inputs of these relations merged."""
    if not isinstance(plan, JoinNode):
        return plan
    inputs = (_merged(child, merged) for child in plan.inputs)
    return replace(
        plan,
        inputs=tuple(PreGroup(child) if frozenset(child.relations) in merged else child for child in inputs),
    )
