"""Refuses a physical plan that does not compute its query; run after everything that makes or changes a plan."""

from __future__ import annotations

from anabranch.errors import PlanError
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import PhysicalPlan


def validate(plan: PhysicalPlan, graph: JoinGraph) -> PhysicalPlan:
    """The plan itself when it joins exactly the relations of the graph; joins validated their own parts at birth."""
    planned, wanted = set(plan.relations), set(graph.names)
    if unknown := sorted(planned - wanted):
        raise PlanError(
            f"plan '{plan}' joins '{unknown[0]}', which the query does not have",
            hint=f"the query's relations are {', '.join(graph.names)}",
        )
    if missing := sorted(wanted - planned):
        raise PlanError(f"plan '{plan}' leaves out '{missing[0]}'", hint=f"name each of {', '.join(graph.names)} once")
    return plan
