"""Sets of queries that run together: rows are read, partitioned, kept and indexed once; each query has its own results.

A query that runs alone is a set of one: its member has no name (`ALONE`) and no residuals, and the set has the graph,
the text and the fingerprint of the query.

A relation that several queries name is shared; it must be of one stream. It carries the columns that any of them needs,
keeps rows for the longest of their windows, and filters by the conjuncts that all their filters have. The remaining
window and filter of a query are its `ResidualPredicates`, which it applies to its own combinations. Keys over the same
expressions share one code. A relation with a different name is a separate relation, and its rows are sent separately.

Invariant: each query returns the same results as it would alone. Grouped queries and those with outer joins follow the
watermark of their own streams.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from anabranch.errors import BundleError
from anabranch.lang.expr import Call, Expr, can_fail_in_join, columns, conjunction, conjuncts
from anabranch.lang.schema import Field, Schema
from anabranch.lang.window import FOREVER, SessionWindow, Window
from anabranch.plan.join_graph import JoinGraph, KeyClass, Relation, fewest_keys, render
from anabranch.plan.logical import SideKind
from anabranch.plan.mesh import Plan
from anabranch.plan.partitioning import Partitioning, choose_partitioning
from anabranch.plan.query import Query, late_filters, titled
from anabranch.plan.sides import Side

ALONE = ""
"""The name of a query that runs alone; files and records omit it."""
MOST_RELATIONS = 128
"""The relation number of a row is one byte; its negative half is for rows that a filter rejects."""


@dataclass(frozen=True)
class ResidualPredicates:
    """The window and filter of a query beyond those of a shared relation; `range` is that of the query's own window."""

    relation: str
    range: int
    is_shorter: bool
    """True if the shared relation keeps rows for longer."""
    filter: Expr | None
    window: Window = field(repr=False)
    """The query's own window; the fingerprint of a set has the fields above."""


@dataclass(frozen=True)
class Member:
    """One query of a set, over the shared relations, and its residual predicates."""

    name: str
    query: Query
    residuals: tuple[ResidualPredicates, ...] = ()
    """For relations on which the query has a shorter window or a stricter filter than the set."""
    feeds: bool = False
    """True if other queries of the set read its results; each result then has its event time as the last column."""
    is_silent: bool = False
    """True if its results go only to other queries and to no sink."""

    @property
    def label(self) -> str:
        """The prefix of the names of this query's operators in the statistics of the whole set."""
        return f"{self.name} " if self.name else ""


