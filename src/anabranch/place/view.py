"""Views: the contents of a stream as its base streams, join predicates, and a filter, window and columns per stream.

Views with equal *signatures* (streams and join predicates) differ only in filters, windows and columns. One view can
replace another behind a telescoping filter if it *covers* it. Time windows telescope like filters: a combination inside
smaller windows is also inside larger ones, and rows carry their event times. Slots are in a canonical order, so equal
sub-joins of different queries have equal signatures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import permutations, product

from anabranch.lang.expr import Column, Expr, can_fail, columns, transform
from anabranch.lang.window import UNITS, duration_text
from anabranch.place.selection import EVERYTHING, Selection, from_filter, without_relation
from anabranch.place.statistics import Statistics, equality_selectivity
from anabranch.plan.join_graph import Theta
from anabranch.plan.query import Query


@dataclass(frozen=True)
class Predicate:
    """A join predicate as a text with placeholders; `positions[i]` is the slot of `$i`."""

    text: str
    positions: tuple[int, ...]
    reads: tuple[frozenset[str], ...]
    is_equality: bool
    is_band: bool = False
    expressions: tuple[Expr, ...] = field(default=(), compare=False, repr=False)
    """The members of an equality, one per position, or the predicate itself; identified by the text.

    Members are over columns of their streams; a predicate is over relations `$0`, `$1`, …
    """

    def moved(self, positions: Sequence[int]) -> Predicate:
        """Returns the predicate with slot i moved to `positions[i]`."""
        pairs = zip((positions[position] for position in self.positions), self.reads, strict=True)
        return _ordered(self.text, tuple(pairs), self.is_equality, self.is_band, self.expressions)

    @property
    def can_fail(self) -> bool:
        """True if the predicate may raise on some row; it must then not see rows that a query filters out."""
        return any(can_fail(expression) for expression in self.expressions)

    def __str__(self) -> str:
        return f"{self.text} @ {','.join(map(str, self.positions))}"


@dataclass(frozen=True)
class Slot:
    """One stream inside a view: its filter, window and columns; `range` None keeps every row."""

    stream: str
    selection: Selection
    range: int | None
    columns: frozenset[str]

    def covers(self, other: Slot) -> bool:
        wide_enough = self.range is None or (other.range is not None and self.range >= other.range)
        if not wide_enough or not self.selection.covers(other.selection):
            return False
        wanted = other.columns
        if self.selection != other.selection:
            wanted = wanted | other.selection.columns
        return wanted <= self.columns

    def union(self, other: Slot) -> Slot:
        """Returns a slot that covers both; the columns of a relaxed filter must reach the filter behind it."""
        selection = self.selection.union(other.selection)
        kept = self.columns | other.columns
        for one in (self, other):
            if one.selection != selection:
                kept = kept | one.selection.columns
        unbounded = self.range is None or other.range is None
        longer = None if unbounded else max(self.range or 0, other.range or 0)
        return Slot(self.stream, selection, longer, kept)

    def __str__(self) -> str:
        window = "" if self.range is None else f" [{duration_text(self.range)}]"
        condition = "" if self.selection == EVERYTHING else f" WHERE {self.selection}"
        return f"{self.stream}{window}{condition}"


@dataclass(frozen=True)
class View:
    """A join of streams in canonical slot order."""

    slots: tuple[Slot, ...]
    predicates: frozenset[Predicate]

    @cached_property
    def signature(self) -> str:
        predicates = "; ".join(sorted(str(predicate) for predicate in self.predicates))
        return f"{' '.join(slot.stream for slot in self.slots)} | {predicates}"

    def covers(self, other: View) -> bool:
        return all(mine.covers(theirs) for mine, theirs in zip(self.slots, other.slots, strict=True))

    def may_serve(self, other: View) -> bool:
        """Returns True unless a predicate that can fail would see rows that the other view filters out."""
        if not any(predicate.can_fail for predicate in self.predicates):
            return True
        return all(mine.selection == theirs.selection for mine, theirs in zip(self.slots, other.slots, strict=True))

    def union(self, other: View) -> View:
        """Returns the view that covers both; signatures must be equal."""
        return View(tuple(a.union(b) for a, b in zip(self.slots, other.slots, strict=True)), self.predicates)

    def rate(self, statistics: Statistics) -> float:
        """Returns the rows per second."""
        rates = [
            statistics.stream(slot.stream).rate * slot.selection.selectivity(slot.stream, statistics)
            for slot in self.slots
        ]
        if len(rates) == 1:
            return rates[0]
        seconds = [math.inf if slot.range is None else slot.range / UNITS["second"] for slot in self.slots]
        if statistics.slide is not None:
            meetings = math.prod(seconds) / statistics.slide
        else:
            meetings = sum(math.prod(seconds[:i] + seconds[i + 1 :]) for i in range(len(seconds)))
        measured = statistics.factors.get(self.signature, 1.0)
        return math.prod(rates) * meetings * self.passing(self.predicates, statistics) * measured

    def passing(self, predicates: Iterable[Predicate], statistics: Statistics) -> float:
        """Returns the selectivity of some predicates over the view's slots."""
        return math.prod(_selectivity(predicate, self.slots, statistics) for predicate in predicates)

    def width(self, statistics: Statistics) -> float:
        """Returns the bytes per row."""
        if statistics.record_bytes is not None:
            return statistics.record_bytes
        return sum(statistics.stream(slot.stream).width(slot.columns) for slot in self.slots)

    @property
    def shortest_range(self) -> float:
        """The seconds after which a row of the view can no longer join."""
        return min(math.inf if slot.range is None else slot.range / UNITS["second"] for slot in self.slots)

    def __str__(self) -> str:
        return " x ".join(str(slot) for slot in self.slots)


