"""Predicate pushdown around outer, semi and anti joins.

A WHERE condition on the core alone may be applied before any side; one that reads a side is applied after all of them.
ON predicates on the side alone may be applied to the side, because a row that fails them has no match. ON predicates on
the combinations alone stay on the join: a combination that fails them has no match and may be emitted because of that.
A full join preserves both of its inputs, so no predicate is pushed below it.
"""

from __future__ import annotations

from anabranch.lang.expr import Expr, conjunction, conjuncts, relations
from anabranch.plan.logical import Filter, LogicalPlan, OuterJoin, SideKind, core_relations, relation_names


def push_filter_below_outer_join(plan: LogicalPlan) -> LogicalPlan | None:
    """Moves conditions on one input of an OuterJoin below it, if that does not change the results."""
    match plan:
        case Filter(input=OuterJoin() as joined, predicate=predicate):
            below, above = _split(conjuncts(predicate), core_relations(joined))
            if not below:
                return None
            pushed = OuterJoin(_filtered(joined.input, below), joined.side, joined.kind, joined.predicates)
            return _filtered(pushed, above)
        case OuterJoin() if plan.kind is not SideKind.FULL:
            here = frozenset(relation_names(plan.side))
            below = tuple(each for each in _split(plan.predicates, here)[0] if relations(each))
            kept = tuple(each for each in plan.predicates if each not in below)
            if not below:
                return None
            return OuterJoin(plan.input, _filtered(plan.side, below), plan.kind, kept)
    return None


def _split(predicates: tuple[Expr, ...], here: frozenset[str] | None) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """Splits predicates into those that read only these relations, and the others."""
    if here is None:
        return (), predicates
    inside = tuple(each for each in predicates if relations(each) <= here)
    return inside, tuple(each for each in predicates if not relations(each) <= here)


def _filtered(plan: LogicalPlan, conditions: tuple[Expr, ...]) -> LogicalPlan:
    condition = conjunction(conditions)
    return plan if condition is None else Filter(plan, condition)
