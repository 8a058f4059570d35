"""Places the filters of a query before it runs, if it is to (`late_filters: auto`).

Streams are sampled once more for it, with the dear filters late, because the rows that a filter rejects must be seen.
A checkpoint has rows that were filtered or not, so a query that has one keeps the places that it began with.

Limit: a query that runs alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from anabranch.api.compiled import CompiledQuery, sample_queries
from anabranch.api.members import Member
from anabranch.api.settings import RunSettings
from anabranch.choosing import DEFAULT_BATCH, decide, on_spark
from anabranch.errors import SpecError
from anabranch.filter_places import FilterPlaces, dear_filters, place_filters
from anabranch.host.filters import seen_filters
from anabranch.host.store import Store
from anabranch.optimize import Choice
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE
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


def _placed(member: Member, settings: RunSettings, slots: int) -> CompiledQuery:
    compiled = member.compiled
    if (kept := _kept(compiled.query, settings)) is not None:
        return _with_places(compiled, kept)

    def query_with(late: Sequence[str]) -> Query:
        return compiled.stages.with_late_filters(late).query

    dear = dear_filters(compiled.query, query_with)
    if not dear:
        return _with_places(compiled, FilterPlaces(reasons=("no filter is dear enough to be put off",)))
    before = compiled.with_late_filters(dear)
    sample_queries([before])
    seen = seen_filters(before.query, before.sample.rows)
    if not seen:
        return _with_places(compiled, FilterPlaces(reasons=("no sample: filters are checked before the joins",)))
    chosen = partial(_choice, member=member, settings=settings, slots=slots)
    sample = before.sample
    return _with_places(compiled, place_filters(seen, sample.rows, sample.statistics, query_with, chosen))


def _choice(query: Query, known: FixedStatistics, member: Member, settings: RunSettings, slots: int) -> Choice:
    return decide(
        query,
        member.settings.wishes,
        slots=slots,
        batch=settings.trigger.seconds or DEFAULT_BATCH,
        seen=known,
        host=on_spark(settings.trigger.seconds),
    )


def _kept(query: Query, settings: RunSettings) -> FilterPlaces | None:
    """The places of a checkpoint of this query."""
    found = None if settings.checkpoint is None else Store(settings.checkpoint).metadata()
    if found is None or found.get("query") != query.text:
        return None
    late = tuple(found.get("late_filters", ()))
    return FilterPlaces(late, (f"as in the checkpoint: late are {', '.join(late) or 'none'}",))


def _with_places(compiled: CompiledQuery, places: FilterPlaces) -> CompiledQuery:
    found = compiled.with_late_filters(places.late)
    found.places = places
    return found
