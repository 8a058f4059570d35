"""Turns conditions above a join into join predicates: for inner joins WHERE and ON are equivalent."""

from __future__ import annotations

from anabranch.lang.expr import conjuncts
from anabranch.plan.logical import Filter, Join, LogicalPlan


def move_filter_into_join(plan: LogicalPlan) -> LogicalPlan | None:
    """Replaces Filter over Join by a Join that has the conditions among its predicates, each once."""
    match plan:
        case Filter(input=Join(inputs=inputs, predicates=predicates), predicate=predicate):
            return Join(inputs, tuple(dict.fromkeys((*predicates, *conjuncts(predicate)))))
    return None
