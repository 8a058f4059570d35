"""Several queries as one: what they read is read, spread, kept and indexed once, and each has its own answer.

A relation of the same name in several queries is shared. It must be of one stream. It carries the columns that any of
them needs, keeps rows as long as the longest of their windows, and filters by what their filters have in common; what a
query asks beyond that are its `Terms`, which it applies to its own combinations. Keys that queries compare by the same
expressions have one code. A relation of another name is another relation, and its rows travel on their own.

Where rows are read, spread over slots and kept, a bundle is a query like any other, over the relations of all. It has
no outputs and no predicates of its own but the bands, by which base states are indexed.

Law: what each query answers is what it would answer alone. Grouped queries are refused: what they answer depends on the
watermark of their own streams.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from anabranch.errors import BundleError
from anabranch.expr import Call, Expr, can_fail, columns, conjunction, conjuncts
from anabranch.plan.join_graph import JoinGraph, KeyClass, Relation, render
from anabranch.plan.mesh import Plan
from anabranch.plan.partitioning import Partitioning, choose_partitioning
from anabranch.plan.query import Query
from anabranch.schema import Field, Schema
from anabranch.window import FOREVER, Window

MOST_RELATIONS = 128
"""Rows travel with the number of their relation in a byte; the negative half of it are rows that a filter rejects."""


@dataclass(frozen=True)
class Terms:
    """What a query asks of a shared relation beyond what all ask; `range` is that of its own window."""

    relation: str
    range: int
    is_shorter: bool
    """Whether the shared relation keeps rows for longer."""
    filter: Expr | None


@dataclass(frozen=True)
class Member:
    """One query of a bundle, over the shared relations, and what it asks of them beyond what they are."""

    name: str
    query: Query
    terms: tuple[Terms, ...]
    """Of the relations of which it asks more than all do."""


@dataclass(frozen=True)
class Bundle(Query):
    """Queries that run together, in the order of their names."""

    members: tuple[Member, ...] = ()

    @cached_property
    def schema(self) -> Schema:
        """One column for each query: a row has a value in that of the query whose result it is, and in no other."""
        return Schema(tuple(Field(member.name, _struct(member.query.schema), True) for member in self.members))

    @cached_property
    def fingerprint(self) -> str:
        parts = [f"{member.name} {member.query.fingerprint} {member.terms}" for member in self.members]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class BundlePlan:
    """A plan for each query of a bundle, by name."""

    plans: Mapping[str, Plan]

    def __str__(self) -> str:
        return "; ".join(f"{name}: {plan}" for name, plan in sorted(self.plans.items()))


def _struct(schema: Schema) -> pa.DataType:
    """Rows as values; a row that is not there has no value in any field."""
    return pa.struct([pa.field(field.name, field.type) for field in schema])


def bundle(queries: Mapping[str, Query]) -> Bundle:
    """The queries as one; a BundleError says which of them cannot be part of it, why, and what to do."""
    if not queries:
        raise BundleError("no query is named that could run", hint="name one query or more")
    named = dict(sorted(queries.items()))
    _refuse_names(named)
    for name, query in named.items():
        if query.grouping is not None:
            raise BundleError(
                f"query '{name}' is grouped and cannot share its rows with others",
                detail="its answers wait for the watermark of its own streams alone",
                hint="start it on its own",
            )
    relations = _shared_relations({name: query.graph for name, query in named.items()})
    if len(relations) > MOST_RELATIONS:
        raise BundleError(
            f"{len(relations)} relations are too many for queries that run together",
            detail=f"they may have {MOST_RELATIONS} aliases in all",
            hint="give a stream the same alias in several queries, or start some of them on their own",
        )
    keys, graphs = _shared_keys([query.graph for query in named.values()])
    members = tuple(
        _member(name, query, graph, relations) for (name, query), graph in zip(named.items(), graphs, strict=True)
    )
    bands = dict.fromkeys(theta for graph in graphs for theta in graph.thetas if theta.band is not None)
    text = "\n".join(f"{name}: {query.text}" for name, query in named.items())
    graph = JoinGraph(tuple(relations.values()), keys, tuple(bands))
    return Bundle(text, graph, (), None, members)


def _refuse_names(names: Iterable[str]) -> None:
    """Results travel in columns of these names, and states lie in files of them; Spark does not tell cases apart."""
    known: dict[str, str] = {}
    for name in names:
        if not name.isidentifier():
            raise BundleError(f"'{name}' is no name for a query", hint="use letters, digits and _, a letter first")
        if (other := known.setdefault(name.lower(), name)) != name:
            raise BundleError(f"queries '{other}' and '{name}' differ only in case", hint="give one another name")


def describe(bundle: Bundle) -> str:
    """What the queries share, who reads it, and what each asks beyond it."""
    lines = render(bundle.graph).splitlines()
    for number, relation in enumerate(bundle.graph.relations):
        readers = [member.name for member in bundle.members if relation.name in member.query.graph.names]
        lines[number] += f"  read by {', '.join(readers)}"
    for member in bundle.members:
        for terms in member.terms:
            window = [str(Window(terms.range))] if terms.is_shorter else []
            asked = [*window, *([str(terms.filter)] if terms.filter is not None else [])]
            lines.append(f"{member.name} asks of {terms.relation}: {', '.join(asked)}")
    return "\n".join(lines)


def partitioning_of(query: Query, slots: int) -> Partitioning:
    """How the rows of a query, or of a bundle, are spread over slots."""
    if not isinstance(query, Bundle):
        return choose_partitioning(query.graph, slots)
    axes = tuple(_axis(key, query.members) for key in query.graph.keys)
    return choose_partitioning(replace(query.graph, keys=axes), slots)


def _axis(key: KeyClass, members: Sequence[Member]) -> KeyClass:
    """The key as an axis of the grid: of relations that several queries name, those that it equates in all of them."""
    kept: list[tuple[str, Expr]] = []
    for relation, expression in key.members:
        names = {relation, *(name for name, _ in kept)}
        if all(_equates(member.query.graph, key.name, names) for member in members):
            kept.append((relation, expression))
    return replace(key, members=tuple(kept))


def _equates(graph: JoinGraph, key: str, names: set[str]) -> bool:
    """True when those of the relations that the graph has are equal in the key in all its results."""
    present = names & set(graph.names)
    return len(present) < 2 or any(own.name == key and present <= own.relations for own in graph.keys)


def _member(name: str, query: Query, graph: JoinGraph, relations: Mapping[str, Relation]) -> Member:
    terms = []
    for own in query.graph.relations:
        shared = relations[own.name]
        common = () if shared.filter is None else conjuncts(shared.filter)
        rest = tuple(part for part in _parts(own) if part not in common)
        is_shorter = range_of(own.window) < range_of(shared.window)
        if rest or is_shorter:
            terms.append(Terms(own.name, range_of(own.window), is_shorter, conjunction(rest)))
        if not all(isinstance(part, Call) and part.function == "is_not_null" for part in rest):
            _refuse_what_may_fail(name, graph, own.name)
    over = replace(graph, relations=tuple(relations[relation.name] for relation in graph.relations))
    return Member(name, replace(query, graph=over), tuple(terms))


def _refuse_what_may_fail(query: str, graph: JoinGraph, relation: str) -> None:
    """A filter of the query's own comes late, so nothing before it may depend on what it keeps away."""
    met = [key.expression(relation) for key in graph.keys_of([relation])]
    met += [theta.predicate for theta in graph.thetas if relation in theta.relations]
    for expression in met:
        if can_fail(expression):
            raise BundleError(
                f"query '{query}' has a filter of '{relation}' that the other queries do not have",
                detail=f"'{expression}' would be computed for rows that the filter keeps away, and may fail there",
                hint=f"give '{relation}' another alias in this query, or all queries the same filter",
            )


