"""Where dear filters of single relations are checked: before rows are sent, or by the joins (`late_filters: auto`).

A filter that is checked early costs every row that arrives, and spares the states and the joins what it rejects. One
that is late costs the combinations that reach it, and lets rows travel and stay that it will reject. Both are priced:

    early   rows that pass the cheaper filters x seconds of a check, and a plan over what passes
    late    a plan with one more predicate, in which more rows are sent, kept and looked up

The plan of either is the one that would be chosen, and sending counts at the host's costs. Filters are put off one by
one, the one that saves most first, as long as it saves a tenth and `LEAST` cores. This serves the first start and a
query that runs (`adapt/filter_moves`).

Limit: which rows a filter rejects is taken to be independent of what they join with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from anabranch.errors import SpecError
from anabranch.expr import conjuncts
from anabranch.optimize.choice import Choice
from anabranch.optimize.proposals import Infeasible
from anabranch.plan.dearness import is_dear
from anabranch.plan.mesh import Plan
from anabranch.plan.query import Query
from anabranch.stats.filters import SeenFilter
from anabranch.stats.view import FixedStatistics

Compile: TypeAlias = Callable[[Sequence[str]], Query]
"""Compiles the query with some late filters."""
Decide: TypeAlias = Callable[[Query, FixedStatistics], Choice]
Bytes: TypeAlias = Mapping[str, Mapping[str, float]]
"""Bytes of a value of each column, by relation."""

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


@dataclass(frozen=True)
class Priced:
    """Some places of filters: what the query needs with them, and the plan that it would have."""

    cores: Cores
    plan: Plan | None
    """None where no plan keeps the limits."""


@dataclass(frozen=True)
class Pricing:
    """Prices places of filters by what is known of the streams behind their cheaper filters."""

    seen: Sequence[SeenFilter]
    bytes: Bytes
    known: FixedStatistics
    compiled: Compile
    decide: Decide
    _prices: dict[frozenset[str], Priced] = field(default_factory=dict, compare=False, repr=False)

    def price(self, late: Sequence[str]) -> Priced:
        """What the query needs if these filters are late."""
        key = frozenset(late)
        if key not in self._prices:
            self._prices[key] = self._price(late)
        return self._prices[key]

    def _price(self, late: Sequence[str]) -> Priced:
        query, known = self.compiled(late), self.known
        filters, checking = dict(known.filters), 0.0
        for each in self.seen:
            if each.condition not in late:
                before = known.filters.get(each.relation, 1.0)
                stream = query.graph.relation(each.relation).stream
                rate = known.rates.get(each.relation, known.rates.get(stream, 0.0))
                checking += rate * before * each.seconds * each.early
                filters[each.relation] = filters.get(each.relation, 1.0) * each.share
        statistics = replace(
            known,
            filters=filters,
            selectivities={
                **known.selectivities,
                **{each.condition: each.share for each in self.seen if each.condition in late},
            },
            predicates={each.condition: each.seconds for each in self.seen if each.condition in late},
            bytes={**known.bytes, **self._bytes(query)},
        )
        choice = self.decide(query, statistics)
        if isinstance(choice.answer, Infeasible):
            return Priced(Cores(float("inf"), 0.0, checking), None)
        sending = 0.0 if choice.host is None else choice.host.rows * choice.host.slots
        return Priced(Cores(choice.answer.cost.cpu, sending, checking), choice.answer.plan)

    def _bytes(self, query: Query) -> dict[str, float]:
        """Bytes of a row with the columns that the query carries."""
        found = {}
        for relation in query.graph.relations:
            known, names = self.bytes.get(relation.name, {}), relation.schema.names
            if names and all(name in known for name in names):
                found[relation.name] = sum(known[name] for name in names)
        return found


def dear_filters(query: Query, compiled: Compile) -> tuple[str, ...]:
    """The conditions on one stream, early ones, that are dear and can be put off."""
    found = []
    for relation in query.graph.streamed:
        for part in () if relation.filter is None else conjuncts(relation.filter):
            if is_dear(part):
                try:
                    compiled([str(part)])
                except SpecError:
                    continue  # it may guard another expression, or there is no join behind it
                found.append(str(part))
    return tuple(found)


def place_filters(pricing: Pricing, movable: Sequence[str] | None = None, kept: Sequence[str] = ()) -> FilterPlaces:
    """Where filters cost least: those that may move, all that were seen when None; the late ones that are `kept` stay.

    Begins with all of them early.
    """
    late, reasons = list(kept), list[str]()
    free = [each for each in pricing.seen if movable is None or each.condition in movable]
    now = pricing.price(late).cores
    while True:
        options = {
            each.condition: pricing.price([*late, each.condition]).cores for each in free if each.condition not in late
        }
        if not options:
            break
        best = min(options, key=lambda condition: options[condition].all)
        then = options[best]
        if not _pays(now, then):
            reasons += [_reason(each, now, options[each.condition]) for each in free if each.condition in options]
            break
        (chosen,) = (each for each in free if each.condition == best)
        reasons.append(_reason(chosen, now, then))
        late.append(best)
        now = then
    return FilterPlaces(tuple(late), tuple(reasons))


def _pays(early: Cores, late: Cores) -> bool:
    """Whether putting a filter off saves enough."""
    return early.all - late.all >= LEAST and early.all >= RATIO * late.all


def _reason(each: SeenFilter, early: Cores, late: Cores) -> str:
    is_late = _pays(early, late)
    place, other = ("by the joins", "before them") if is_late else ("before the joins", "by them")
    here, there = (late, early) if is_late else (early, late)
    dearer = "" if each.early == 1 else f", {each.early:.2g} times as dear before the joins"
    return (
        f"{each.condition} is checked {place}: {1e9 * each.seconds:.0f} ns a row, {each.share:.0%} pass{dearer}; "
        f"{here.all:.3g} cores, {other} {there.all:.3g}"
    )
