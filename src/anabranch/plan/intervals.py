"""Windows implied by conditions over event times, such as `c.ts BETWEEN i.ts AND i.ts + INTERVAL 20 SECONDS`.

A stream without a window gets the shortest range that every result satisfies. So a join by intervals becomes a join by
windows with the same results; `rewrite.drop_implied_conditions` removes conditions that only repeat the windows.

Invariant: the results do not change. A bound between two rows is used only where the conditions that imply it hold:
those of inner joins always, those of an outer join where its rows are present. Limit: rows of tables and results of
other queries have no event time to compare, unless the reader names a column.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from anabranch.lang.expr import Column, Expr, conjuncts, relations
from anabranch.lang.schema import TIMESTAMP
from anabranch.lang.window import FOREVER, Window
from anabranch.plan.logical import (
    Filter,
    Join,
    LogicalPlan,
    OuterJoin,
    SideKind,
    Source,
    inputs,
    relation_names,
    sources_of,
    with_sources,
)
from anabranch.plan.pairwise import Distance, distances, shortest


def with_implied_windows(plan: LogicalPlan) -> LogicalPlan:
    """Gives every stream without a window the range that the conditions imply, if any."""
    bounds = _Bounds(plan)

    def bounded(source: Source) -> Source:
        if source.is_table or source.window.is_bounded:
            return source
        others = bounds.partners(source.relation)
        reach = max((bounds.between(source.relation, other) for other in others), default=FOREVER)
        return source if reach >= FOREVER else replace(source, window=Window(max(reach, 0)), is_implied=True)

    return with_sources(plan, bounded)


def unbounded_by(plan: LogicalPlan, relation: str) -> Source | None:
    """Returns a stream whose rows may be arbitrarily newer than a row of the relation that they join; None if there is
    none.
    """
    bounds = _Bounds(plan)
    others = (each for each in bounds.partners(relation) if bounds.between(relation, each) >= FOREVER)
    return next((bounds.sources[each] for each in others), None)


@dataclass(frozen=True)
class _Part:
    """Relations that are present together, and the bounds between their rows and those of earlier parts."""

    relations: frozenset[str]
    given: tuple[Distance, ...]
    needs: frozenset[str]
    """Relations that are present wherever these are, because a bound compares them."""
    extends: bool = True
    """True if later parts join its rows."""


class _Bounds:
    """The maximum lead in event time of one relation's row over another's within one result."""

    def __init__(self, plan: LogicalPlan) -> None:
        self.sources = {name: each for name, each in sources_of(plan).items() if not each.is_table}
        self._parts = list(self._parts_of(plan))

    def partners(self, name: str) -> tuple[str, ...]:
        """Returns the other relations whose rows may be combined with a row of this one."""
        own = self._part(name)
        place = self._parts.index(own)
        found: set[str] = set()
        for number, part in enumerate(self._parts):
            if part is own or (number < place and part.extends) or (number > place and own.extends):
                found |= part.relations
        return tuple(each for each in self.sources if each in found and each != name)

    def between(self, one: str, other: str) -> int:
        """Returns the maximum lead of `other` over `one`; `FOREVER` if there is none."""
        present = [self._parts[0]]
        wanted = {one, other}
        while added := [each for each in self._parts if each not in present and each.relations & wanted]:
            present += added
            wanted |= {name for each in added for name in each.needs}
        names = [name for name in self.sources if any(name in each.relations for each in present)]
        given = [distance for part in present for distance in part.given]
        windows = [
            (name, newer, self.sources[name].window.reach)
            for name in names
            for newer in names
            if newer != name and self.sources[name].window.is_bounded
        ]
        return shortest(names, [*given, *windows])[one, other]

    def _part(self, name: str) -> _Part:
        return next(part for part in self._parts if name in part.relations)

    def _parts_of(self, plan: LogicalPlan) -> Iterator[_Part]:
        """Yields the core and then the sides, in order."""
        where: tuple[Expr, ...] = ()
        while isinstance(plan, Filter):
            where, plan = (*where, *conjuncts(plan.predicate)), plan.input
        outer: list[OuterJoin] = []
        while isinstance(plan, OuterJoin):
            outer.insert(0, plan)
            plan = plan.input
            while isinstance(plan, Filter):
                where, plan = (*where, *conjuncts(plan.predicate)), plan.input
        is_full = any(each.kind is SideKind.FULL for each in outer)
        core = frozenset(relation_names(plan))
        conditions = [*_inner(plan), *(each for each in where if not is_full and relations(each) <= core)]
        yield _Part(core, self._distances(conditions), frozenset())
        for each in outer:
            own = frozenset(relation_names(each.side))
            across = [predicate for predicate in each.predicates if relations(predicate) & own]
            given = self._distances([*_inner(each.side), *across])
            needs = frozenset(name for older, newer, _ in given for name in (older, newer)) - own
            yield _Part(own, given, needs, each.kind.extends)

    def _distances(self, predicates: Collection[Expr]) -> tuple[Distance, ...]:
        timed = event_times(self.sources)
        return tuple(distance for predicate in predicates for distance in distances(predicate, timed))


def _inner(plan: LogicalPlan) -> Iterator[Expr]:
    """Yields the predicates of inner joins below a plan without outer joins."""
    match plan:
        case Join(predicates=predicates):
            yield from predicates
        case Filter(predicate=predicate):
            yield from conjuncts(predicate)
    for child in inputs(plan):
        yield from _inner(child)


def event_times(sources: Mapping[str, Source]) -> Callable[[Expr], str | None]:
    """Returns a function from an expression to the relation whose event time it is; None for any other expression."""

    def timed(expression: Expr) -> str | None:
        if not isinstance(expression, Column) or expression.type != TIMESTAMP:
            return None
        source = sources.get(expression.relation)
        is_time = source is not None and not source.is_table and expression.name == source.event_time
        return expression.relation if is_time else None

    return timed
