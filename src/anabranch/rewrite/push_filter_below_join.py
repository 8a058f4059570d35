"""Predicate pushdown: applies a condition on one input before its rows are stored or probe other states."""

from __future__ import annotations

from anabranch.lang.expr import conjunction, relations
from anabranch.plan.logical import Filter, Join, LogicalPlan, relation_names


def push_filter_below_join(plan: LogicalPlan) -> LogicalPlan | None:
    """Turns join predicates over one input into a Filter on it, and constant ones into a Filter on every input.

    Predicates after a constant that is not true are not evaluated, because they could fail.
    """
    if not isinstance(plan, Join):
        return None
    names = [frozenset(relation_names(child)) for child in plan.inputs]
    kept = tuple(p for p in plan.predicates if not any(relations(p) <= here for here in names))
    if kept == plan.predicates:
        return None
    filtered = []
    for child, here in zip(plan.inputs, names, strict=True):
        condition = conjunction(tuple(p for p in plan.predicates if relations(p) <= here))
        filtered.append(child if condition is None else Filter(child, condition))
    return Join(tuple(filtered), kept)
