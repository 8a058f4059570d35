"""The rules in order, and the driver that applies them until none applies.

A rule takes one node and returns another, or None. The driver walks the plan, inputs first, and starts again from the
first rule after each change, so a rule may assume that the earlier ones no longer apply. It checks every rewrite:
equal output columns, equal relations, no expression that reads a missing column, no plan that occurred before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from anabranch.errors import InvariantBroken
from anabranch.lang.expr import Expr, columns
from anabranch.plan.logical import (
    Aggregate,
    Filter,
    Join,
    LogicalPlan,
    OuterJoin,
    Project,
    Prune,
    Source,
    inputs,
    relation_names,
    render,
)
from anabranch.rewrite.drop_implied_conditions import drop_implied_conditions
from anabranch.rewrite.fold_constants import fold_constants
from anabranch.rewrite.infer_key_filters import infer_key_filters
from anabranch.rewrite.merge_filters import merge_filters
from anabranch.rewrite.move_filter_into_join import move_filter_into_join
from anabranch.rewrite.prune_columns import prune_columns
from anabranch.rewrite.push_filter_below_join import push_filter_below_join
from anabranch.rewrite.push_filter_below_outer_join import push_filter_below_outer_join
from anabranch.rewrite.require_keys_not_null import require_keys_not_null

Rule: TypeAlias = Callable[[LogicalPlan], LogicalPlan | None]

RULES: tuple[Rule, ...] = (
    merge_filters,
    move_filter_into_join,
    fold_constants,
    push_filter_below_join,
    push_filter_below_outer_join,
    infer_key_filters,
    drop_implied_conditions,
    require_keys_not_null,
    prune_columns,
)


@dataclass(frozen=True)
class Rewrite:
    """One effective application of a rule, and the resulting plan."""

    rule: str
    plan: LogicalPlan


def rewrite(plan: LogicalPlan, rules: tuple[Rule, ...] = RULES) -> LogicalPlan:
    """Applies the rules until none applies."""
    for step in steps(plan, rules):
        plan = step.plan
    return plan


def steps(plan: LogicalPlan, rules: tuple[Rule, ...] = RULES) -> Iterator[Rewrite]:
    """Yields every rewrite of a plan in order."""
    seen = [plan]
    while (step := _first_effective(plan, rules)) is not None:
        if step.plan in seen:
            cycle = "\n\n".join(render(earlier) for earlier in seen[seen.index(step.plan) :])
            raise InvariantBroken(f"rewriting does not end: rule '{step.rule}' repeats a plan", detail=cycle)
        _validate(plan, step)
        plan = step.plan
        seen.append(plan)
        yield step


def _first_effective(plan: LogicalPlan, rules: tuple[Rule, ...]) -> Rewrite | None:
    for rule in rules:
        changed = _everywhere(rule, plan)
        if changed != plan:
            return Rewrite(rule.__name__, changed)
    return None


def _everywhere(rule: Rule, plan: LogicalPlan) -> LogicalPlan:
    below = tuple(_everywhere(rule, child) for child in inputs(plan))
    if below != inputs(plan):
        plan = _with_inputs(plan, below)
    return rule(plan) or plan


def _with_inputs(plan: LogicalPlan, below: tuple[LogicalPlan, ...]) -> LogicalPlan:
    match plan:
        case Source():
            return plan
        case Join():
            return replace(plan, inputs=below)
        case OuterJoin():
            return replace(plan, input=below[0], side=below[1])
        case Filter() | Project() | Prune() | Aggregate():
            return replace(plan, input=below[0])


def _validate(before: LogicalPlan, step: Rewrite) -> None:
    same = before.columns == step.plan.columns and relation_names(before) == relation_names(step.plan)
    missing = next(_missing(step.plan), "")
    if not same or missing:
        raise InvariantBroken(
            f"rule '{step.rule}' changed the meaning of the query",
            detail=f"{missing}\nbefore:\n{render(before)}\nafter:\n{render(step.plan)}",
        )


def _missing(plan: LogicalPlan) -> Iterator[str]:
    known = {column for child in inputs(plan) for column in child.columns}
    for expression in _expressions(plan):
        yield from (f"'{expression}' reads '{column}'" for column in columns(expression) if column not in known)
    for child in inputs(plan):
        yield from _missing(child)


def _expressions(plan: LogicalPlan) -> tuple[Expr, ...]:
    match plan:
        case Source():
            return ()
        case Filter():
            return (plan.predicate,)
        case Project():
            return tuple(output.expression for output in plan.outputs)
        case Prune():
            return plan.kept
        case Join() | OuterJoin():
            return plan.predicates
        case Aggregate():
            return (*plan.key_expressions, *(e for a in plan.aggregates for e in a.arguments))
