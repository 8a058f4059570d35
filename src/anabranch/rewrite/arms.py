"""The inputs of a join as the rules see them: a source with at most a filter and a pruning on top."""

from __future__ import annotations

from anabranch.expr import Expr, conjuncts
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