def base_view(stream: str, schema: Iterable[str]) -> View:
    """Returns the view of a base stream: all rows and all columns."""
    return View((Slot(stream, EVERYTHING, None, frozenset(schema)),), frozenset())


@dataclass(frozen=True)
class Need:
    """A query's need for a subset of its relations: the view, and the relation (by position) in each slot."""

    view: View
    relations: tuple[int, ...]


@lru_cache(maxsize=4096)
def needs(query: Query) -> tuple[Need, ...]:
    """Returns the need for every subset of a query's relations, indexed by bit mask."""
    graph = query.graph
    position = {relation.name: index for index, relation in enumerate(graph.relations)}
    joins = [
        _Joining(tuple((position[name], expression) for name, expression in key.members), None) for key in graph.keys
    ]
    joins += [
        _Joining(tuple((position[column.relation], column) for column in columns(theta.predicate)), theta)
        for theta in graph.thetas
    ]
    carried = [frozenset(query.result_columns(relation.name)) for relation in graph.relations]
    selections = [from_filter(relation.filter) for relation in graph.relations]
    found = [Need(View((), frozenset()), ())]
    for mask in range(1, 1 << len(graph.relations)):
        members = [index for index in range(len(graph.relations)) if mask >> index & 1]
        inside = [join.within(mask) for join in joins]
        order, predicates = _canonical(query, members, [join for join in inside if join is not None])
        slots = []
        for index in order:
            relation = graph.relations[index]
            later = [join.columns_of(index) for join in joins if not join.is_inside(mask)]
            kept = carried[index].union(*later)
            slots.append(Slot(relation.stream.lower(), selections[index], relation.window.range, kept))
        found.append(Need(View(tuple(slots), frozenset(predicates)), order))
    return tuple(found)


@dataclass(frozen=True)
class _Joining:
    """A key class (members with their key expressions) or a theta (its columns, and itself)."""

    members: tuple[tuple[int, Expr], ...]
    theta: Theta | None

    def is_inside(self, mask: int) -> bool:
        return all(mask >> index & 1 for index, _ in self.members)

    def within(self, mask: int) -> _Joining | None:
        """Returns the part that a join of the subset can check: a class among its members, or a complete theta."""
        if self.theta is not None:
            return self if self.is_inside(mask) else None
        inside = tuple((index, expression) for index, expression in self.members if mask >> index & 1)
        return _Joining(inside, None) if len(inside) > 1 else None

    def columns_of(self, relation: int) -> frozenset[str]:
        return frozenset(c.name for index, e in self.members if index == relation for c in columns(e))


