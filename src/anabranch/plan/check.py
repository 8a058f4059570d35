"""Validates physical plans against their query.

Invariant: `validate` is called wherever a plan is made or changed, so engine and cost models need no checks of their
own.
"""

from __future__ import annotations

from difflib import get_close_matches

from anabranch.errors import PlanError
from anabranch.lang.schema import is_nested
from anabranch.plan.join_graph import JoinGraph, selection_name
from anabranch.plan.physical import Leaf, PhysicalPlan, PreGroup, kept, nodes, pre_groups, shared_parts, unshared
from anabranch.plan.pregrouping import agreement
from anabranch.plan.query import Grouping
from anabranch.plan.selections import deferred_thetas, guarded_by, still_unchecked

PLAN_WORDS = ("auto", "mjoin", "tree", "jtree", "mesh")
"""Keywords that may be given instead of a plan."""


def validate(plan: PhysicalPlan, graph: JoinGraph, grouping: Grouping | None = None) -> PhysicalPlan:
    """Returns the plan; raises PlanError if it does not compute the query.

    A plan must join exactly the relations of the graph, check each predicate once, and merge only mergeable rows. Joins
    validate their own inputs on construction. `grouping` is that of the query, None if it does not allow merging.
    """
    planned, wanted = set(plan.relations), set(graph.names)
    if unknown := sorted(planned - wanted):
        raise PlanError(
            f"plan '{plan}' joins '{unknown[0]}', which the query does not have",
            hint=_meant(plan, unknown[0]) or f"the query's relations are {', '.join(graph.names)}",
        )
    if missing := sorted(wanted - planned):
        raise PlanError(f"plan '{plan}' leaves out '{missing[0]}'", hint=f"name each of {', '.join(graph.names)} once")
    if (refusal := keeps_counted(plan, graph)) is not None:
        name, inside = refusal
        raise PlanError(
            f"plan '{plan}' keeps combinations with rows of '{name}', which has a count window, in state '{inside}'",
            detail="the deadline of such a row is known only after later rows, and the state would not be updated",
            hint=f"let '{name}' be an input of the last join by itself, as in ((a b) {name}), or use mjoin",
        )
    # A shared join counts as the joins inside it.
    _require_checkable(unshared(plan), graph)
    if any(shared_parts(plan)) and any(pre_groups(plan)):
        raise PlanError(
            f"plan '{plan}' merges rows and shares a join",
            detail="the residual predicates of the query could not be checked on merged rows",
            hint="remove the square brackets or the braces",
        )
    for merged in pre_groups(plan):
        _require_mergeable(merged, plan, graph, grouping)
    return plan


def keeps_counted(plan: PhysicalPlan, graph: JoinGraph) -> tuple[str, str] | None:
    """Returns a relation with a count window that an intermediate state of the plan would hold, and that state; else
    None.

    Merged rows are held as well: rows cannot be merged while their deadlines are unknown. So are the combinations of a
    shared join, for all its users.
    """
    if not graph.counted:
        return None
    for merged in pre_groups(plan):
        return graph.counted[0], merged.shape
    for state in (*shared_parts(plan), *kept(unshared(plan))):
        for name in graph.counted:
            if name in state.relations:
                return name, state.shape
    return None


def _meant(plan: PhysicalPlan, word: str) -> str | None:
    """Returns a hint for a plan that is one word, such as 'mjion'."""
    close = get_close_matches(word, PLAN_WORDS, n=1) if isinstance(plan, Leaf) else []
    return f"did you mean '{close[0]}'?" if close else None


def _require_checkable(plan: PhysicalPlan, graph: JoinGraph) -> None:
    seen: set[int] = set()
    for node in nodes(plan):
        for position in node.checks:
            name = selection_name(position)
            if position >= len(graph.thetas):
                known = ", ".join(f"{selection_name(i)} is {theta}" for i, theta in enumerate(graph.thetas))
                raise PlanError(
                    f"plan '{plan}' checks '{name}', which the query does not have",
                    hint=f"its predicates are: {known}" if known else "no predicate of the query can be deferred",
                )
            if position in seen:
                raise PlanError(f"plan '{plan}' checks '{name}' twice", detail=f"'{name}' is {graph.thetas[position]}")
            if early := sorted(graph.thetas[position].relations - set(node.relations)):
                raise PlanError(
                    f"plan '{plan}' checks '{name}' at '{node.shape}', where '{early[0]}' is not joined yet",
                    detail=f"'{name}' is {graph.thetas[position]}",
                    hint="write it at a join above, or omit it: it is then checked as early as possible",
                )
            require_no_guard(position, graph, f"plan '{plan}'")
            seen.add(position)


def require_no_guard(position: int, graph: JoinGraph, who: str) -> None:
    """Raises PlanError if a deferred predicate may guard another one against failing."""
    name = selection_name(position)
    others = [theta.predicate for other, theta in enumerate(graph.thetas) if other != position]
    if (guarded := guarded_by(graph.thetas[position].predicate, others)) is not None:
        raise PlanError(
            f"{who} cannot defer '{name}'",
            detail=f"'{graph.thetas[position]}' may guard '{guarded}' against failing",
            hint=f"leave '{name}' out of the plan: it is then checked as early as possible",
        )


def _require_mergeable(merged: PreGroup, plan: PhysicalPlan, graph: JoinGraph, grouping: Grouping | None) -> None:
    if merged is plan:
        raise PlanError(
            f"plan '{plan}' merges the rows of the whole query",
            hint=f"write '{merged.input}': its results are grouped in any case",
        )
    if grouping is None:
        raise PlanError(
            f"plan '{plan}' merges rows in '{merged.shape}', which the query does not allow",
            detail="only a query with GROUP BY or aggregates, without outer, semi and anti joins, can merge rows",
            hint="remove the square brackets",
        )
    if isinstance(merged.input, Leaf):
        unchecked = frozenset[int]()  # rows that differ in what is checked above are not merged
    else:
        unchecked = still_unchecked(merged.input, graph.thetas, deferred_thetas(plan))
    for position in sorted(unchecked):
        name = selection_name(position)
        raise PlanError(
            f"plan '{plan}' merges rows in '{merged.shape}' before '{name}' is checked",
            detail=f"'{name}' is {graph.thetas[position]}; merged rows are no longer distinguishable",
            hint=f"check it inside the brackets, or remove the brackets around {merged.input} out",
        )
    for value in agreement(graph, grouping, merged.relations).values:
        if is_nested(value.type):
            raise PlanError(
                f"plan '{plan}' cannot merge rows in '{merged.shape}': they would have to agree in '{value}'",
                detail=f"it is of the nested type {value.type}, and an operator outside the brackets reads it",
                hint=f"remove the brackets around {merged.input} out",
            )
