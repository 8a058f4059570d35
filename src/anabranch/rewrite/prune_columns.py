"""Column pruning: drop columns at the source that no operator above reads."""

from __future__ import annotations

from dataclasses import replace

from anabranch.lang.expr import Column, Expr, columns
from anabranch.plan.logical import Aggregate, Filter, Join, LogicalPlan, OuterJoin, Project, Prune, Source


def prune_columns(plan: LogicalPlan) -> LogicalPlan | None:
    """Prunes each source, with its filter, to the columns that the join and the operators above it read."""
    match plan:
        case Project(input=below, outputs=outputs):
            narrowed = _narrowed(below, [output.expression for output in outputs])
            return None if narrowed is None else Project(narrowed, outputs)
        case Aggregate():
            arguments = [e for a in plan.aggregates for e in a.arguments]
            narrowed = _narrowed(plan.input, [*plan.key_expressions, *arguments])
            if narrowed is None:
                return None
            return replace(plan, input=narrowed)
    return None


def _narrowed(plan: LogicalPlan, readers: list[Expr]) -> LogicalPlan | None:
    match plan:
        case Join(inputs=inputs, predicates=predicates):
            read = _read([*readers, *predicates])
            pruned = tuple(_pruned(child, read) for child in inputs)
            return None if pruned == inputs else Join(pruned, predicates)
        case OuterJoin(input=below, side=side, predicates=predicates):
            above = [*readers, *predicates]
            narrowed, other = _narrowed(below, above), _narrowed(side, above)
            if narrowed is None and other is None:
                return None
            return replace(plan, input=narrowed or below, side=other or side)
        case Filter(input=OuterJoin() as below, predicate=predicate):
            narrowed = _narrowed(below, [*readers, predicate])
            return None if narrowed is None else Filter(narrowed, predicate)
        case Source() | Filter(input=Source()):
            single = _pruned(plan, _read(readers))
            return None if single == plan else single
    return None


def _pruned(arm: LogicalPlan, read: frozenset[Column]) -> LogicalPlan:
    kept = tuple(column for column in arm.columns if column in read)
    return arm if kept == arm.columns else Prune(arm, kept)


def _read(expressions: list[Expr]) -> frozenset[Column]:
    return frozenset(column for expression in expressions for column in columns(expression))
