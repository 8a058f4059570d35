"""Reads the normal form of a query off its rewritten logical plan.

What it expects is what the rules of `rewrite` leave: an output list over an optional grouping over one n-ary join, each
input of which is a source with at most a filter and a pruning on top. Equalities become key classes, every other join
predicate a theta, and each relation keeps as payload only the columns that something after its arrival still reads: the
outputs, the grouping, the thetas, and key members whose matches have to be verified on values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from anabranch.errors import PlanError
from anabranch.expr import Expr, columns, conjunction, conjuncts
from anabranch.functions import bind_call, coerce
from anabranch.plan.bands import thetas_with_bands
from anabranch.plan.join_graph import JoinGraph, KeyClass, Relation
from anabranch.plan.key_classes import equal_expressions, key_sides
from anabranch.plan.logical import Aggregate, Filter, Join, LogicalPlan, Project, Prune, Source, render
from anabranch.plan.query import Grouping, Query


def normal_form(text: str, plan: LogicalPlan) -> Query:
    """The query of a rewritten plan; PlanError when the plan is not in the form that rewriting leaves."""
    if not isinstance(plan, Project):
        raise _unexpected(plan)
    body, grouping = _grouping(plan.input)
    arms = [_arm(child) for child in body.inputs] if isinstance(body, Join) else [_arm(body)]
    predicates = body.predicates if isinstance(body, Join) else ()
    keys, filters = _keys(predicates)
    thetas = thetas_with_bands([predicate for predicate in predicates if key_sides(predicate) is None])
    if grouping is None:
        readers = [output.expression for output in plan.outputs]
    else:
        readers = [*grouping.keys, *(a.argument for a in grouping.aggregates if a.argument is not None)]
    readers += [theta.predicate for theta in thetas]
    readers += [expression for key in keys if not key.is_exact for _, expression in key.members]
    relations = tuple(_relation(arm, filters.get(arm.source.relation, []), readers) for arm in arms)
    return Query(text, JoinGraph(relations, keys, thetas), plan.outputs, grouping)


@dataclass(frozen=True)
class _Arm:
    source: Source
    conditions: tuple[Expr, ...]


def _grouping(plan: LogicalPlan) -> tuple[LogicalPlan, Grouping | None]:
    match plan:
        case Aggregate():
            return plan.input, Grouping(plan.key_expressions, plan.aggregates, None, plan.slide)
        case Filter(input=Aggregate() as grouped, predicate=having):
            return grouped.input, Grouping(grouped.key_expressions, grouped.aggregates, having, grouped.slide)
        case _:
            return plan, None


def _arm(plan: LogicalPlan) -> _Arm:
    match plan:
        case Source():
            return _Arm(plan, ())
        case Filter(input=below, predicate=predicate):
            arm = _arm(below)
            return _Arm(arm.source, (*arm.conditions, *conjuncts(predicate)))
        case Prune(input=below):
            return _arm(below)
        case _:
            raise _unexpected(plan)


def _keys(predicates: Iterable[Expr]) -> tuple[tuple[KeyClass, ...], dict[str, list[Expr]]]:
    """The key classes, and the filters that second members of one relation become."""
    keys: list[KeyClass] = []
    filters: dict[str, list[Expr]] = {}
    for position, known in enumerate(equal_expressions(predicates)):
        chosen: dict[str, Expr] = {}
        for relation, expression in known.members:
            member = coerce(expression, known.type)
            first = chosen.setdefault(relation, member)
            if first is not member:
                filters.setdefault(relation, []).append(bind_call("equal", (first, member)))
        keys.append(KeyClass(f"k{position}", tuple(chosen.items()), known.type))
    return tuple(keys), filters


def _relation(arm: _Arm, filters: list[Expr], readers: list[Expr]) -> Relation:
    source = arm.source
    read = frozenset(
        column.name for reader in readers for column in columns(reader) if column.relation == source.relation
    )
    return Relation(
        name=source.relation,
        stream=source.stream,
        schema=source.schema.only(read),
        event_time=source.event_time,
        window=source.window,
        disorder=source.disorder,
        filter=conjunction((*arm.conditions, *filters)),
    )


def _unexpected(plan: LogicalPlan) -> PlanError:
    return PlanError("the logical plan has no normal form", detail=render(plan), hint="rewrite the plan first")
