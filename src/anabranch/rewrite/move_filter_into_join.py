"""A condition above a join is a join predicate: WHERE and ON mean the same for inner joins."""

from __future__ import annotations

from anabranch.expr import conjuncts
from anabranch.plan.logical import Filter, Join, LogicalPlan


def move_filter_into_join(plan: LogicalPlan) -> LogicalPlan | None:
    """Filter over Join becomes a Join with the conditions among its predicates, each once."""
    match plan:
        case Filter(input=Join(inputs=inputs, predicates=predicates), predicate=predicate):
            return Join(inputs, tuple(dict.fromkeys((*predicates, *conjuncts(predicate)))))
    return None
