"""Decides if costly filters of single relations are checked before rows are sent or by joins (`late_filters: auto`).

An early filter is checked on every arriving row, and removes rows before states and joins. A late filter is checked
only on the combinations that reach it, but rows that it rejects are sent and kept. Both are priced:

    early   rows that pass the cheaper filters x seconds of a check, and a plan over what passes
    late    a plan with one more predicate, in which more rows are sent, kept and looked up

In both cases the plan is the one that would be chosen, and sending is priced at the host's costs. Filters are deferred
greedily, as long as each saves a tenth and `LEAST` cores.

Queries that run together are priced together. Rows of a relation are sent once for all of them: a filter saves sending
only if it is early in all its readers, and deferring it sends no additional rows if others need them. A filter that is
early in only some readers is checked by the engine for each of these. A condition of several queries is one decision.

Limit: a filter is assumed independent of the joins. The plan of each query is priced without the rows that other
queries keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TypeAlias

from anabranch.cost.host import HostNeed, need_together
from anabranch.errors import BundleError, SpecError
from anabranch.lang.expr import conjuncts
from anabranch.optimize.choice import Choice
from anabranch.optimize.proposals import Infeasible
from anabranch.plan.cost_rank import is_costly
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.query import Query
from anabranch.plan.query_set import QuerySet, set_of
from anabranch.stats.filters import SeenFilter
from anabranch.stats.view import FixedStatistics

Compile: TypeAlias = Callable[[Sequence[str]], Mapping[str, Query]]
"""Compiles the queries of a run with some late filters, by name."""
Decide: TypeAlias = Callable[[str, Query, FixedStatistics], Choice]
"""Chooses the plan of a query, given its name."""
Bytes: TypeAlias = Mapping[str, Mapping[str, float]]
"""Bytes per value of each column, by relation."""

RATIO, LEAST = 1.1, 0.005
"""The minimum saving of deferring a filter: a ratio, and cores."""


@dataclass(frozen=True)
class FilterPlaces:
    """The late filters, and the reason for the place of each costly filter."""

    late: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cores:
    """The cores of queries that depend on the places of their filters."""

    plans: float
    sending: float
    early: float

    @property
    def all(self) -> float:
        return self.plans + self.sending + self.early


NEVER = Cores(inf, 0.0, 0.0)
"""The cost of places that are not possible."""


@dataclass(frozen=True)
class Pricing:
    """Prices places of filters, from the statistics of the streams after their cheaper filters."""

    seen: Sequence[SeenFilter]
    bytes: Bytes
    known: Mapping[str, FixedStatistics]
    """The statistics of each query."""
    compiled: Compile
    decide: Decide

    def price(self, late: Sequence[str]) -> Cores:
        """Returns the cores of the queries if these filters are late."""
        own = self.compiled(late)
        try:
            queries = set_of(own)
        except BundleError:  # with these filters late, the queries cannot share their rows
            return NEVER
        common = [each for each in self.seen if _is_early(each, queries.graph)]
        choices = {
            name: self.decide(name, query, self._statistics(name, query, queries)) for name, query in own.items()
        }
        checks = {each.condition: 0.0 for each in common}
        apart = 0.0
        for name, query in own.items():
            for each in self._early(query):
                seconds = self._reaching(each, name, query) * each.seconds
                if each in common:
                    checks[each.condition] = max(checks[each.condition], seconds * each.early)
                else:
                    apart += seconds
        plans = sum(_cpu(choice) for choice in choices.values())
        return Cores(plans, self._sending(own, choices, common), sum(checks.values()) + apart)

    def _statistics(self, name: str, query: Query, queries: QuerySet) -> FixedStatistics:
        """Returns the statistics of the streams of a query for the places of its filters."""
        known = self.known[name]
        filters = dict(known.filters)
        for each in self._early(query):
            filters[each.relation] = filters.get(each.relation, 1.0) * each.share
        is_late = set(query.late_filters)
        late = [each for each in self.seen if each.condition in is_late]
        return replace(
            known,
            filters=filters,
            selectivities={**known.selectivities, **{each.condition: each.share for each in late}},
            predicates={each.condition: each.seconds for each in late},
            bytes={**known.bytes, **self._bytes(query, queries)},
        )

    def _early(self, query: Query) -> Iterator[SeenFilter]:
        """Yields the filters that are not late in a query that has them."""
        return (each for each in self.seen if each.relation in query.graph.names and _is_early(each, query.graph))

    def _reaching(self, each: SeenFilter, name: str, query: Query) -> float:
        """Returns the rows per second that reach a filter of a query."""
        known, stream = self.known[name], query.graph.relation(each.relation).stream
        rate = known.rates.get(each.relation, known.rates.get(stream, 0.0))
        return rate * known.filters.get(each.relation, 1.0)

    def _sending(self, own: Mapping[str, Query], choices: Mapping[str, Choice], common: Sequence[SeenFilter]) -> float:
        """Returns the cores for sending rows; zero in process."""
        needs = [
            self._sent(own[name], choice.host, common) for name, choice in choices.items() if choice.host is not None
        ]
        if not needs:
            return 0.0
        together = need_together(needs)
        return together.rows * together.slots

    def _sent(self, query: Query, need: HostNeed, common: Sequence[SeenFilter]) -> HostNeed:
        """Returns the host's resources for a query; filters that not all readers of a relation have save no rows."""
        shares: dict[str, float] = {}
        for each in self._early(query):
            if each not in common:
                shares[each.relation] = shares.get(each.relation, 1.0) * each.share
        relations = tuple(
            replace(each, passing=min(each.read, each.passing / shares.get(each.relation.name, 1.0)))
            for each in need.relations
        )
        return replace(need, relations=relations)

    def _bytes(self, query: Query, queries: QuerySet) -> dict[str, float]:
        """Returns the bytes of a row of each relation of a query, with the columns that the queries carry."""
        found = {}
        for name in query.graph.names:
            known, names = self.bytes.get(name, {}), queries.graph.relation(name).schema.names
            if names and all(each in known for each in names):
                found[name] = sum(known[each] for each in names)
        return found


