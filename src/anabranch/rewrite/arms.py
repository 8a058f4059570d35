"""Inputs of a join in rewrite rules: a source with at most one filter and one pruning above it."""

from __future__ import annotations

from anabranch.lang.expr import Expr, Literal, conjuncts
from anabranch.plan.logical import Filter, LogicalPlan, Prune


def conditions(arm: LogicalPlan) -> tuple[Expr, ...]:
    """Returns the conditions that every row of the arm satisfies."""
    match arm:
        case Filter(input=below, predicate=predicate):
            return (*conditions(below), *conjuncts(predicate))
        case Prune(input=below):
            return conditions(below)
        case _:
            return ()


def passes_nothing(arm: LogicalPlan) -> bool:
    """True if a constant condition drops every row, so that adding other conditions is pointless."""
    return any(isinstance(condition, Literal) and condition.value is not True for condition in conditions(arm))
