"""Offers a mesh for a query before it starts, from its sampled rows.

Invariant: under `plan: auto`, a mesh is taken only if it passes the gate of plan changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from anabranch.adapt.advisors.routes import AT_ONCE
from anabranch.adapt.gate import Gate, Verdict, judge
from anabranch.cost.resources import Resources
from anabranch.optimize import Choice, Infeasible, MeshOffer
from anabranch.optimize.proposals import kind
from anabranch.plan.classing import classes_for, with_classes
from anabranch.plan.mesh import check_mesh, is_mesh_text, parse_mesh
from anabranch.plan.physical import PhysicalPlan, pre_groups
from anabranch.plan.query import Query
from anabranch.planning.options import PlanOptions
from anabranch.stats.mesh.learnt import LearntMesh

Learn: TypeAlias = Callable[[Mapping[str, float], PhysicalPlan], LearntMesh]
"""Finds a mesh, given the expected rows of each relation's state and the best mjoin."""


def offer_mesh(
    query: Query, plan_options: PlanOptions, choice: Choice, learn: Learn | None, gate: Gate
) -> MeshOffer | None:
    graph = query.graph
    if is_mesh_text(plan_options.plan):
        written = parse_mesh(plan_options.plan)
        return MeshOffer("as written", True, check_mesh(written, with_classes(graph, classes_for(written, graph))))
    if isinstance(choice.answer, Infeasible):
        return None
    wanted = plan_options.plan == "mesh"
    is_free = plan_options.plan == "auto" and not plan_options.has_hints
    if wanted and len(graph.names) < 3:
        return MeshOffer("two relations have only one order")
    if wanted and learn is None:
        return MeshOffer("no sample: the query starts with one route per relation and learns a mesh while it runs")
    if learn is None or len(graph.names) < 3 or not (wanted or is_free):
        return None
    model, best = choice.model, choice.answer.cost
    considered = choice.answer.considered
    mjoins = [each for each in considered if kind(each.plan) == "mjoin" and not any(pre_groups(each.plan))]
    rival = min(mjoins, key=lambda each: each.cost.cpu, default=None)
    single = best if rival is None else rival.cost

    def verdict(proposed: Resources) -> Verdict:
        return judge(gate, best, proposed, AT_ONCE, choice.objective, choice.budget)

    best_case = verdict(replace(single, cpu=model.base.cpu))
    if is_free and not best_case.passed:
        return MeshOffer(f"not learnt: even with free routes it {best_case.reason}")
    held = {name: model.rows(model.estimates.mask((name,))) for name in graph.names}
    learnt = learn(held, choice.answer.plan if rival is None else rival.plan)
    if not learnt.is_mesh:
        return MeshOffer("one route per relation is best for the sampled rows", learnt=learnt)
    rates = dict(zip(graph.names, model.estimates.rates, strict=True))
    # The model gives the total cost of single routes; the sample gives the fraction that a mesh would save.
    routing = single.cpu - model.base.cpu
    cost = replace(single, cpu=model.base.cpu + routing / (1 + learnt.gain(rates)))
    if wanted:
        return MeshOffer("requested, and it gains on held-out rows", True, learnt.mesh, learnt, cost)
    found = verdict(cost)
    return MeshOffer(found.reason, found.passed, learnt.mesh, learnt, cost)