def costly_filters(query: Query, compiled: Callable[[Sequence[str]], object]) -> tuple[str, ...]:
    """Returns the costly early conditions on one stream that can be deferred; `compiled` raises for the others."""
    found = []
    for relation in query.graph.streamed:
        if relation.filter is None or relation.is_result:
            continue  # results of another query are checked where they are produced, and are not counted
        for part in conjuncts(relation.filter):
            if is_costly(part):
                try:
                    compiled([str(part)])
                except SpecError:
                    continue  # it may guard another expression, or there is no join after it
                found.append(str(part))
    return tuple(found)


def place_filters(pricing: Pricing, movable: Sequence[str] | None = None, kept: Sequence[str] = ()) -> FilterPlaces:
    """Returns the cheapest places of filters; `movable` may move (None: all that were seen), `kept` remain late.

    The search begins with all of them early.
    """
    late, reasons = list(kept), list[str]()
    free = [each for each in pricing.seen if movable is None or each.condition in movable]
    now = pricing.price(late)
    while True:
        options = {
            each.condition: pricing.price([*late, each.condition]) for each in free if each.condition not in late
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


def _is_early(each: SeenFilter, graph: JoinGraph) -> bool:
    """Returns True if rows of a relation have passed a condition on arrival."""
    condition = graph.relation(each.relation).filter
    return condition is not None and any(str(part) == each.condition for part in conjuncts(condition))


def _cpu(choice: Choice) -> float:
    return inf if isinstance(choice.answer, Infeasible) else choice.answer.cost.cpu


def _pays(early: Cores, late: Cores) -> bool:
    """Returns True if deferring a filter saves enough."""
    return early.all - late.all >= LEAST and early.all >= RATIO * late.all


def _reason(each: SeenFilter, early: Cores, late: Cores) -> str:
    is_late = _pays(early, late)
    place, other = ("by the joins", "before them") if is_late else ("before the joins", "by them")
    here, there = (late, early) if is_late else (early, late)
    costlier = "" if each.early == 1 else f", {each.early:.2g} times as costly before the joins"
    known = f"{each.condition} is checked {place}: {1e9 * each.seconds:.0f} ns a row, {each.share:.0%} pass{costlier}"
    if not isfinite(there.all):
        return f"{known}; the queries cannot run with it {other}"
    return f"{known}; {here.all:.3g} cores, {other} {there.all:.3g}"
