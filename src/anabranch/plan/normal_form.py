"""Derives the normal form of a query from its rewritten logical plan.

The input is a plan that the rules of `rewrite` have finished: an output list over an optional grouping over one n-ary
join (with outer joins around it), whose inputs are sources with at most a filter and a pruning on top. Equalities
become key classes, and every other join predicate a theta. Each relation keeps only the columns that are read after a
row has arrived: by the outputs, the grouping, the thetas, and key members whose matches are verified on values.

A relation with a count window counts its rows before any condition: it has a *condition* instead of a filter, keeps
every column that the query names, and its keys are NULL if the condition guards them against failing and is not true.

Limit: a plan that the rules have not finished has no normal form and is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from anabranch.errors import PlanError, SpecError
from anabranch.functions import below_casts, bind_call, coerce, is_nullable
from anabranch.lang.expr import Call, Expr, Literal, can_fail, columns, conjunction, conjuncts, relations
from anabranch.lang.schema import Schema
from anabranch.lang.window import CountWindow, SessionWindow
from anabranch.plan.bands import thetas_with_bands
from anabranch.plan.join_graph import JoinGraph, KeyClass, Relation, Theta, shared_keys
from anabranch.plan.key_classes import EqualExpressions, equal_expressions, key_sides
from anabranch.plan.logical import (
    Aggregate,
    Filter,
    Join,
    LogicalPlan,
    OuterJoin,
    Project,
    Prune,
    SideKind,
    Source,
    render,
)
from anabranch.plan.partitioning import agrees_in_parts
from anabranch.plan.query import Grouping, Query
from anabranch.plan.selections import guarded_by
from anabranch.plan.sides import Comparisons, compared, make_side


def normal_form(text: str, plan: LogicalPlan, late_filters: Sequence[str] = ()) -> Query:
    """Returns the query of a rewritten plan; raises PlanError if rewriting has not finished.

    `late_filters` names the deferred filters: a relation for all its conjuncts, or the text of one conjunct. They
    become thetas, numbered after all others. Conditions that remove NULL keys cannot be deferred.
    """
    if not isinstance(plan, Project):
        raise _unexpected(plan)
    body, grouping = _grouping(plan.input)
    core, outer, condition = _peeled(body)
    arms, predicates = _arms(core)
    keys, filters = _keys(predicates)
    deferred = _deferred(arms, late_filters)
    keys = tuple(_guarded(key, arms, filters) for key in keys)
    keys = (*keys, *_partition_keys(keys, arms))
    thetas = thetas_with_bands([predicate for predicate in predicates if key_sides(predicate) is None])
    ahead = [theta.predicate for theta in thetas] + [member for key in keys for _, member in key.members]
    ahead += [each for arm in arms for each in arm.conditions if each not in deferred]
    _refuse_guards(deferred, [*ahead, *(each for several in filters.values() for each in several)])
    thetas += tuple(Theta(condition, relations(condition)) for condition in deferred)
    if grouping is None:
        readers = [output.expression for output in plan.outputs]
    else:
        readers = [*grouping.keys, *(e for a in grouping.aggregates for e in a.arguments)]
    readers += [theta.predicate for theta in thetas]
    readers += _verified(keys)
    counted = {arm.source.relation for arm in arms if arm.source.window.is_counted}
    readers += [expression for key in keys for name, expression in key.members if name in counted]
    members = [member for key in keys for _, member in key.members]
    arms = [
        _without(arm, deferred, [each for each in members if relations(each) == {arm.source.relation}]) for arm in arms
    ]
    around = _around(arms, outer, equal_expressions(predicates))
    readers += [each for each in (condition,) if each is not None]
    for each in around:
        found = each.found
        readers += [*found.ready, *found.residual, *(theta.predicate for theta in found.thetas)]
        readers += _verified(found.keys)
    joined = tuple(_relation(arm, filters.get(arm.source.relation, []), readers) for arm in arms)
    graph = JoinGraph(joined, keys, thetas)
    if not around:
        return Query(text, graph, plan.outputs, grouping)
    sides, before = [], joined
    for each in around:
        own = tuple(_relation(arm, each.found.filters.get(arm.source.relation, []), readers) for arm in each.arms)
        sides.append(make_side(each.kind, before, own, each.found))
        before = (*before, *own) if each.kind.extends else before
    _, (graph, *graphs) = shared_keys([graph, *(side.graph for side in sides)])
    named = tuple(replace(side, graph=own_graph) for side, own_graph in zip(sides, graphs, strict=True))
    return Query(text, graph, plan.outputs, grouping, named, condition)


@dataclass(frozen=True)
class _Around:
    """An outer join that becomes a side."""

    kind: SideKind
    arms: list[_Arm]
    found: Comparisons


def _peeled(plan: LogicalPlan) -> tuple[LogicalPlan, list[OuterJoin], Expr | None]:
    """Returns the core, the outer joins around it from the inside out, and the condition above them."""
    condition: Expr | None = None
    match plan:
        case Filter(input=OuterJoin() as joined, predicate=predicate):
            plan, condition = joined, predicate
    outer: list[OuterJoin] = []
    while isinstance(plan, OuterJoin):
        outer.insert(0, plan)
        plan = plan.input
    return plan, outer, condition


def _around(arms: list[_Arm], outer: list[OuterJoin], classes: tuple[EqualExpressions, ...]) -> list[_Around]:
    before = [arm.source.relation for arm in arms]
    absent: frozenset[str] = frozenset()
    found = []
    for node in outer:
        own, inside = _arms(node.side)
        names = [arm.source.relation for arm in own]
        # Combinations added by a full join have no row of the core.
        each = compared(node.kind, before, names, inside, node.predicates, classes, absent)
        found.append(_Around(node.kind, own, each))
        classes = each.classes
        if node.kind.extends:
            absent |= frozenset(names) | (frozenset(before) if node.kind is SideKind.FULL else frozenset())
            before = [*before, *names]
    return found


def _arms(plan: LogicalPlan) -> tuple[list[_Arm], tuple[Expr, ...]]:
    """Returns the inputs of an inner join and its predicates."""
    match plan:
        case Join(inputs=inputs, predicates=predicates):
            return [_arm(child) for child in inputs], predicates
        case _:
            return [_arm(plan)], ()


def _verified(keys: Iterable[KeyClass]) -> list[Expr]:
    """Returns the members of keys whose matches must be verified on values."""
    return [expression for key in keys if not key.is_exact for _, expression in key.members]


@dataclass(frozen=True)
class _Arm:
    source: Source
    conditions: tuple[Expr, ...]


def _deferred(arms: Sequence[_Arm], named: Sequence[str]) -> tuple[Expr, ...]:
    """Returns the conditions to defer, each once."""
    can_be = {arm.source.relation: [each for each in arm.conditions if _can_be_deferred(each)] for arm in arms}
    found: dict[Expr, None] = {}
    for name in named:
        by_text = [each for several in can_be.values() for each in several if str(each) == name.strip()]
        chosen = can_be.get(name.strip(), []) or by_text
        if not chosen or len(arms) == 1:
            raise _not_deferrable(name, can_be)
        found |= dict.fromkeys(chosen)
    return tuple(found)


def _without(arm: _Arm, deferred: Sequence[Expr], keys: Iterable[Expr]) -> _Arm:
    """Removes the deferred conditions from an arm; if one of them excluded NULL keys, adds a condition that does."""
    early = [each for each in arm.conditions if each not in deferred]
    tested = {column for each in arm.conditions if each in deferred for column in columns(each)}
    for key in keys:
        key = below_casts(key)
        if is_nullable(key) and not tested.isdisjoint(columns(key)):
            early.append(bind_call("is_not_null", (key,)))
    return replace(arm, conditions=tuple(dict.fromkeys(early)))


def _can_be_deferred(condition: Expr) -> bool:
    """True if a condition reads a row and may reject a row whose keys are not NULL."""
    return bool(relations(condition)) and not (isinstance(condition, Call) and condition.function == "is_not_null")


def _refuse_guards(deferred: Iterable[Expr], ahead: Sequence[Expr]) -> None:
    """Raises SpecError if a deferred condition may guard an expression that is evaluated before it."""
    for condition in deferred:
        if (guarded := guarded_by(condition, ahead)) is not None:
            raise SpecError(
                f"filter '{condition}' cannot be deferred",
                detail=f"it may guard '{guarded}' against failing",
                hint="leave it out of 'late_filters'",
            )


def _not_deferrable(name: str, can_be: Mapping[str, Sequence[Expr]]) -> SpecError:
    if len(can_be) == 1:
        return SpecError(
            f"filter '{name}' cannot be deferred",
            detail="the query has one relation, so there is no join to defer it to",
            hint="leave 'late_filters' out",
        )
    known = [f"'{relation}' ({' AND '.join(map(str, several))})" for relation, several in can_be.items() if several]
    return SpecError(
        f"'late_filters' names '{name}', which is not a filter of the query",
        detail="a filter is named by its relation, or by the text of one of its conditions",
        hint=f"filters that can be deferred: {', '.join(known)}" if known else "no filter of the query can be deferred",
    )


def _grouping(plan: LogicalPlan) -> tuple[LogicalPlan, Grouping | None]:
    match plan:
        case Aggregate():
            return plan.input, Grouping(plan.key_expressions, plan.aggregates, None, plan.slide, plan.lag, plan.gap)
        case Filter(input=Aggregate() as grouped, predicate=having):
            found = grouped.key_expressions, grouped.aggregates, having, grouped.slide, grouped.lag, grouped.gap
            return grouped.input, Grouping(*found)
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
    """Returns the key classes, and a filter for each second member of one relation."""
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


def _partition_keys(keys: Sequence[KeyClass], arms: Sequence[_Arm]) -> Iterator[KeyClass]:
    """Yields a key for each count window whose partitions no join key could spread over slots."""
    number = len(keys)
    for arm in arms:
        name, window = arm.source.relation, arm.source.window
        if isinstance(window, SessionWindow) and not window.partition:
            # One session for all rows: one slot has them.
            (column,) = (each for each in arm.source.columns if each.name == arm.source.event_time)
            yield KeyClass(f"k{number}", ((name, bind_call("is_not_null", (column,))),), pa.bool_())
            number += 1
            continue
        if not isinstance(window, CountWindow | SessionWindow) or not window.partition:
            continue
        members = [dict(key.members).get(name) for key in keys]
        if any(member is not None and agrees_in_parts(member, window) for member in members):
            continue
        (column,) = (each for each in arm.source.columns if each.name == window.partition[0])
        yield KeyClass(f"k{number}", ((name, column),), column.type)
        number += 1


def _guarded(key: KeyClass, arms: Sequence[_Arm], filters: Mapping[str, Sequence[Expr]]) -> KeyClass:
    """Makes key members that may fail NULL for counted rows that do not pass their condition."""
    members = dict(key.members)
    for arm in arms:
        name = arm.source.relation
        condition = conjunction((*arm.conditions, *filters.get(name, ())))
        if arm.source.window.is_counted and condition is not None and name in members and can_fail(members[name]):
            nothing = Literal(None, members[name].type)
            members[name] = bind_call("if", (condition, members[name], nothing))
    return replace(key, members=tuple(members.items()))


def _relation(arm: _Arm, filters: list[Expr], readers: list[Expr]) -> Relation:
    source = arm.source
    condition = conjunction((*arm.conditions, *filters))
    # The rows of a session are those that pass the filter.
    is_counted = isinstance(source.window, CountWindow)
    if is_counted and condition is not None:
        readers = [*readers, condition]
    read = frozenset(
        column.name for reader in readers for column in columns(reader) if column.relation == source.relation
    )
    if isinstance(source.window, CountWindow | SessionWindow):
        read |= frozenset(source.window.partition)
    return Relation(
        name=source.relation,
        stream=source.stream,
        schema=source.schema.only(read),
        event_time=source.event_time,
        window=source.window,
        disorder=source.disorder,
        is_table=source.is_table,
        is_result=source.is_result,
        branches=source.branches,
        behind=source.behind,
        filter=None if is_counted else condition,
        condition=condition if is_counted else None,
        source=Schema(()) if source.is_table or source.is_result else source.schema,
    )


def _unexpected(plan: LogicalPlan) -> PlanError:
    return PlanError("the logical plan has no normal form", detail=render(plan), hint="rewrite the plan first")
