"""Filters of one stream as comparable values: a join under a weaker filter can serve a stricter one.

A selection is a disjunction of conjunctions of *atoms*. A comparison of a column with a literal is interpreted (`x < 3`
implies `x < 5` and `x IS NOT NULL`); any other predicate is opaque and implies only itself. A selection of more than
`MOST_ALTERNATIVES` conjunctions is widened to their common atoms, which keeps the filter of a widely shared operator
small.

Invariant: `covers` is sound but not complete: it never reports a filter as weaker that is not.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TypeAlias

import pyarrow as pa

from anabranch.lang.expr import (
    GROUPED,
    Call,
    Column,
    Expr,
    Literal,
    can_fail,
    columns,
    conjunction,
    conjuncts,
    transform,
)
from anabranch.place.statistics import Statistics

MOST_ALTERNATIVES = 64

Value: TypeAlias = str | int | float | bool | decimal.Decimal | datetime.date | datetime.timedelta

_COMPARISONS = frozenset(("equal", "less", "less_equal", "greater", "greater_equal"))
_MIRRORED = {
    "equal": "equal",
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}


@dataclass(frozen=True)
class Atom:
    """One condition on the rows of a stream; `column` is None when it is opaque."""

    text: str
    reads: frozenset[str]
    column: str | None = None
    operator: str = ""
    value: Value | None = None
    condition: Expr | None = field(default=None, compare=False, repr=False)
    """The condition itself, over the stream's columns; its text identifies it."""

    @property
    def is_comparison(self) -> bool:
        """True for a comparison of a column with a literal; a NULL never passes it."""
        return self.column is not None and self.operator in _COMPARISONS

    def implies(self, other: Atom) -> bool:
        """Returns True if every row that passes this condition provably passes the other."""
        if self.text == other.text:
            return True
        if other.operator == "is_not_null":
            return self.is_comparison and self.column == other.column
        if self.column is None or self.column != other.column or type(self.value) is not type(other.value):
            return False
        mine, theirs = self.value, other.value
        match self.operator, other.operator:
            case "equal", "equal":
                return mine == theirs
            case (("equal" | "less" | "less_equal"), "less"):
                return _below(mine, theirs) or (self.operator == "less" and mine == theirs)
            case (("equal" | "less" | "less_equal"), "less_equal"):
                return _below(mine, theirs) or mine == theirs
            case (("equal" | "greater" | "greater_equal"), "greater"):
                return _below(theirs, mine) or (self.operator == "greater" and mine == theirs)
            case (("equal" | "greater" | "greater_equal"), "greater_equal"):
                return _below(theirs, mine) or mine == theirs
            case _:
                return False


Conjunction: TypeAlias = frozenset[Atom]


@dataclass(frozen=True)
class Selection:
    """The rows that pass every atom of at least one alternative."""

    alternatives: frozenset[Conjunction]

    def covers(self, other: Selection) -> bool:
        """Returns True if every row that passes the other selection provably passes this one."""
        return self is other or _covers(self, other)

    def _holds(self, stricter: Conjunction) -> bool:
        theirs, _ = _sorted_out(stricter)
        theirs |= _not_null(stricter)
        for ours in self.alternatives:
            fixed, ordered = _sorted_out(ours)
            if fixed <= theirs and all(any(atom.implies(mine) for atom in stricter) for mine in ordered):
                return True
        return False

    def union(self, other: Selection) -> Selection:
        """Returns a selection that covers both, as tight as the atoms allow."""
        return self if self is other else _union(self, other)

    @cached_property
    def columns(self) -> frozenset[str]:
        return frozenset(name for one in self.alternatives for atom in one for name in atom.reads)

    def fixed_values(self, column: str) -> int | None:
        """Returns the number of values of a column in passing rows, if every alternative fixes it."""
        values = set()
        for one in self.alternatives:
            fixed = [atom.value for atom in one if atom.operator == "equal" and atom.column == column]
            if not fixed:
                return None
            values.add(fixed[0])
        return len(values)

    def selectivity(self, stream: str, statistics: Statistics) -> float:
        """Returns the selectivity on the stream's rows.

        Alternatives that fix the same column to different values are mutually exclusive, so their selectivities add up;
        other alternatives are assumed independent. Adding an alternative never lowers the selectivity.
        """
        return _passing(self, stream, statistics)

    def __str__(self) -> str:
        if self == EVERYTHING:
            return "TRUE"
        return " OR ".join(sorted(_conjunction_text(one) for one in self.alternatives))


EVERYTHING = Selection(frozenset((frozenset(),)))


def to_filter(selection: Selection) -> Expr | None:
    """Returns the selection as an expression over the stream's columns; None if it passes every row.

    Conditions that can fail come after those that cannot, which may guard them.
    """
    alternatives = [_ordered(one) for one in sorted(selection.alternatives, key=_conjunction_text)]
    if not all(alternatives):
        return None
    joined = tuple(part for part in (conjunction(one) for one in alternatives) if part is not None)
    return joined[0] if len(joined) == 1 else Call("or", joined, pa.bool_())


