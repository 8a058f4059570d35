"""Key classes: equalities between relations, closed transitively into classes of equal expressions.

Invariant: two members of one class are equal wherever all equalities that built the class hold. Equality in one type
family does not imply equality in another (two bigints that are equal as doubles may differ), so a class never mixes
families: `a.k = b.k` over bigints and `a.k = c.f` over doubles make two classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from anabranch.functions import common_type, kind_of, without_widening
from anabranch.lang.expr import Call, Expr, relations


@dataclass(frozen=True)
class EqualExpressions:
    """Expressions, each over one relation, that are equal in every result; in order of appearance."""

    family: str
    type: pa.DataType
    members: tuple[tuple[str, Expr], ...]


def key_sides(predicate: Expr) -> tuple[Expr, Expr] | None:
    """Returns the sides of an equality between two relations, or None for any other predicate."""
    match predicate:
        case Call(function="equal", arguments=(left, right)):
            one, other = relations(left), relations(right)
            if len(one) == 1 and len(other) == 1 and one != other:
                return left, right
    return None


def equal_expressions(predicates: Iterable[Expr]) -> tuple[EqualExpressions, ...]:
    """Returns the classes that the equalities form; other predicates are ignored."""
    classes: list[EqualExpressions] = []
    for predicate in predicates:
        sides = key_sides(predicate)
        if sides is not None:
            classes = _with_equality(classes, *sides)
    return tuple(classes)


def _with_equality(classes: list[EqualExpressions], left: Expr, right: Expr) -> list[EqualExpressions]:
    family = kind_of(left.type)
    members = tuple((min(relations(side)), without_widening(side)) for side in (left, right))
    merged = EqualExpressions(family, common_type(*(expr.type for _, expr in members)), members)
    kept: list[EqualExpressions] = []
    at: int | None = None
    for known in classes:
        union = _merge(known, merged) if known.family == family and set(known.members) & set(merged.members) else None
        if union is None:
            kept.append(known)
        else:
            merged = union
            at = len(kept) if at is None else at
    kept.insert(len(kept) if at is None else at, merged)
    return kept


def _merge(one: EqualExpressions, other: EqualExpressions) -> EqualExpressions | None:
    try:
        type_ = common_type(one.type, other.type)
    except ValueError:
        # Decimals that are comparable pairwise but together need too many digits stay in separate classes.
        return None
    return EqualExpressions(one.family, type_, tuple(dict.fromkeys((*one.members, *other.members))))
