"""Sides: the outer, semi and anti joins that a query applies to its combinations after the inner joins.

The relations of the inner joins are the *core*; plans join only these. A side is one relation or an inner join of
several. Sides are applied one after another, in query order: a combination that arrives at a side (of the core and the
earlier sides) matches the rows of the side that satisfy the predicates and form a combination that is valid in all
windows. A relation of an earlier side may be absent from a combination; its columns are then NULL.

Invariant: only equalities of the core, and an equality between a combination and the side itself, make keys. Two
expressions that a side compares with one of its own need not be equal in a combination without a match. So the second
comparison of a key is a predicate to check, never a member of the class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from anabranch.functions import bind_call, coerce, common_type, is_nullable, kind_of, without_widening
from anabranch.lang.expr import Call, Expr, conjunction, relations
from anabranch.plan.bands import thetas_with_bands
from anabranch.plan.join_graph import JoinGraph, KeyClass, Relation, Theta
from anabranch.plan.key_classes import EqualExpressions, equal_expressions, key_sides
from anabranch.plan.logical import SideKind


@dataclass(frozen=True)
class Side:
    """One outer, semi or anti join."""

    kind: SideKind
    before: tuple[str, ...]
    """The relations of the combinations that arrive."""
    names: tuple[str, ...]
    """The relations of the side."""
    graph: JoinGraph
    """All relations, with the keys and predicates between them and inside the side."""
    ready: Expr | None = None
    """The predicate on a combination for it to have any match: the values that the keys compare are not NULL."""
    residual: Expr | None = None
    """The predicate on a match beyond the predicates of the graph."""

    @property
    def own(self) -> tuple[Relation, ...]:
        return tuple(self.graph.relation(name) for name in self.names)

    @property
    def is_known_at_once(self) -> bool:
        """True if all possible matches are known when a combination arrives, because the side has only tables."""
        return all(relation.is_table for relation in self.own)

    @property
    def condition(self) -> str:
        """The join condition of a combination and a row of the side, as text."""
        parts = [str(key) for key in self.graph.keys if key.relations & set(self.names)]
        parts += [str(theta) for theta in self.graph.thetas]
        parts += [str(each) for each in (self.residual,) if each is not None]
        return " AND ".join(parts)

    def __str__(self) -> str:
        on = f" ON {self.condition}" if self.condition else ""
        return f"{self.kind.value} {', '.join(self.names)}{on}"


@dataclass(frozen=True)
class Comparisons:
    """The predicates between combinations and a side, grouped by how matches are found and checked."""

    keys: tuple[KeyClass, ...]
    filters: dict[str, list[Expr]]
    """Filters for each second member of a relation of the side in one of the side's own classes."""
    thetas: tuple[Theta, ...]
    ready: tuple[Expr, ...]
    residual: tuple[Expr, ...]
    classes: tuple[EqualExpressions, ...]
    """The classes that hold in combinations after the side, if the side is present."""


def compared(
    kind: SideKind,
    before: Sequence[str],
    names: Sequence[str],
    inside: Iterable[Expr],
    predicates: Iterable[Expr],
    classes: Sequence[EqualExpressions],
    absent: frozenset[str],
) -> Comparisons:
    """Groups the predicates of a side.

    `inside` are those of the inner joins of the side itself, `classes` hold in every combination that arrives, and
    relations in `absent` may be absent from one.
    """
    earlier, here = frozenset(before), frozenset(names)
    inner = list(inside)
    own = list(equal_expressions(inner))
    filters: dict[str, list[Expr]] = {}
    thetas = [each for each in inner if key_sides(each) is None]
    ready: dict[Expr, None] = {}
    residual: list[Expr] = []
    pairs: list[tuple[EqualExpressions, EqualExpressions]] = []
    for predicate in predicates:
        read = relations(predicate)
        sides = _across(predicate, earlier, here)
        if not read & here or (len(read) == 1):
            residual.append(predicate)
        elif sides is None:
            thetas.append(predicate)
        else:
            left, right = (_class_of(side, several) for side, several in zip(sides, (classes, own), strict=True))
            pair = _paired(left, right) if not any(left == one or right == other for one, other in pairs) else None
            if pair is None:
                thetas.append(predicate)
                continue
            pairs.append((left, right))
            value = without_widening(sides[0])
            if is_nullable(value) or relations(value) & absent:
                ready[_is_there(value)] = None
    classes_of_side = [_paired(left, right) for left, right in pairs]
    classes_of_side += [each for each in own if not any(each == right for _, right in pairs)]
    keys: list[KeyClass] = []
    for position, known in enumerate(each for each in classes_of_side if each is not None):
        chosen: dict[str, Expr] = {}
        for relation, expression in known.members:
            member = coerce(expression, known.type)
            first = chosen.setdefault(relation, member)
            if first is not member and relation in here:
                filters.setdefault(relation, []).append(bind_call("equal", (first, member)))
            elif relation in here and kind is SideKind.FULL and is_nullable(member):
                residual.append(bind_call("is_not_null", (without_widening(member),)))
        keys.append(KeyClass(f"k{position}", tuple(chosen.items()), known.type))
    found = thetas_with_bands(thetas)
    for band in (theta.band for theta in found if theta.band is not None):
        for relation, value in ((band.left_relation, band.left), (band.right_relation, band.right)):
            if relation in absent:
                ready[_is_there(value)] = None
    behind = [_paired(left, right) or left for left, right in pairs]
    behind += [each for each in classes if not any(each == left for left, _ in pairs)]
    return Comparisons(
        tuple(keys),
        filters,
        found,
        tuple(ready),
        tuple(residual),
        tuple(behind) if kind is SideKind.LEFT else tuple(classes),
    )


def make_side(kind: SideKind, before: Sequence[Relation], own: Sequence[Relation], found: Comparisons) -> Side:
    """Returns the side of these relations."""
    names = tuple(relation.name for relation in own)
    graph = JoinGraph((*before, *own), found.keys, found.thetas)
    earlier = tuple(relation.name for relation in before)
    return Side(kind, earlier, names, graph, conjunction(found.ready), conjunction(found.residual))


def _is_there(value: Expr) -> Expr:
    """Returns the test that a value is not NULL; columns of absent rows are NULL even if declared NOT NULL."""
    return Call("is_not_null", (value,), pa.bool_())


def _across(predicate: Expr, before: frozenset[str], here: frozenset[str]) -> tuple[Expr, Expr] | None:
    """Returns the sides of an equality between a combination and the side, in that order."""
    sides = key_sides(predicate)
    if sides is None:
        return None
    left, right = sides
    if relations(left) <= before and relations(right) <= here:
        return left, right
    return (right, left) if relations(right) <= before and relations(left) <= here else None


def _class_of(side: Expr, classes: Sequence[EqualExpressions]) -> EqualExpressions:
    """Returns the class of an expression, or a class of its own."""
    member = (min(relations(side)), without_widening(side))
    family = kind_of(side.type)
    alone = EqualExpressions(family, member[1].type, (member,))
    return next((each for each in classes if each.family == family and member in each.members), alone)


def _paired(left: EqualExpressions, right: EqualExpressions) -> EqualExpressions | None:
    """Merges two classes; returns None if no type holds the values of both."""
    try:
        kind = common_type(left.type, right.type)
    except ValueError:
        return None
    return EqualExpressions(left.family, kind, (*left.members, *right.members))
