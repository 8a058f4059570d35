"""Merge adjacent filters."""

from __future__ import annotations

from anabranch.lang.expr import conjunction, conjuncts
from anabranch.plan.logical import Filter, LogicalPlan


def merge_filters(plan: LogicalPlan) -> LogicalPlan | None:
    """Replaces Filter over Filter by one Filter on the conjunction, each condition once."""
    match plan:
        case Filter(input=Filter(input=below, predicate=first), predicate=second):
            parts = tuple(dict.fromkeys((*conjuncts(first), *conjuncts(second))))
            merged = conjunction(parts)
            assert merged is not None, "a filter has at least one condition"
            return Filter(below, merged)
    return None
