"""Where dear filters of single relations are checked: before rows are sent, or by the joins (`late_filters: auto`).

A filter that is checked early costs every row that arrives, and spares the states and the joins what it rejects. One
that is late costs the combinations that reach it, and lets rows travel and stay that it will reject. Both are priced:

    early   rows that pass the cheaper filters x seconds of a check, and a plan over what passes
    late    a plan with one more predicate, in which more rows are sent, kept and looked up

The plan of either is the one that would be chosen, and sending counts at the host's costs. Filters are put off one by
one, the one that saves most first, as long as it saves a tenth and `LEAST` cores.

Limit: a check is taken to cost in Spark what it costs in the engine, which is exact only where slots read the files.
Which rows a filter rejects is taken to be independent of what they join with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from anabranch.engine.batch import RelationBatch
from anabranch.errors import SpecError
from anabranch.expr import Call, conjuncts
from anabranch.host.filters import SeenFilter
from anabranch.optimize import Choice, Infeasible
from anabranch.optimize.deferring import DEAR
from anabranch.plan.dearness import CHECK, assumed_cost
from anabranch.plan.query import Query
from anabranch.stats.view import FixedStatistics

Compile: TypeAlias = Callable[[Sequence[str]], Query]
"""Compiles the query with some late filters."""
Decide: TypeAlias = Callable[[Query, FixedStatistics], Choice]

RATIO, LEAST = 1.1, 0.005
"""What putting a filter off must save: a ratio, and cores."""


@dataclass(frozen=True)
class FilterPlaces:
    """The filters that joins check, and why each dear one is where it is."""

    late: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cores:
    """What a query needs that depends on where its filters are, by the second."""

    plan: float
    sending: float
    early: float

    @property
    def all(self) -> float:
        return self.plan + self.sending + self.early


def dear_filters(query: Query, compiled: Compile) -> tuple[str, ...]:
    """The conditions on one stream that cost several ordinary checks and can be put off."""
    found = []
    for relation in query.graph.streamed:
        for part in () if relation.filter is None else conjuncts(relation.filter):
            is_plain = isinstance(part, Call) and part.function == "is_not_null"
            if not is_plain and assumed_cost(part) >= DEAR * CHECK:
                try:
                    compiled([str(part)])
                except SpecError:
                    continue  # it may guard another expression, or there is no join behind it
                found.append(str(part))
    return tuple(found)


def place_filters(
    seen: Sequence[SeenFilter],
    rows: Mapping[str, RelationBatch],
    known: FixedStatistics,
    compiled: Compile,
    decide: Decide,
) -> FilterPlaces:
    """Places filters by what was seen of them; rows and statistics are those before the filters."""

    def price(late: Sequence[str]) -> Cores:
        return _price(compiled(late), late, seen, rows, known, decide)

    late: list[str] = []
    now = price(late)
    reasons = []
    while True:
        options = {each.condition: price([*late, each.condition]) for each in seen if each.condition not in late}
        if not options:
            break
        best = min(options, key=lambda condition: options[condition].all)
        then = options[best]
        if not _pays(now, then):
            reasons += [_reason(each, now, options[each.condition]) for each in seen if each.condition in options]
            break
        (chosen,) = (each for each in seen if each.condition == best)
        reasons.append(_reason(chosen, now, then))
        late.append(best)
        now = then
    return FilterPlaces(tuple(late), tuple(reasons))


def _price(
    query: Query,
    late: Sequence[str],
    seen: Sequence[SeenFilter],
    rows: Mapping[str, RelationBatch],
    known: FixedStatistics,
    decide: Decide,
) -> Cores:
    filters, checking = dict(known.filters), 0.0
    for each in seen:
        if each.condition not in late:
            before = known.filters.get(each.relation, 1.0)
            stream = query.graph.relation(each.relation).stream
            rate = known.rates.get(each.relation, known.rates.get(stream, 0.0))
            checking += rate * before * each.seconds
            filters[each.relation] = filters.get(each.relation, 1.0) * each.share
    statistics = replace(
        known,
        filters=filters,
        selectivities={
            **known.selectivities,
            **{each.condition: each.share for each in seen if each.condition in late},
        },
        predicates={each.condition: each.seconds for each in seen if each.condition in late},
        bytes={**known.bytes, **_bytes(query, rows)},
    )
    choice = decide(query, statistics)
    if isinstance(choice.answer, Infeasible):
        return Cores(float("inf"), 0.0, checking)
    sending = 0.0 if choice.host is None else choice.host.rows * choice.host.slots
    return Cores(choice.answer.cost.cpu, sending, checking)


def _bytes(query: Query, rows: Mapping[str, RelationBatch]) -> dict[str, float]:
    """Bytes of a row with the columns that the query carries."""
    found = {}
    for relation in query.graph.relations:
        batch = rows.get(relation.name)
        if batch is not None and len(batch) and len(relation.schema):
            columns = (batch.payload.column(name) for name in relation.schema.names)
            found[relation.name] = sum(column.nbytes for column in columns) / len(batch)
    return found


def _pays(early: Cores, late: Cores) -> bool:
    """Whether putting a filter off saves enough."""
    return early.all - late.all >= LEAST and early.all >= RATIO * late.all


def _reason(each: SeenFilter, early: Cores, late: Cores) -> str:
    is_late = _pays(early, late)
    place, other = ("by the joins", "before them") if is_late else ("before the joins", "by them")
    here, there = (late, early) if is_late else (early, late)
    return (
        f"{each.condition} is checked {place}: {1e9 * each.seconds:.0f} ns a row, {each.share:.0%} pass; "
        f"{here.all:.3g} cores, {other} {there.all:.3g}"
    )
