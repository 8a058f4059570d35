"""Places the filters of a query before it runs, if it is to (`late_filters: auto`), and says what moves them later.

Streams are sampled once more for it, with the dear filters late, because the rows that a filter rejects must be seen.
A checkpoint has rows that were filtered or not, so a query that has one begins with the places that it has. If the
query adapts, they are weighed again while it runs (`adapt/filter_moves`).

Limit: a query that runs alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from anabranch.adapt.filter_moves import FilterRules
from anabranch.api.compiled import CompiledQuery, Placing, sample_queries
from anabranch.api.members import Member
from anabranch.api.settings import RunSettings
from anabranch.calibrate.file import calibrated_checks
from anabranch.choosing import DEFAULT_BATCH, adapts_as_a_whole, decide, on_spark
from anabranch.errors import BundleError, SpecError
from anabranch.host.changing import Examples, refuse_change
from anabranch.host.filters import bytes_of_columns, guessed_filters, seen_filters
from anabranch.host.spark.file_streams import file_streams
from anabranch.host.spark.offsets import in_scan_order
from anabranch.host.spark.source import Cells
from anabranch.host.store import Store
from anabranch.host.wire import wire_layout
from anabranch.optimize import Choice
from anabranch.optimize.filter_places import FilterPlaces, Pricing, dear_filters, place_filters
from anabranch.plan.check_ratios import BUILT_IN
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, partitioning_of, set_of
from anabranch.stats.view import FixedStatistics


def with_placed_filters(members: Mapping[str, Member], settings: RunSettings, cores: int) -> dict[str, Member]:
    """The queries of a run with their filters where they cost least, if that was asked for."""
    waiting = [name for name, member in members.items() if member.compiled.stages.places_filters]
    if waiting and ALONE not in members:
        raise SpecError(
            f"query '{waiting[0]}' has 'late_filters: auto' and runs with others",
            detail="rows of a stream travel once for all queries, so one of them cannot place a filter by itself",
            hint="name the filters, or start the query on its own",
        )
    found = dict(members)
    if waiting:
        slots = cores if settings.slots is None else settings.slots.most
        found[ALONE] = replace(members[ALONE], compiled=_placed(members[ALONE], settings, slots))
    return found


def moving_rules(member: Member, settings: RunSettings, slots: int) -> FilterRules | None:
    """What the filters of a query are placed by while it runs; None where they stay."""
    compiled, adapt = member.compiled, member.settings.adapt
    if compiled.placing is None or adapt is None or not adapts_as_a_whole(adapt) or compiled.inputs:
        return None

    def query_with(late: Sequence[str]) -> Query:
        return compiled.stages.with_late_filters(late).query

    def choice(query: Query, known: FixedStatistics, batch: float) -> Choice:
        return _choice(query, known, member, settings, slots, batch)

    placing = compiled.placing
    refused = partial(_refused, examples=placing.examples)
    return FilterRules(placing.dear, query_with, choice, adapt, placing.bytes, refused, placing.guessed)


def moved(member: Member, late: Sequence[str], reason: str) -> Member:
    """A query with its filters in other places."""
    return replace(
        member,
        compiled=_with_places(member.compiled, FilterPlaces(tuple(late), (reason,)), member.compiled.placing),
    )


def _refused(old: Query, new: Query, examples: Examples) -> str | None:
    try:
        refuse_change(set_of({ALONE: old}), set_of({ALONE: new}), examples)
    except BundleError as error:
        return error.message
    return None


def _placed(member: Member, settings: RunSettings, slots: int) -> CompiledQuery:
    compiled = member.compiled
    kept = _kept(compiled.query, settings)
    if kept is not None and member.settings.adapt is None:
        return _with_places(compiled, kept)

    def query_with(late: Sequence[str]) -> Query:
        return compiled.stages.with_late_filters(late).query

    dear = dear_filters(compiled.query, query_with)
    if not dear:
        return _with_places(compiled, kept or FilterPlaces(reasons=("no filter is dear enough to be put off",)))
    before = compiled.with_late_filters(dear)
    sample_queries([before])
    sample = before.sample
    ratios = calibrated_checks() or BUILT_IN
    seen = seen_filters(before.query, sample.rows, ratios)
    guessed = guessed_filters(before.query, seen, ratios)
    names = frozenset(each.condition for each in guessed)
    examples = {name: batch.payload for name, batch in sample.rows.items() if len(batch)}
    placing = Placing((*seen, *guessed), bytes_of_columns(sample.rows), names, examples)
    if kept is not None:
        return _with_places(compiled, kept, placing)
    if not seen:
        places = FilterPlaces(reasons=("no sample: filters are checked before the joins",))
        return _with_places(compiled, places, placing)
    chosen = partial(_choice, member=member, settings=settings, slots=slots)
    readers = _readers(compiled, settings, slots)
    pricing = Pricing([each.checked_by(readers) for each in seen], placing.bytes, sample.statistics, query_with, chosen)
    return _with_places(compiled, place_filters(pricing), placing)


def _readers(compiled: CompiledQuery, settings: RunSettings, slots: int) -> int | None:
    """The slots that read the files of all streams, and check the filters of all rows, themselves; None for Spark."""
    queries = set_of({ALONE: compiled.query})
    if settings.late is not None or compiled.inputs or queries.graph.tables:
        return None
    table = partitioning_of(queries, slots)
    cells = Cells(wire_layout(queries, table), table.without_heavy)
    frames = {name: stream.frame for name, stream in compiled.streams.items()}
    return None if file_streams(cells, frames, in_scan_order(queries, None)) is None else slots


def _choice(
    query: Query,
    known: FixedStatistics,
    member: Member,
    settings: RunSettings,
    slots: int,
    batch: float | None = None,
) -> Choice:
    return decide(
        query,
        member.settings.wishes,
        slots=slots,
        batch=batch or settings.trigger.seconds or DEFAULT_BATCH,
        seen=known,
        host=on_spark(settings.trigger.seconds),
    )


def _kept(query: Query, settings: RunSettings) -> FilterPlaces | None:
    """The places of a checkpoint of this query."""
    store = None if settings.checkpoint is None else Store(settings.checkpoint)
    found = None if store is None else store.metadata()
    if store is None or found is None or found.get("query") != query.text:
        return None
    late = tuple(found.get("late_filters", ()))
    reason = f"as in the checkpoint: late are {', '.join(late) or 'none'}"
    moves = [each for each in store.history() if each.get("kind") == "filters" and each.get("action") == "move"]
    if moves and set(moves[-1]["proposed"]) == set(late):
        reason = f"{reason}; moved after batch {moves[-1]['batch']}: {moves[-1]['reason']}"
    return FilterPlaces(late, (reason,))


def _with_places(compiled: CompiledQuery, places: FilterPlaces, placing: Placing | None = None) -> CompiledQuery:
    found = compiled.with_late_filters(places.late)
    found.places, found.placing = places, placing
    return found