@dataclass(frozen=True)
class QuerySet:
    """Queries that run together, ordered by name; see `alone` and `together`."""

    members: tuple[Member, ...]
    graph: JoinGraph
    """The relations of all queries, shared keys, and the predicates by which base states are indexed."""
    text: str
    fingerprint: str
    """A short digest of everything that determines the results."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @property
    def is_named(self) -> bool:
        """True if the queries have names; False only if a query runs alone, with the queries that it reads."""
        return ALONE not in self.names

    def member(self, name: str) -> Member:
        return next(member for member in self.members if member.name == name)

    @property
    def delivered(self) -> tuple[Member, ...]:
        """The queries whose results go to a sink."""
        return tuple(member for member in self.members if not member.is_silent)

    @cached_property
    def streams(self) -> tuple[str, ...]:
        """The external streams that the queries read, each once."""
        return tuple(dict.fromkeys(relation.stream for relation in self.graph.streamed if not relation.is_result))

    def readers(self, name: str) -> tuple[Relation, ...]:
        """Returns the relations that read the results of a query."""
        return tuple(each for each in self.graph.relations if name in each.producers)

    @cached_property
    def levels(self) -> Mapping[str, int]:
        """The depth of the chain of queries below each query."""
        levels: dict[str, int] = {}
        while len(levels) < len(self.members):
            for member in self.members:
                read = {name for each in member.query.whole.relations for name in each.producers}
                if member.name not in levels and read <= levels.keys():
                    levels[member.name] = 1 + max((levels[name] for name in read), default=-1)
        return levels

    def stage_of(self, relation: Relation) -> int:
        """Returns the stage of a batch in which rows of a relation arrive."""
        return 1 + max((self.levels[name] for name in relation.producers), default=-1)

    @property
    def stages(self) -> int:
        """The number of stages of a batch: the results of one stage are input rows of the next."""
        return 1 + max(self.levels.values())

    @property
    def grouped(self) -> tuple[Member, ...]:
        """The queries that are grouped."""
        return tuple(member for member in self.members if member.query.grouping is not None)

    @property
    def has_sides(self) -> bool:
        """True if some query has outer, semi or anti joins."""
        return any(member.query.sides for member in self.members)

    @property
    def needs_watermark(self) -> bool:
        """True if a step must know the watermark after it: for groups, and for combinations without a match."""
        return bool(self.grouped) or any(member.query.waits for member in self.members)

    @property
    def fixed_tables(self) -> Mapping[str, str]:
        """The tables that must keep their first version, each with the name of a query that needs it.

        Combinations that wait for the watermark, in groups or at a side, would meet another version after a rebuild.
        """
        waiting = [member for member in self.members if member.query.waits or member.query.grouping is not None]
        return {table: member.name for member in waiting for table in member.query.whole.tables}

    @property
    def uncut(self) -> frozenset[str]:
        """The relations whose rows with a heavy key must not be cut.

        A table is loaded whole, and a slot that counts the rows of a window needs all of them. A combination of the
        core must find all rows of a side in its slot. A full join may emit rows of its side alone, so neither they nor
        the core can be in several slots.
        """
        if self.stages > 1:
            # Rows that one query produces for another are routed to slots by keys alone.
            return frozenset(self.graph.names)
        found = {relation.name for relation in self.graph.relations if relation.is_table or relation.window.is_counted}
        for query in (member.query for member in self.members):
            for side in query.sides:
                found |= {*side.names, *(query.whole.names if side.kind is SideKind.FULL else ())}
        return frozenset(found)

    @property
    def may_be_absent(self) -> frozenset[str]:
        """The relations that a combination of some query may lack."""
        return frozenset(name for member in self.members for name in member.query.may_be_absent)

    @property
    def late_filters(self) -> tuple[str, ...]:
        """The deferred filters as texts, prefixed by the names of queries; part of the fingerprint."""
        if not self.is_named:
            return late_filters(self.member(ALONE).query.whole)
        return tuple(f"{each.name}: {text}" for each in self.members for text in late_filters(each.query.whole))


@dataclass(frozen=True)
class Plans:
    """The plan of each query of a set, by name."""

    plans: Mapping[str, Plan]

    def __str__(self) -> str:
        return "; ".join(f"{name}: {plan}" if name else str(plan) for name, plan in sorted(self.plans.items()))

    def __getitem__(self, query: str) -> Plan:
        return self.plans[query]

    @property
    def unwrapped(self) -> Plan | Plans:
        """The plan itself if a query runs alone."""
        return self.plans.get(ALONE, self)


def alone(query: Query) -> QuerySet:
    """Returns a query as a set of one, together with the queries that it reads."""
    if query.inputs:
        return _set({ALONE: query})
    return QuerySet((Member(ALONE, query),), query.whole, query.text, query.fingerprint)


def set_of(queries: Mapping[str, Query], silent: Iterable[str] = ()) -> QuerySet:
    """Returns queries by name as a set; a query without a name runs alone."""
    return alone(queries[ALONE]) if ALONE in queries else together(queries, silent)


def by_itself(query: Query) -> QuerySet:
    """Returns a query as a set of one, without the queries that it reads, to process given rows."""
    return alone(replace(query, inputs=()))


def as_set(query: Query | QuerySet) -> QuerySet:
    """Returns a set, for callers that may pass a single query."""
    return query if isinstance(query, QuerySet) else alone(query)


def as_plans(plan: Plan | Plans) -> Plans:
    """Returns plans by query, for callers that may pass the plan of a query that runs alone."""
    return plan if isinstance(plan, Plans) else Plans({ALONE: plan})


def together(queries: Mapping[str, Query], silent: Iterable[str] = ()) -> QuerySet:
    """Returns the queries as one set; raises BundleError if a query cannot be part of it.

    Queries that others read are part of the set as well. Those that are not given, and the `silent` ones, have no sink.
    """
    if not queries:
        raise BundleError("no query is given", hint="name at least one query")
    _refuse_names(sorted(queries))
    return _set(queries, silent)


def with_inputs(queries: Mapping[str, Query]) -> dict[str, Query]:
    """Returns the queries and all that they read, directly or indirectly, ordered by name."""
    found = dict(queries)
    waiting = list(queries.values())
    while waiting:
        for name, query in waiting.pop().inputs:
            if name not in found:
                found[name] = query
                waiting.append(query)
            elif found[name] != query:
                raise BundleError(
                    f"query '{name}' has two definitions",
                    detail=f"it is '{found[name].text}' for one reader and '{query.text}' in another",
                    hint="give one of them another name, and compile its readers again",
                )
    return dict(sorted(found.items()))


def _set(queries: Mapping[str, Query], silent: Iterable[str] = ()) -> QuerySet:
    named = with_inputs(queries)
    read = {name for query in named.values() for name, _ in query.inputs}
    for name, query in named.items():
        for each in query.whole.relations:
            if isinstance(each.window, SessionWindow) or (
                each.window.is_counted and each.name not in query.graph.names
            ):
                kind = "session window" if isinstance(each.window, SessionWindow) else "count window in an outer join"
                raise BundleError(
                    f"{titled(name)} has a {kind}, of '{each.name}', and runs alone",
                    detail="its results follow the watermark of its own streams",
                    hint="start it on its own, over streams, without other queries that read it",
                )
    for relation in (each for query in named.values() for each in query.whole.streamed if each.behind >= FOREVER):
        raise BundleError(
            f"{titled(relation.stream)} has results that may be arbitrarily older than its watermark",
            detail="a query that reads them would wait forever",
            hint="bound its windows, or add a condition over event times",
        )
    relations = _shared_relations({name: query.whole for name, query in named.items()})
    if len(relations) > MOST_RELATIONS:
        raise BundleError(
            f"{len(relations)} relations are too many for queries that run together",
            detail=f"they may have {MOST_RELATIONS} aliases in all",
            hint="give a stream the same alias in several queries, or start some of them on their own",
        )
    keys, graphs = fewest_keys([query.whole for query in named.values()])
    members = tuple(
        replace(
            _member(name, query, graph, relations),
            feeds=name in read,
            is_silent=name in silent or name not in queries,
        )
        for (name, query), graph in zip(named.items(), graphs, strict=True)
    )
    bands = dict.fromkeys(theta for graph in graphs for theta in graph.thetas if theta.band is not None)
    text = "\n".join(f"{name}: {query.text}" if name else query.text for name, query in named.items())
    graph = JoinGraph(tuple(relations.values()), keys, tuple(bands))
    parts = [f"{member.name} {member.query.fingerprint} {member.residuals}" for member in members]
    fingerprint = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    found = QuerySet(members, graph, text, fingerprint)
    for member in found.members:
        _refuse_late_counts(found, member)
    return found


def _refuse_late_counts(queries: QuerySet, member: Member) -> None:
    """Raises an error if a count window counts rows in a later stage of a batch than the rows that it is joined
    with.
    """
    stages = {each.name: queries.stage_of(each) for each in member.query.graph.streamed}
    for relation in member.query.graph.relations:
        early = [name for name, stage in stages.items() if stage < stages.get(relation.name, 0)]
        if relation.window.is_counted and early:
            raise BundleError(
                f"{titled(member.name)} counts rows of '{relation.name}', which are results, beside '{early[0]}'",
                detail=f"rows of '{early[0]}' come first in each batch, and would match rows that later rows push out",
                hint="give the results a window in time, or write them to a topic or folder and read that as a stream",
            )


def _refuse_names(names: Iterable[str]) -> None:
    """Raises for invalid names and names that differ only in case: they name files and case-insensitive columns."""
    known: dict[str, str] = {}
    for name in names:
        if not name.isidentifier():
            hint = "use letters, digits and _, a letter first"
            raise BundleError(f"'{name}' is not a valid name for a query", hint=hint)
        if (other := known.setdefault(name.lower(), name)) != name:
            raise BundleError(f"queries '{other}' and '{name}' differ only in case", hint="give one another name")


def describe(queries: QuerySet) -> str:
    """Describes the shared relations and keys, their readers, and the residual predicates of each query."""
    lines = render(queries.graph).splitlines()
    for number, relation in enumerate(queries.graph.relations):
        readers = [member.name for member in queries.members if relation.name in member.query.whole.names]
        lines[number] += f"  read by {', '.join(name or 'the query' for name in readers)}"
    for member in queries.members:
        for residual in member.residuals:
            window = [str(replace(residual.window, slide=None))] if residual.is_shorter else []
            conditions = [*window, *([str(residual.filter)] if residual.filter is not None else [])]
            lines.append(f"{member.name or 'the query'} restricts {residual.relation} to {', '.join(conditions)}")
    return "\n".join(lines)


def partitioning_of(
    queries: QuerySet, slots: int, traffic: Mapping[str, float] | None = None, held: Collection[str] = ()
) -> Partitioning:
    """Returns how the rows of a set of queries are partitioned over slots; see `choose_partitioning`.

    `held` are tables that every slot holds whole. A key that only one other relation has is then no axis: spreading by
    the rows themselves is more even.
    """
    whole = {relation.name for relation in queries.graph.relations if relation.is_table and relation.stream in held}
    axes = tuple(_without(_axis(key, queries.members), whole) for key in queries.graph.keys)
    spread = tuple(relation.name for relation in queries.graph.streamed)
    axes = tuple(axis for axis in axes if axis.relations & set(spread) and (len(axis.members) > 1 or not whole))
    if queries.graph.tables:
        # Rows of tables are not sent.
        traffic = traffic or dict.fromkeys(spread, 1.0)
    for query in (member.query for member in queries.members if member.query.sides):
        axes, spread = _around_core(query, axes, spread)
    return choose_partitioning(replace(queries.graph, keys=axes), slots, traffic=traffic, spread=spread)


def _around_core(
    query: Query, axes: Sequence[KeyClass], spread: Sequence[str]
) -> tuple[tuple[KeyClass, ...], tuple[str, ...]]:
    """Returns the axes for a query with sides, and the relations that may be spread by their rows.

    A combination of the core and all rows that may match it must be in one slot. So a key is an axis of the query only
    if the core has it; a side without it is copied along that axis. A full join may emit rows of its side alone, so
    these need a coordinate on every axis too.
    """
    core, whole = frozenset(query.graph.names), frozenset(query.whole.names)
    needed = [core, *(frozenset(side.names) for side in query.sides if side.kind is SideKind.FULL)]
    fitting = [axis if all(axis.relations & several for several in needed) else _without(axis, whole) for axis in axes]
    kept = whole if len(needed) > 1 else whole - core
    return tuple(axis for axis in fitting if axis.members), tuple(name for name in spread if name not in kept)


def _without(axis: KeyClass, relations: Collection[str]) -> KeyClass:
    return replace(axis, members=tuple(member for member in axis.members if member[0] not in relations))


def _axis(key: KeyClass, members: Sequence[Member]) -> KeyClass:
    """Returns the key as an axis of the grid; of shared relations, it keeps those that it equates in all queries."""
    kept: list[tuple[str, Expr]] = []
    for relation, expression in key.members:
        names = {relation, *(name for name, _ in kept)}
        if all(_equates(member.query.whole, key.name, names) for member in members):
            kept.append((relation, expression))
    return replace(key, members=tuple(kept))


def _equates(graph: JoinGraph, key: str, names: set[str]) -> bool:
    """True if those of the relations that the graph has are equal in the key in all its results."""
    present = names & set(graph.names)
    return len(present) < 2 or any(own.name == key and present <= own.relations for own in graph.keys)


def _member(name: str, query: Query, whole: JoinGraph, relations: Mapping[str, Relation]) -> Member:
    """Returns the query over the shared relations; `whole` has its keys by their shared names."""
    residuals = []
    found: dict[str, tuple[Expr, ...]] = {}
    """The residual filters of relations of sides, which are predicates of a match."""
    for own in query.whole.relations:
        shared = relations[own.name]
        common = () if shared.filter is None else conjuncts(shared.filter)
        rest = tuple(part for part in _parts(own) if part not in common)
        is_shorter = replace(own.window, slide=None) != shared.window
        if side := next((each for each in query.sides if own.name in each.names), None):
            if is_shorter or (rest and side.kind is SideKind.FULL):
                raise BundleError(
                    f"{titled(name)} joins '{own.name}' by an outer, semi or anti join",
                    detail="other queries read it with another window or another filter",
                    hint=f"give '{own.name}' another alias in this query",
                )
            found[own.name] = rest
        elif rest or is_shorter:
            residuals.append(ResidualPredicates(own.name, own.window.reach, is_shorter, conjunction(rest), own.window))
        if not all(isinstance(part, Call) and part.function == "is_not_null" for part in rest):
            _refuse_what_may_fail(name, whole, own.name)
    names = {old.name: new.name for old, new in zip(query.whole.keys, whole.keys, strict=True)}

    def over(graph: JoinGraph) -> JoinGraph:
        keys = tuple(replace(key, name=names[key.name]) for key in graph.keys)
        return replace(graph, relations=tuple(relations[each.name] for each in graph.relations), keys=keys)

    sides = tuple(
        replace(side, graph=over(side.graph), residual=_matching(side, [found[each] for each in side.names]))
        for side in query.sides
    )
    return Member(name, replace(query, graph=over(query.graph), sides=sides), tuple(residuals))


def _matching(side: Side, filters: Iterable[tuple[Expr, ...]]) -> Expr | None:
    """Returns the residual predicate of a side whose relations keep rows that the query's own filters reject."""
    parts = [part for each in filters for part in each]
    return conjunction((*parts, *(() if side.residual is None else (side.residual,))))


