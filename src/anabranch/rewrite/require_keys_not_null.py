"""Drops rows with a NULL key before they are stored, because NULL equals nothing."""

from __future__ import annotations

from dataclasses import replace

from anabranch.functions import below_casts, bind_call, is_nullable
from anabranch.lang.expr import Call, Expr, children, conjunction, relations
from anabranch.plan.key_classes import key_sides
from anabranch.plan.logical import Filter, Join, LogicalPlan, OuterJoin, SideKind, relation_names
from anabranch.rewrite.arms import conditions, passes_nothing

_STRICT = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "like", "is_not_null"})
"""Functions that are never true for a NULL argument."""


def require_keys_not_null(plan: LogicalPlan) -> LogicalPlan | None:
    """Adds a filter to each input of a Join, and to the side of an OuterJoin, that drops rows whose key is NULL."""
    if isinstance(plan, OuterJoin) and plan.kind is not SideKind.FULL:
        return _of_side(plan)
    if not isinstance(plan, Join):
        return None
    sides = [side for predicate in plan.predicates for side in key_sides(predicate) or ()]
    filtered = tuple(child if passes_nothing(child) else _not_null(child, sides) for child in plan.inputs)
    return None if filtered == plan.inputs else Join(filtered, plan.predicates)


def _of_side(plan: OuterJoin) -> LogicalPlan | None:
    """Drops rows of a side whose key is NULL; combinations with a NULL key have no match and are kept."""
    sides = [side for predicate in plan.predicates for side in key_sides(predicate) or ()]
    filtered: LogicalPlan
    if isinstance(plan.side, Join):
        inputs = tuple(child if passes_nothing(child) else _not_null(child, sides) for child in plan.side.inputs)
        filtered = replace(plan.side, inputs=inputs)
    else:
        filtered = plan.side if passes_nothing(plan.side) else _not_null(plan.side, sides)
    return None if filtered == plan.side else replace(plan, side=filtered)


def _not_null(child: LogicalPlan, sides: list[Expr]) -> LogicalPlan:
    here = frozenset(relation_names(child))
    nullable = (below_casts(side) for side in sides if relations(side) <= here and is_nullable(side))
    known = conditions(child)
    wanted = [side for side in dict.fromkeys(nullable) if not any(_rejects_null(part, side) for part in known)]
    condition = conjunction(tuple(bind_call("is_not_null", (side,)) for side in wanted))
    return child if condition is None else Filter(child, condition)


def _rejects_null(condition: Expr, expr: Expr) -> bool:
    strict = isinstance(condition, Call) and condition.function in _STRICT
    return strict and any(below_casts(argument) == expr for argument in children(condition))
