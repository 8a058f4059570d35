"""Places the filters of queries before they run, if they are to (`late_filters: auto`), and says what moves them later.

Streams are sampled once more for it, with the dear filters late, because the rows that a filter rejects must be seen.
A checkpoint has rows that were filtered or not, so queries that have one begin with the places that they have, and a
query that joins them takes over the places of filters that it has in common with them. If the queries adapt, places
are weighed again while they run (`adapt/filter_moves`).

Limit: filters inside a query that another one reads stay before the joins, unless it runs under its own name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

import pyarrow as pa

from anabranch.adapt.filter_moves import FilterRules
from anabranch.api.compiled import CompiledQuery, Placing, sample_queries
from anabranch.api.members import Member
from anabranch.api.settings import RunSettings
from anabranch.calibrate.file import calibrated_checks
from anabranch.choosing import DEFAULT_BATCH, adapts_as_a_whole, decide, on_spark
from anabranch.errors import BundleError
from anabranch.expr import conjuncts
from anabranch.host.changing import Examples, refuse_change
from anabranch.host.filters import bytes_of_columns, guessed_filters, seen_filters
from anabranch.host.sample import Sample
from anabranch.host.spark.file_streams import file_streams
from anabranch.host.spark.offsets import in_scan_order
from anabranch.host.spark.source import Cells
from anabranch.host.store import Store
from anabranch.host.wire import wire_layout
from anabranch.optimize import Choice
from anabranch.optimize.filter_places import FilterPlaces, Pricing, dear_filters, place_filters
from anabranch.plan.check_ratios import BUILT_IN
from anabranch.plan.query import Query
from anabranch.plan.query_set import QuerySet, partitioning_of, set_of
from anabranch.stats.filters import SeenFilter
from anabranch.stats.view import FixedStatistics

_NO_SAMPLE = "no sample: filters are checked before the joins"


def with_placed_filters(members: Mapping[str, Member], settings: RunSettings, cores: int) -> dict[str, Member]:
    """The queries of a run with their filters where they cost least, if that was asked for."""
    waiting = {name: member for name, member in members.items() if member.compiled.stages.places_filters}
    if not waiting:
        return dict(members)
    kept = _kept(waiting, settings)
    dear = {name: _dear(member.compiled) for name, member in waiting.items()}
    # A condition that queries of the checkpoint have is where it is there, for those that join them, too.
    decided = {each: each in kept[name].late for name in kept for each in dear[name]}
    wanted = dict.fromkeys(condition for name in waiting for condition in dear[name])
    free = [each for each in wanted if each not in decided]
    is_adapting = any(member.settings.adapt is not None for member in waiting.values())
    seeing = _Seeing.of(members, [*wanted]) if wanted and (free or is_adapting) else None
    places = FilterPlaces(tuple(condition for condition, is_late in decided.items() if is_late))
    if free and seeing is not None:
        places = _placed(members, [*waiting], seeing, free, places.late, settings, cores)
    found = dict(members)
    for name, member in waiting.items():
        own = kept.get(name) or _own_places(places, dear[name], decided)
        placing = None if seeing is None else seeing.of_query(member, dear[name])
        found[name] = replace(member, compiled=_with_places(member.compiled, own, placing))
    return found


def _own_places(places: FilterPlaces, dear: Sequence[str], decided: Mapping[str, bool]) -> FilterPlaces:
    """Of places that were found for several queries, those of one of them."""
    if not dear:
        return FilterPlaces(reasons=("no filter is dear enough to be put off",))
    reasons = [f"{each} is checked where it is in the queries of the checkpoint" for each in dear if each in decided]
    others = [each for each in places.reasons if each == _NO_SAMPLE or any(each.startswith(one) for one in dear)]
    return FilterPlaces(tuple(each for each in dear if each in places.late), (*reasons, *others))


def unplaced(members: Mapping[str, Member]) -> dict[str, Member]:
    """The queries with all dear filters before the joins: to see whether they can run together, at no cost."""
    return {
        name: replace(member, compiled=member.compiled.with_late_filters(()))
        if member.compiled.stages.places_filters
        else member
        for name, member in members.items()
    }


def moving_rules(members: Mapping[str, Member], settings: RunSettings, slots: int) -> FilterRules | None:
    """What filters are placed by while queries run; None where they stay.

    `members` are the queries that were given. Where several adapt, the settings of the first by its name hold.
    """
    placings = {
        name: (member.compiled.placing, member.settings.adapt)
        for name, member in sorted(members.items())
        if member.compiled.placing is not None and adapts_as_a_whole(member.settings.adapt)
    }
    adapt = next((adapt for _, adapt in placings.values()), None)
    several = [placing for placing, _ in placings.values() if placing is not None]
    if adapt is None or not several:
        return None

    def choice(name: str, query: Query, known: FixedStatistics, batch: float) -> Choice:
        return _choice(name, query, known, members, settings, slots, batch)

    dear = {each.condition: each for placing in several for each in placing.dear}
    examples = examples_of(several)

    @cache
    def queries(late: tuple[str, ...]) -> dict[str, Query]:
        return _queries(members, placings.keys(), late)

    return FilterRules(
        tuple(dear.values()),
        lambda late: queries(tuple(late)),
        choice,
        adapt,
        bytes_of(several),
        partial(_refused, examples=examples),
        frozenset(each for placing in several for each in placing.guessed),
        frozenset(placings),
        {name: member.compiled.sample.statistics for name, member in members.items()},
    )


def moved(
    members: Mapping[str, Member], moving: Collection[str], late: Sequence[str], reason: str
) -> dict[str, Member]:
    """The queries of a run with the filters of those that move them in other places."""
    found = dict(members)
    for name in moving:
        compiled = members[name].compiled
        own = tuple(each for each in late if each in _conditions(compiled))
        if set(own) != set(compiled.query.late_filters):
            places = FilterPlaces(own, (reason,))
            found[name] = replace(members[name], compiled=_with_places(compiled, places, compiled.placing))
    return found


def examples_of(placings: Iterable[Placing]) -> Examples:
    """Rows of each relation before its dear filters: those with the most columns."""
    found: dict[str, pa.RecordBatch] = {}
    for placing in placings:
        for name, rows in placing.examples.items():
            if name not in found or rows.num_columns > found[name].num_columns:
                found[name] = rows
    return found


def bytes_of(placings: Iterable[Placing]) -> dict[str, dict[str, float]]:
    """Bytes of a value of each column that any query has seen, by relation."""
    found: dict[str, dict[str, float]] = {}
    for placing in placings:
        for name, columns in placing.bytes.items():
            found[name] = {**found.get(name, {}), **columns}
    return found


@dataclass(frozen=True)
class _Seeing:
    """What a sample shows of dear filters: each query was sampled with those late that it has."""

    seen: tuple[SeenFilter, ...]
    guessed: tuple[SeenFilter, ...]
    samples: Mapping[str, Sample]

    @classmethod
    def of(cls, members: Mapping[str, Member], dear: Sequence[str]) -> _Seeing:
        before = {}
        for name, member in members.items():
            own = [each for each in dict.fromkeys(dear) if each in _conditions(member.compiled)]
            late = dict.fromkeys([*member.compiled.query.late_filters, *own])
            before[name] = member.compiled.with_late_filters([*late]) if own else member.compiled
        sample_queries([*before.values()])
        ratios = calibrated_checks() or BUILT_IN
        seen: dict[str, SeenFilter] = {}
        guessed: dict[str, SeenFilter] = {}
        for each in before.values():
            found = seen_filters(each.query, each.sample.rows, ratios)
            seen |= {one.condition: one for one in found if one.condition in dear}
            guesses = guessed_filters(each.query, found, ratios)
            guessed |= {one.condition: one for one in guesses if one.condition in dear}
        unseen = tuple(each for condition, each in guessed.items() if condition not in seen)
        return cls(tuple(seen.values()), unseen, {name: each.sample for name, each in before.items()})

    def of_query(self, member: Member, dear: Sequence[str]) -> Placing | None:
        """What the dear filters of one query are placed by while it runs; None if it has none."""
        own = [each for each in (*self.seen, *self.guessed) if each.condition in dear]
        if not own:
            return None
        names = frozenset(each.condition for each in self.guessed if each.condition in dear)
        return Placing(tuple(own), self.bytes, names, self._examples(member))

    @cached_property
    def bytes(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for sample in self.samples.values():
            for name, columns in bytes_of_columns(sample.rows).items():
                found[name] = {**found.get(name, {}), **columns}
        return found

    def _examples(self, member: Member) -> dict[str, pa.RecordBatch]:
        names = member.compiled.query.graph.names
        several = [
            (name, batch.payload)
            for sample in self.samples.values()
            for name, batch in sample.rows.items()
            if len(batch) and name in names
        ]
        widest = sorted(several, key=lambda each: each[1].num_columns)
        return dict(widest)


def _placed(
    members: Mapping[str, Member],
    waiting: Sequence[str],
    seeing: _Seeing,
    free: Sequence[str],
    late: Sequence[str],
    settings: RunSettings,
    cores: int,
) -> FilterPlaces:
    """Where the filters of some queries cost least that have no places yet; those of others stay."""
    if not any(each.condition in free for each in seeing.seen):
        return FilterPlaces(tuple(late), (_NO_SAMPLE,))
    slots = cores if settings.slots is None else settings.slots.most
    readers = _readers(members, settings, slots)
    pricing = Pricing(
        [each.checked_by(readers) for each in seeing.seen],
        seeing.bytes,
        {name: seeing.samples[name].statistics for name in members},
        partial(_queries, members, waiting),
        partial(_choice, members=members, settings=settings, slots=slots),
    )
    return place_filters(pricing, free, late)


def _queries(members: Mapping[str, Member], moving: Collection[str], late: Sequence[str]) -> dict[str, Query]:
    """The queries of a run; those whose filters are to be placed with the late ones that they have."""
    return {
        name: member.compiled.stages.with_late_filters(
            [each for each in late if each in _conditions(member.compiled)]
        ).query
        if name in moving
        else member.compiled.query
        for name, member in members.items()
    }


def _dear(compiled: CompiledQuery) -> tuple[str, ...]:
    def query_with(late: Sequence[str]) -> Query:
        return compiled.stages.with_late_filters(late).query

    return dear_filters(compiled.query, query_with)


def _conditions(compiled: CompiledQuery) -> set[str]:
    """The conditions on single relations of a query, wherever they are checked."""
    filters = (each.filter for each in compiled.query.graph.relations if each.filter is not None)
    return {*compiled.query.late_filters, *(str(part) for each in filters for part in conjuncts(each))}


def _refused(old: QuerySet, new: QuerySet, examples: Examples) -> str | None:
    try:
        refuse_change(old, new, examples)
    except BundleError as error:
        return error.message
    return None


def _readers(members: Mapping[str, Member], settings: RunSettings, slots: int) -> int | None:
    """The slots that read the files of all streams, and check the filters of all rows, themselves; None for Spark."""
    queries = set_of({name: member.compiled.query for name, member in members.items()})
    if settings.late is not None or queries.graph.tables:
        return None
    table = partitioning_of(queries, slots)
    cells = Cells(wire_layout(queries, table), table.without_heavy)
    streams = {name: each for member in members.values() for name, each in member.compiled.streams.items()}
    frames = {name: stream.frame for name, stream in streams.items()}
    return None if file_streams(cells, frames, in_scan_order(queries, None)) is None else slots


def _choice(
    name: str,
    query: Query,
    known: FixedStatistics,
    members: Mapping[str, Member],
    settings: RunSettings,
    slots: int,
    batch: float | None = None,
) -> Choice:
    return decide(
        query,
        members[name].settings.wishes,
        slots=slots,
        batch=batch or settings.trigger.seconds or DEFAULT_BATCH,
        seen=known,
        host=on_spark(settings.trigger.seconds, len(members)),
    )


def _kept(waiting: Mapping[str, Member], settings: RunSettings) -> dict[str, FilterPlaces]:
    """The places of those queries that a checkpoint is of."""
    store = None if settings.checkpoint is None else Store(settings.checkpoint)
    found = None if store is None else store.metadata()
    if store is None or found is None:
        return {}
    moves = [each for each in store.history() if each.get("kind") == "filters" and each.get("action") == "move"]
    written, places = [*found.get("late_filters", ())], {}
    for name, member in waiting.items():
        query, label = member.compiled.query, f"{name}: " if name else ""
        text = f"{label}{query.text}" if name else set_of({name: query}).text
        if f"\n{text}\n" not in f"\n{found.get('query')}\n":
            continue
        late = tuple(each.removeprefix(label) for each in written if each.startswith(label))
        reason = f"as in the checkpoint: late are {', '.join(late) or 'none'}"
        own = _conditions(member.compiled)
        if moves and {each for each in moves[-1]["proposed"] if each in own} == set(late):
            reason = f"{reason}; moved after batch {moves[-1]['batch']}: {moves[-1]['reason']}"
        places[name] = FilterPlaces(late, (reason,))
    return places


def _with_places(compiled: CompiledQuery, places: FilterPlaces, placing: Placing | None = None) -> CompiledQuery:
    found = compiled.with_late_filters(places.late)
    found.places, found.placing = places, placing
    return found
