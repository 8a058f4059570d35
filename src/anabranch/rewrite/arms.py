"""The inputs of a join as the rules see them: a source with at most a filter and a pruning on top."""

from __future__ import annotations

from anabranch.expr import Expr, Literal, conjuncts
from anabranch.plan.logical import Filter, LogicalPlan, Prune


def conditions(arm: LogicalPlan) -> tuple[Expr, ...]:
    """What every row of the arm already satisfies."""
    match arm:
        case Filter(input=below, predicate=predicate):
            return (*conditions(below), *conjuncts(predicate))
        case Prune(input=below):
            return conditions(below)
        case _:
            return ()


def passes_nothing(arm: LogicalPlan) -> bool:
    """True when a constant condition already drops every row, so that no other condition is worth adding."""
    return any(isinstance(condition, Literal) and condition.value is not True for condition in conditions(arm))