def _ordered(atoms: Conjunction) -> tuple[Expr, ...]:
    conditions = [atom.condition for atom in sorted(atoms, key=lambda atom: atom.text) if atom.condition is not None]
    assert len(conditions) == len(atoms), "an atom has no condition"
    return tuple(sorted(conditions, key=can_fail))


def from_filter(filter: Expr | None) -> Selection:
    """Builds the selection of a relation's filter, over the columns of the stream."""
    if filter is None:
        return EVERYTHING
    return Selection(frozenset((frozenset(_atom(part) for part in conjuncts(filter)),)))


def without_relation(expression: Expr) -> Expr:
    """Returns the expression without relation names, so that it is equal for every alias of a stream."""
    return transform(expression, lambda node: replace(node, relation=GROUPED) if isinstance(node, Column) else node)


def _atom(part: Expr) -> Atom:
    bare = without_relation(part)
    text = str(bare)
    reads = frozenset(column.name for column in columns(part))
    match bare:
        case Call(function, (Column(name=name), Literal(value=value))) if function in _COMPARISONS:
            return Atom(text, reads, name, function, _comparable(value), bare)
        case Call(function, (Literal(value=value), Column(name=name) as column)) if function in _COMPARISONS:
            mirrored = Call(_MIRRORED[function], (column, Literal(value, bare.arguments[0].type)), pa.bool_())
            return Atom(str(mirrored), reads, name, _MIRRORED[function], _comparable(value), mirrored)
        case Call("is_not_null", (Column(name=name),)):
            return Atom(text, reads, name, "is_not_null", condition=bare)
        case _:
            return Atom(text, reads, condition=bare)


def _comparable(value: object) -> Value | None:
    return (
        value if isinstance(value, str | int | float | decimal.Decimal | datetime.date | datetime.timedelta) else None
    )


def _below(left: Value | None, right: Value | None) -> bool:
    return left is not None and right is not None and bool(left < right)  # type: ignore[operator]


@lru_cache(maxsize=1 << 16)
def _sorted_out(atoms: Conjunction) -> tuple[frozenset[object], tuple[Atom, ...]]:
    """Separates atoms implied only by themselves (by key) from one-sided bounds on a column."""
    ordered = tuple(a for a in atoms if a.operator in _MIRRORED and a.operator != "equal" and a.value is not None)
    fixed = (a for a in atoms if a not in ordered)
    return frozenset(_key(a) for a in fixed), ordered


def _key(atom: Atom) -> object:
    if atom.column is not None and atom.operator == "is_not_null":
        return "is_not_null", atom.column
    return (atom.column, type(atom.value), atom.value) if atom.value is not None else atom.text


@lru_cache(maxsize=1 << 16)
def _not_null(atoms: Conjunction) -> frozenset[object]:
    """Returns the keys of columns that cannot be NULL in passing rows, because they are compared with a value."""
    return frozenset(("is_not_null", atom.column) for atom in atoms if atom.is_comparison)


@lru_cache(maxsize=1 << 16)
def _covers(wider: Selection, other: Selection) -> bool:
    if wider == EVERYTHING:
        return True
    return all(theirs in wider.alternatives or wider._holds(theirs) for theirs in other.alternatives)


@lru_cache(maxsize=1 << 16)
def _union(one: Selection, other: Selection) -> Selection:
    if one.covers(other):
        return one
    if other.covers(one):
        return other
    kept = frozenset(mine for mine in one.alternatives if not other._holds(mine)) | other.alternatives
    if len(kept) > MOST_ALTERNATIVES:
        kept = frozenset((frozenset.intersection(*kept),))
    return Selection(kept)


@lru_cache(maxsize=1 << 16)
def _passing(selection: Selection, stream: str, statistics: Statistics) -> float:
    measured = statistics.shares.get((stream, str(selection)))
    if measured is not None:
        return measured
    alternatives = selection.alternatives
    if len(alternatives) == 1:
        return _share(next(iter(alternatives)), stream, statistics)
    shared = frozenset.intersection(*alternatives)
    groups: dict[str, float] = defaultdict(float)
    for number, one in enumerate(sorted(alternatives, key=_conjunction_text)):
        fixed = sorted(a.column for a in one - shared if a.operator == "equal" and a.column is not None)
        groups[fixed[0] if fixed else f"#{number}"] += _share(one - shared, stream, statistics)
    missed = math.prod(1.0 - min(1.0, share) for share in groups.values())
    return _share(shared, stream, statistics) * (1.0 - missed)


def _share(atoms: Conjunction, stream: str, statistics: Statistics) -> float:
    return math.prod(statistics.filter_selectivity(stream, atom.column, atom.operator, atom.text) for atom in atoms)


def _conjunction_text(atoms: Conjunction) -> str:
    return " AND ".join(sorted(atom.text for atom in atoms)) or "TRUE"