def _shared_relations(graphs: Mapping[str, JoinGraph]) -> dict[str, Relation]:
    found: dict[str, list[tuple[str, Relation]]] = {}
    for query, graph in graphs.items():
        for relation in graph.relations:
            found.setdefault(relation.name, []).append((query, relation))
    return {name: _shared_relation(name, several) for name, several in found.items()}


def _shared_relation(name: str, several: Sequence[tuple[str, Relation]]) -> Relation:
    first_query, first = several[0]
    for query, other in several[1:]:
        if (other.stream, other.event_time, other.disorder) != (first.stream, first.event_time, first.disorder):
            raise BundleError(
                f"relation '{name}' is not the same stream in queries '{first_query}' and '{query}'",
                detail=f"it is {first.stream} in one and {other.stream} in the other, or the stream was registered "
                "anew in between",
                hint="give it another alias in one of them",
            )
    filters = [_parts(relation) for _, relation in several]
    common = _common(filters)
    fields = {field.name: field for _, relation in several for field in relation.schema}
    for part in (part for parts in filters for part in parts if part not in common):
        # What a query still has to test on rows must be carried with them.
        fields |= {c.name: Field(c.name, c.type, c.nullable) for c in columns(part) if c.name not in fields}
    window = max((relation.window for _, relation in several), key=range_of)
    schema, condition = Schema(tuple(fields.values())), conjunction(common)
    return replace(first, schema=schema, window=Window(window.range), filter=condition)


def _common(filters: Sequence[tuple[Expr, ...]]) -> tuple[Expr, ...]:
    """What all filters test; not a test that can fail where one of them tests something of its own before it."""
    common: list[Expr] = []
    for part in filters[0]:
        if all(part in parts for parts in filters):
            before = {earlier for parts in filters for earlier in parts[: parts.index(part)]}
            if not can_fail(part) or before <= set(common):
                common.append(part)
    return tuple(common)


def _parts(relation: Relation) -> tuple[Expr, ...]:
    return () if relation.filter is None else conjuncts(relation.filter)


def range_of(window: Window) -> int:
    return FOREVER if window.range is None else window.range


def _shared_keys(graphs: Sequence[JoinGraph]) -> tuple[tuple[KeyClass, ...], list[JoinGraph]]:
    """One key for all that compare the same expressions, and the graphs with their keys named by them."""
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


def _agree(key: KeyClass, other: KeyClass) -> bool:
    """True when the two share a relation, and every relation they share has the same expression in both."""
    common = key.relations & other.relations
    return (
        bool(common)
        and key.type == other.type
        and all(key.expression(name) == other.expression(name) for name in common)
    )
