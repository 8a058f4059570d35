"""The n-ary join of a query as a graph: relations, the key classes that connect them, and the other predicates.

Equalities are closed transitively into *key classes*: all members of a class are equal in every result, so any two of
them may be joined directly. Every other predicate over two or more relations is a *theta*; a theta of the form low <= x
- y <= high is also a *band* and can be looked up by bucket instead of compared pairwise.

A filter of one relation is part of the relation and applied before any state, unless it is *deferred*: then it is a
theta over that relation alone, which a join checks. Plans and meshes name a theta by its position: `#0` is the first.

Invariant: a graph with unknown relations in keys or thetas cannot be constructed. Limit: keys of a class have one type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa

from anabranch.errors import PlanError
from anabranch.lang.expr import Expr
from anabranch.lang.schema import Schema, is_integer
from anabranch.lang.window import CountWindow, Window
from anabranch.plan.classes import ClassColumn


@dataclass(frozen=True)
class Part:
    """A constituent of a derived row: the column with its event time, and the range of its window."""

    time: str
    range: int


@dataclass(frozen=True)
class Relation:
    """A FROM item after pushdown: the columns still needed and the filter on its rows.

    The rows of a *derived* relation are the output of another operator. They are combinations; each carries the event
    time of every row inside (`parts`), so that readers with different windows can compute their own deadline. Its
    watermark advances only by the ticks of its producer, and its filter has already been applied there.
    """

    name: str
    stream: str
    schema: Schema
    event_time: str
    window: Window
    disorder: int = 0
    filter: Expr | None = None
    parts: tuple[Part, ...] = ()
    """The constituents of a row of a derived relation; empty for plain stream rows."""
    is_table: bool = False
    """True if `stream` names a table, whose rows have no event time, never arrive and never expire."""
    branches: tuple[str, ...] = ()
    """The queries of a UNION ALL; empty if `stream` names the only query."""
    is_result: bool = False
    """True if its rows are results of another query of the set; `stream` is then the name of that query.

    Its rows imply no watermark, so its disorder is unbounded: only the watermark of that query counts.
    """
    behind: int = 0
    """For results of a query: how far below the watermark of that query the event times of future results can be."""
    condition: Expr | None = None
    """For a relation with a count window, which has no filter: the condition for rows to be part of results.

    Rows that fail it are still counted.
    """
    source: Schema = field(default=Schema(()), repr=False, compare=False)
    """All known columns of its stream; empty in a running query."""
    classes: tuple[ClassColumn, ...] = ()
    """Columns that are not carried but whose classes select routes; not part of the meaning of a query."""

    def __post_init__(self) -> None:
        if isinstance(self.window, CountWindow) and (self.filter is not None or self.parts):
            raise PlanError(f"relation '{self.name}' has a count window and a filter on the counted rows")
        if not self.parts:
            return
        if self.filter is not None or self.disorder:
            raise PlanError(f"derived relation '{self.name}' has a filter or disorder of its own")
        if missing := [part.time for part in self.parts if self.schema.find(part.time) is None]:
            raise PlanError(f"derived relation '{self.name}' lacks the event times '{', '.join(missing)}'")
        if self.window.reach < min(part.range for part in self.parts):
            raise PlanError(f"the window of derived relation '{self.name}' is shorter than the span of its rows")

    @property
    def producers(self) -> tuple[str, ...]:
        """The queries whose results it has; none for a stream or a table."""
        return (self.branches or (self.stream,)) if self.is_result else ()

    @property
    def is_derived(self) -> bool:
        return bool(self.parts)


def fits_code(kind: pa.DataType) -> bool:
    """Returns True for types whose keys fit an int64, which is then their code."""
    return bool(
        is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    )


@dataclass(frozen=True)
class KeyClass:
    """Expressions, at most one per relation, that are equal in every result; all of one type."""

    name: str
    members: tuple[tuple[str, Expr], ...]
    type: pa.DataType

    @cached_property
    def relations(self) -> frozenset[str]:
        return frozenset(relation for relation, _ in self.members)

    def expression(self, relation: str) -> Expr:
        return dict(self.members)[relation]

    @property
    def is_exact(self) -> bool:
        """True if a key fits an int64, so that equal codes mean equal keys and matches need no verification."""
        return fits_code(self.type)

    def __str__(self) -> str:
        return " = ".join(str(expression) for _, expression in self.members)


@dataclass(frozen=True)
class Band:
    """low <= left - right <= high, each side over one relation; times are in microseconds."""

    left_relation: str
    left: Expr
    right_relation: str
    right: Expr
    low: float
    high: float


@dataclass(frozen=True)
class Theta:
    """A predicate that joins check, other than an equality of keys: over several relations, or a deferred filter."""

    predicate: Expr
    relations: frozenset[str]
    band: Band | None = None

    def __str__(self) -> str:
        return str(self.predicate)


@dataclass(frozen=True)
class JoinGraph:
    """Relations in FROM order, the key classes among them, and the thetas."""

    relations: tuple[Relation, ...]
    keys: tuple[KeyClass, ...] = ()
    thetas: tuple[Theta, ...] = ()

    def __post_init__(self) -> None:
        names = [relation.name for relation in self.relations]
        if len(names) != len(set(names)):
            raise PlanError("two relations of a join graph have the same name")
        known = frozenset(names)
        for key in self.keys:
            if not key.relations <= known or len(key.relations) != len(key.members):
                raise PlanError(f"key class '{key}' does not fit the relations {', '.join(names)}")
        for theta in self.thetas:
            if not theta.relations <= known or not theta.relations or len(known) < 2:
                raise PlanError(f"predicate '{theta}' does not join relations of the graph")

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(relation.name for relation in self.relations)

    @cached_property
    def streams(self) -> tuple[str, ...]:
        """The streams of the relations, each once, in FROM order."""
        return tuple(dict.fromkeys(relation.stream for relation in self.streamed))

    @cached_property
    def streamed(self) -> tuple[Relation, ...]:
        """The relations of streams, without tables."""
        return tuple(relation for relation in self.relations if not relation.is_table)

    @cached_property
    def counted(self) -> tuple[str, ...]:
        """The relations with count windows."""
        return tuple(relation.name for relation in self.relations if relation.window.is_counted)

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """The tables that relations read, each once, in FROM order."""
        return tuple(dict.fromkeys(relation.stream for relation in self.relations if relation.is_table))

    def relation(self, name: str) -> Relation:
        for relation in self.relations:
            if relation.name == name:
                return relation
        raise PlanError(f"no relation '{name}' in the join graph", detail=f"it has {', '.join(self.names)}")

    def keys_of(self, relations: Iterable[str]) -> tuple[KeyClass, ...]:
        """Returns the classes with a member in any of the relations."""
        wanted = frozenset(relations)
        return tuple(key for key in self.keys if key.relations & wanted)

    @cached_property
    def code_names(self) -> dict[str, tuple[str, ...]]:
        """The code names of each relation: one per key class that the relation is a member of."""
        return {name: tuple(key.name for key in self.keys_of([name])) for name in self.names}

    def keys_between(self, left: Iterable[str], right: Iterable[str]) -> tuple[KeyClass, ...]:
        """Returns the classes by which one side can probe the other."""
        one, other = frozenset(left), frozenset(right)
        return tuple(key for key in self.keys if key.relations & one and key.relations & other)

    def thetas_between(self, left: Iterable[str], right: Iterable[str]) -> tuple[Theta, ...]:
        """Returns the thetas that become checkable when two sides join."""
        return tuple(self.thetas[position] for position in self.checkable(left, right))

    def checkable(self, left: Iterable[str], right: Iterable[str]) -> tuple[int, ...]:
        """Returns the positions of the thetas that become checkable when two sides join.

        A deferred filter becomes checkable at the first join of its relation.
        """
        one, other = frozenset(left), frozenset(right)
        both = one | other
        return tuple(
            position
            for position, theta in enumerate(self.thetas)
            if theta.relations <= both
            and (
                theta.relations in (one, other)
                if len(theta.relations) == 1
                else not theta.relations <= one and not theta.relations <= other
            )
        )

    def are_connected(self, left: Iterable[str], right: Iterable[str]) -> bool:
        """True if some predicate connects the two sides; otherwise their join is a cross product."""
        one, other = frozenset(left), frozenset(right)
        if self.keys_between(one, other):
            return True
        return any(theta.relations & one and theta.relations & other for theta in self.thetas)

    @property
    def is_connected(self) -> bool:
        reached = {self.names[0]}
        while grown := {n for n in self.names if n not in reached and self.are_connected(reached, [n])}:
            reached |= grown
        return len(reached) == len(self.names)


def selection_name(position: int) -> str:
    """Returns the name of the theta at a position, as plans and meshes write it."""
    return f"#{position}"


def position_of(name: str) -> int:
    """Returns the position of the theta with that name."""
    return int(name[1:])


def is_selection(name: str) -> bool:
    """True if a name is that of a theta, not of a relation."""
    return name.startswith("#")


def shared_keys(graphs: Sequence[JoinGraph]) -> tuple[tuple[KeyClass, ...], list[JoinGraph]]:
    """Returns one key for all keys over the same expressions, and the graphs with their keys renamed to it."""
    known: list[KeyClass] = []
    renamed = []
    for graph in graphs:
        keys: list[KeyClass] = []
        for key in graph.keys:
            taken = {own.name for own in keys}
            place = next((i for i, other in enumerate(known) if other.name not in taken and _agree(key, other)), None)
            if place is None:
                place = len(known)
                known.append(replace(key, name=f"k{place}"))
            members = dict(known[place].members) | dict(key.members)
            known[place] = replace(known[place], members=tuple(members.items()))
            keys.append(replace(key, name=known[place].name))
        renamed.append(replace(graph, keys=tuple(keys)))
    return tuple(known), renamed


def fewest_keys(graphs: Sequence[JoinGraph]) -> tuple[tuple[KeyClass, ...], list[JoinGraph]]:
    """Like `shared_keys`, but also merges keys of one type that no query uses together.

    Rows of queries that have nothing in common are then spread along one axis, and none is copied. Each graph must have
    all relations of its query: keys that a query uses together are not equal.
    """
    known, renamed = shared_keys(graphs)
    names = _merged(known, [frozenset(key.name for key in graph.keys) for graph in renamed])
    merged: dict[str, KeyClass] = {}
    for key in known:
        name = names[key.name]
        earlier = merged[name].members if name in merged else ()
        merged[name] = replace(key, name=name, members=(*earlier, *key.members))
    made = [replace(graph, keys=tuple(replace(key, name=names[key.name]) for key in graph.keys)) for graph in renamed]
    return tuple(merged.values()), made


def _merged(known: Sequence[KeyClass], used: Sequence[frozenset[str]]) -> dict[str, str]:
    """Maps each key to the name of the first key that it can be merged with."""
    classes: list[list[KeyClass]] = []
    for key in known:
        for several in classes:
            together = {each.name for each in several} | {key.name}
            is_apart = all(each.type == key.type and not each.relations & key.relations for each in several)
            if is_apart and all(len(together & names) < 2 for names in used):
                several.append(key)
                break
        else:
            classes.append([key])
    return {each.name: f"k{place}" for place, several in enumerate(classes) for each in several}


def _agree(key: KeyClass, other: KeyClass) -> bool:
    """True if the keys share a relation, and every shared relation has the same expression in both."""
    common = key.relations & other.relations
    return (
        bool(common)
        and key.type == other.type
        and all(key.expression(name) == other.expression(name) for name in common)
    )


def render(graph: JoinGraph) -> str:
    """Returns the graph as text: relations, then keys and thetas."""
    lines = []
    for relation in graph.relations:
        where = relation.condition if relation.condition is not None else relation.filter
        condition = f" WHERE {where}" if where is not None else ""
        parts = "".join(f" {part.time}+{part.range}" for part in relation.parts)
        lines.append(f"relation {relation.name} = {relation.stream} {relation.window}{condition}{parts}")
    lines += [f"key {key.name}: {key}" for key in graph.keys]
    lines += [f"{_kind(theta)}: {theta}" for theta in graph.thetas]
    return "\n".join(lines)


def _kind(theta: Theta) -> str:
    if len(theta.relations) == 1:
        # A deferred filter. This string is part of the fingerprint; changing it would invalidate existing checkpoints.
        return "late filter"
    return "theta" if theta.band is None else "band"
