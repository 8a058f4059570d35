"""Places filters before the start of a run, for queries with `late_filters: auto`.

Streams are sampled a second time with the costly filters late, because placement needs the rows that a filter rejects.
The rows in a checkpoint were either filtered or not, so queries with a checkpoint keep their placement. A query that is
added later takes over the placement of the filters that it shares with them.

Limit: filters inside a query that another query reads stay before the joins, unless it runs under its own name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from anabranch.api.compiled import CompiledQuery, sample_queries
from anabranch.api.members import Member
from anabranch.api.settings import RunSettings
from anabranch.lang.expr import conjuncts
from anabranch.optimize import Choice
from anabranch.optimize.filter_places import FilterPlaces, Pricing, costly_filters, place_filters
from anabranch.plan.query import Query
from anabranch.plan.query_set import set_of
from anabranch.planning.choosing import decide, on_spark
from anabranch.planning.options import DEFAULT_BATCH
from anabranch.run.filters import bytes_of_columns, seen_filters
from anabranch.run.ingest import columns_to_read
from anabranch.run.pieces import MOST_READERS
from anabranch.run.sample import Sample
from anabranch.run.store import Store
from anabranch.spark.file_streams import file_streams
from anabranch.stats.view import FixedStatistics

_NO_SAMPLE = "no sample: filters are checked before the joins"


def with_placed_filters(members: Mapping[str, Member], settings: RunSettings, cores: int) -> dict[str, Member]:
    """Returns the queries of a run with their filters placed at least cost, if requested."""
    waiting = {name: member for name, member in members.items() if member.compiled.stages.places_filters}
    if not waiting:
        return dict(members)
    kept = _kept(waiting, settings)
    costly = {name: _costly(member.compiled) for name, member in waiting.items()}
    # A condition placed in the checkpoint keeps its place, also for queries that are added.
    decided = {each: each in kept[name].late for name in kept for each in costly[name]}
    wanted = dict.fromkeys(condition for name in waiting for condition in costly[name])
    free = [each for each in wanted if each not in decided]
    places = FilterPlaces(tuple(condition for condition, is_late in decided.items() if is_late))
    if free:
        places = _placed(members, [*waiting], [*wanted], free, places.late, settings, cores)
    found = dict(members)
    for name, member in waiting.items():
        own = kept.get(name) or _own_places(places, costly[name], decided)
        compiled = member.compiled.with_late_filters(own.late)
        compiled.places = own
        found[name] = replace(member, compiled=compiled)
    return found


def _own_places(places: FilterPlaces, costly: Sequence[str], decided: Mapping[str, bool]) -> FilterPlaces:
    """Returns the part of a joint placement that belongs to one query."""
    if not costly:
        return FilterPlaces(reasons=("no filter is costly enough to be deferred",))
    reasons = [f"{each} keeps its place in the checkpoint" for each in costly if each in decided]
    others = [each for each in places.reasons if each == _NO_SAMPLE or any(each.startswith(one) for one in costly)]
    return FilterPlaces(tuple(each for each in costly if each in places.late), (*reasons, *others))


def unplaced(members: Mapping[str, Member]) -> dict[str, Member]:
    """Returns the queries with all costly filters before the joins: a free check whether they can run together."""
    return {
        name: replace(member, compiled=member.compiled.with_late_filters(()))
        if member.compiled.stages.places_filters
        else member
        for name, member in members.items()
    }


def _samples(members: Mapping[str, Member], costly: Sequence[str]) -> dict[str, tuple[Query, Sample]]:
    """Samples each query with its costly filters late."""
    before = {}
    for name, member in members.items():
        own = [each for each in costly if each in _conditions(member.compiled)]
        late = dict.fromkeys([*member.compiled.query.late_filters, *own])
        before[name] = member.compiled.with_late_filters([*late]) if own else member.compiled
    sample_queries([*before.values()])
    return {name: (each.query, each.sample) for name, each in before.items()}


def _placed(
    members: Mapping[str, Member],
    waiting: Sequence[str],
    costly: Sequence[str],
    free: Sequence[str],
    late: Sequence[str],
    settings: RunSettings,
    cores: int,
) -> FilterPlaces:
    """Returns the cheapest placement of filters for queries that have none yet; the others keep theirs."""
    samples = _samples(members, costly)
    seen = {
        each.condition: each
        for query, sample in samples.values()
        for each in seen_filters(query, sample.rows)
        if each.condition in costly
    }
    if not any(condition in seen for condition in free):
        return FilterPlaces(tuple(late), (_NO_SAMPLE,))
    slots = cores if settings.slots is None else settings.slots.most
    early = float(_readers(members, slots))
    bytes: dict[str, dict[str, float]] = {}
    for _, sample in samples.values():
        for name, columns in bytes_of_columns(sample.rows).items():
            bytes[name] = {**bytes.get(name, {}), **columns}
    pricing = Pricing(
        [replace(each, early=early) for each in seen.values()],
        bytes,
        {name: sample.statistics for name, (_, sample) in samples.items()},
        partial(_queries, members, waiting),
        partial(_choice, members=members, settings=settings, slots=slots),
    )
    return place_filters(pricing, free, late)


def _queries(members: Mapping[str, Member], moving: Collection[str], late: Sequence[str]) -> dict[str, Query]:
    """Returns the queries of a run; those to be placed get the given late filters."""
    return {
        name: member.compiled.stages.with_late_filters(
            [each for each in late if each in _conditions(member.compiled)]
        ).query
        if name in moving
        else member.compiled.query
        for name, member in members.items()
    }


def _costly(compiled: CompiledQuery) -> tuple[str, ...]:
    def query_with(late: Sequence[str]) -> Query:
        return compiled.stages.with_late_filters(late).query

    return costly_filters(compiled.query, query_with)


def _conditions(compiled: CompiledQuery) -> set[str]:
    """Returns the single-relation conditions of a query, wherever they are checked."""
    filters = (each.filter for each in compiled.query.graph.relations if each.filter is not None)
    return {*compiled.query.late_filters, *(str(part) for each in filters for part in conjuncts(each))}


def _readers(members: Mapping[str, Member], slots: int) -> int:
    """Returns how many tasks check each row: one reader, or all slots if they read all files themselves."""
    queries = set_of({name: member.compiled.query for name, member in members.items()})
    streams = {name: each for member in members.values() for name, each in member.compiled.streams.items()}
    frames = {name: stream.frame for name, stream in streams.items()}
    is_direct = 1 < slots <= MOST_READERS
    return slots if is_direct and file_streams(frames, queries.streams, columns_to_read(queries)) is not None else 1


def _choice(
    name: str,
    query: Query,
    known: FixedStatistics,
    members: Mapping[str, Member],
    settings: RunSettings,
    slots: int,
) -> Choice:
    return decide(
        query,
        members[name].settings.plan_options,
        slots=slots,
        batch=settings.trigger.seconds or DEFAULT_BATCH,
        seen=known,
        host=on_spark(settings.trigger.seconds, len(members)),
    )


def _kept(waiting: Mapping[str, Member], settings: RunSettings) -> dict[str, FilterPlaces]:
    """Returns the placements of the queries that have a checkpoint."""
    store = None if settings.checkpoint is None else Store(settings.checkpoint)
    found = None if store is None else store.metadata()
    if store is None or found is None:
        return {}
    written, places = [*found.get("late_filters", ())], {}
    for name, member in waiting.items():
        query, label = member.compiled.query, f"{name}: " if name else ""
        text = f"{label}{query.text}" if name else set_of({name: query}).text
        if f"\n{text}\n" not in f"\n{found.get('query')}\n":
            continue
        late = tuple(each.removeprefix(label) for each in written if each.startswith(label))
        places[name] = FilterPlaces(late, (f"as in the checkpoint: late are {', '.join(late) or 'none'}",))
    return places
