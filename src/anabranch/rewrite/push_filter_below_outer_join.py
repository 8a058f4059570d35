"""Predicate pushdown around outer, semi and anti joins.

A condition of WHERE on the core alone may be applied before any side is looked at; one that reads a side waits for all
of them. Of the predicates of ON, those on the side alone may be applied to the side, because a row that fails them
meets nothing; those on the combinations alone must stay: a combination that fails them meets nothing, and comes out for
that. A full join keeps both of its inputs, so nothing passes it.
"""

from __future__ import annotations

from anabranch.lang.expr import Expr, conjunction, conjuncts, relations
from anabranch.plan.logical import Filter, LogicalPlan, OuterJoin, SideKind, relation_names


def push_filter_below_outer_join(plan: LogicalPlan) -> LogicalPlan | None:
    """Move conditions on one input of an OuterJoin below it, as far as that keeps the answer."""
    match plan:
        case Filter(input=OuterJoin() as joined, predicate=predicate):
            below, above = _split(conjuncts(predicate), _core(joined))
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


def _core(plan: LogicalPlan) -> frozenset[str] | None:
    """The relations inside all outer joins; None if a full join is among these."""
    while True:
        match plan:
            case OuterJoin(kind=SideKind.FULL):
                return None
            case OuterJoin(input=below) | Filter(input=below):
                plan = below
            case _:
                return frozenset(relation_names(plan))


def _split(predicates: tuple[Expr, ...], here: frozenset[str] | None) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """Divide predicates into those that read these relations only, and the others."""
    if here is None:
        return (), predicates
    inside = tuple(each for each in predicates if relations(each) <= here)
    return inside, tuple(each for each in predicates if not relations(each) <= here)


def _filtered(plan: LogicalPlan, conditions: tuple[Expr, ...]) -> LogicalPlan:
    condition = conjunction(conditions)
    return plan if condition is None else Filter(plan, condition)