def _canonical(
    query: Query, members: list[int], joins: list[_Joining]
) -> tuple[tuple[int, ...], tuple[Predicate, ...]]:
    """Orders slots by stream name; order relations of one stream by the smallest predicate texts."""
    streams: dict[str, list[int]] = {}
    for index in members:
        streams.setdefault(query.graph.relations[index].stream.lower(), []).append(index)
    choices = product(*(permutations(streams[name]) for name in sorted(streams)))
    best: tuple[list[str], tuple[int, ...], tuple[Predicate, ...]] | None = None
    for choice in choices:
        order = tuple(index for group in choice for index in group)
        slot_of = {index: slot for slot, index in enumerate(order)}
        predicates = tuple(_predicate(query, join, slot_of) for join in joins)
        texts = sorted(str(predicate) for predicate in predicates)
        if best is None or (texts, order) < best[:2]:
            best = (texts, order, predicates)
    assert best is not None
    return best[1], best[2]


def _predicate(query: Query, join: _Joining, slot_of: dict[int, int]) -> Predicate:
    if join.theta is None:
        parts = [
            (slot_of[index], str(bare), frozenset(c.name for c in columns(bare)), bare)
            for index, bare in ((index, without_relation(expression)) for index, expression in join.members)
        ]
        parts.sort(key=lambda part: part[:2])
        text = " = ".join(f"$.{name}" for _, name, _, _ in parts)
        pairs = tuple((slot, reads) for slot, _, reads, _ in parts)
        return _ordered(text, pairs, True, expressions=tuple(bare for *_, bare in parts))
    read: dict[int, frozenset[str]] = {}
    for index, expression in join.members:
        read[index] = read.get(index, frozenset()) | {c.name for c in columns(expression)}
    place = {query.graph.relations[index].name: f"${number}" for number, index in enumerate(read)}
    predicate = join.theta.predicate
    over = transform(predicate, lambda n: replace(n, relation=place[n.relation]) if isinstance(n, Column) else n)
    placed = tuple((slot_of[index], names) for index, names in read.items())
    return _ordered(str(over), placed, False, join.theta.band is not None, (over,))


def _ordered(
    text: str,
    parts: tuple[tuple[int, frozenset[str]], ...],
    is_equality: bool,
    is_band: bool = False,
    expressions: tuple[Expr, ...] = (),
) -> Predicate:
    """Builds a predicate whose text follows its parts in order; members of an equality are in slot order."""
    if is_equality:
        names = [f"$.{expression}" for expression in expressions] or text.split(" = ")
        order = sorted(range(len(parts)), key=lambda i: (parts[i][0], names[i]))
        parts = tuple(parts[i] for i in order)
        expressions = tuple(expressions[i] for i in order) if expressions else ()
        text = " = ".join(names[i] for i in order)
    positions, reads = tuple(slot for slot, _ in parts), tuple(reads for _, reads in parts)
    return Predicate(text, positions, reads, is_equality, is_band, expressions)


def _selectivity(predicate: Predicate, slots: tuple[Slot, ...], statistics: Statistics) -> float:
    if predicate.text in statistics.selectivities:
        return statistics.selectivities[predicate.text]
    if predicate.is_equality:
        counts = []
        for position, reads in zip(predicate.positions, predicate.reads, strict=True):
            slot, column = slots[position], min(reads)
            fixed = slot.selection.fixed_values(column)
            counts.append(float(fixed) if fixed is not None else statistics.distinct(slot.stream, column))
        return equality_selectivity(counts)
    return statistics.filter_selectivity("", None, "", predicate.text)
