"""Refuses a physical plan that does not compute its query; run after everything that makes or changes a plan."""

from __future__ import annotations

from anabranch.errors import PlanError
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import PhysicalPlan, PreGroup, pre_groups
from anabranch.plan.pregrouping import agreement
from anabranch.plan.query import Grouping
from anabranch.schema import is_nested


def validate(plan: PhysicalPlan, graph: JoinGraph, grouping: Grouping | None = None) -> PhysicalPlan:
    """The plan itself when it joins exactly the relations of the graph, and merges only what may be merged.

    Joins validated their own parts at birth. `grouping` is that of the query, None when it is not grouped.
    """
    planned, wanted = set(plan.relations), set(graph.names)
    if unknown := sorted(planned - wanted):
        raise PlanError(
            f"plan '{plan}' joins '{unknown[0]}', which the query does not have",
            hint=f"the query's relations are {', '.join(graph.names)}",
        )
    if missing := sorted(wanted - planned):
        raise PlanError(f"plan '{plan}' leaves out '{missing[0]}'", hint=f"name each of {', '.join(graph.names)} once")
    for merged in pre_groups(plan):
        _require_mergeable(merged, plan, graph, grouping)
    return plan


def _require_mergeable(merged: PreGroup, plan: PhysicalPlan, graph: JoinGraph, grouping: Grouping | None) -> None:
    if merged is plan:
        raise PlanError(
            f"plan '{plan}' merges the rows of the whole query",
            hint=f"write '{merged.input}': its results are grouped anyway",
        )
    if grouping is None:
        raise PlanError(
            f"plan '{plan}' merges rows in '{merged.shape}', but the query is not grouped",
            hint="leave the square brackets out; only a query with GROUP BY or aggregates can merge rows",
        )
    for value in agreement(graph, grouping, merged.relations).values:
        if is_nested(value.type):
            raise PlanError(
                f"plan '{plan}' cannot merge rows in '{merged.shape}': they would have to agree in '{value}'",
                detail=f"it is of the nested type {value.type}, and something outside the brackets reads it",
                hint=f"leave the brackets around {merged.input} out",
            )