def _refuse_what_may_fail(query: str, graph: JoinGraph, relation: str) -> None:
    """Raises an error if an expression that may fail is evaluated before the query's own filter."""
    met = [key.expression(relation) for key in graph.keys_of([relation])]
    met += [theta.predicate for theta in graph.thetas if relation in theta.relations]
    for expression in met:
        if can_fail_in_join(expression):
            raise BundleError(
                f"{titled(query)} has a filter of '{relation}' that the other queries do not have",
                detail=f"'{expression}' would be computed for rows that the filter rejects, and may fail there",
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
        if _source(other) != _source(first):
            raise BundleError(
                f"relation '{name}' is not the same stream in {_several(first_query, query)}",
                detail=f"it is {_stream(first)} in one and {_stream(other)} in the other, or the stream was registered "
                "again in between",
                hint="give it another alias in one of them",
            )
        if first.window.is_counted or other.window.is_counted:
            raise BundleError(
                f"{titled(first_query)} and {titled(query)} share '{name}', which has a count window",
                detail="rows of one event time are counted in the order of the columns that a query reads",
                hint=f"give '{name}' another alias in one of them",
            )
    filters = [_parts(relation) for _, relation in several]
    common = common_conjuncts(filters)
    fields = {field.name: field for _, relation in several for field in relation.schema}
    for part in (part for parts in filters for part in parts if part not in common):
        # Columns of residual filters must be carried with the rows.
        fields |= {c.name: Field(c.name, c.type, c.nullable) for c in columns(part) if c.name not in fields}
    window = longest_window([relation.window for _, relation in several])
    schema, condition = Schema(tuple(fields.values())), conjunction(common)
    return replace(first, schema=schema, window=window, filter=condition)


def _several(first: str, second: str) -> str:
    return f"{titled(first)} and in {titled(second)}"


def _stream(relation: Relation) -> str:
    return titled(relation.stream) if relation.is_result else f"stream '{relation.stream}'"


def _source(relation: Relation) -> tuple[object, ...]:
    return (
        relation.stream,
        relation.branches,
        relation.is_result,
        relation.event_time,
        relation.disorder,
        relation.parts,
    )


def longest_window(several: Sequence[Window]) -> Window:
    """Returns a window that keeps rows as long as any of these, without a slide; slides belong to the queries."""
    kinds = {replace(window, slide=None) for window in several}
    return kinds.pop() if len(kinds) == 1 else Window(max(kinds, key=lambda window: window.reach).range)


def common_conjuncts(filters: Sequence[tuple[Expr, ...]]) -> tuple[Expr, ...]:
    """Returns the conjuncts that all filters have; one that can fail only if all conjuncts before it are common too."""
    common: list[Expr] = []
    for part in filters[0]:
        if all(part in parts for parts in filters):
            before = {earlier for parts in filters for earlier in parts[: parts.index(part)]}
            if not can_fail_in_join(part) or before <= set(common):
                common.append(part)
    return tuple(common)


def _parts(relation: Relation) -> tuple[Expr, ...]:
    return () if relation.filter is None else conjuncts(relation.filter)
