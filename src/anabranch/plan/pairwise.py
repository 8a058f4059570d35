"""Pairwise windows: how far apart in event time two rows of one result can be.

A window bounds how much newer than its row any other row of a result is. A band over the event times of two relations,

    b.ts BETWEEN a.ts - INTERVAL 5 SECONDS AND a.ts + INTERVAL 5 SECONDS        a.ts <= b.ts        a.ts = b.ts

sets the same kind of bound for one pair. Each is a *difference constraint*: t(b) - t(a) <= d. The shortest paths over
all constraints are the tightest bounds for every pair, including pairs that no predicate compares (Zhu 2006, Section
3.2).

Invariant: in every result, a row of `b` is at most `between(a, b)` microseconds newer than the row of `a`, and the
result is valid for at most `until_end(a)` after it. So a row can be dropped once all future rows are further away than
that, even if its window has not ended.

Limit: event times of derived rows, and of results whose reader names no column, are in no column that a predicate could
compare. Rows of tables have no event time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, TypeAlias

from anabranch.lang.expr import Call, Column, Expr
from anabranch.lang.schema import TIMESTAMP
from anabranch.lang.window import FOREVER
from anabranch.plan.bands import bounds
from anabranch.plan.join_graph import JoinGraph, Theta
from anabranch.plan.logical import SideKind

if TYPE_CHECKING:
    from anabranch.plan.query import Query

Distance: TypeAlias = tuple[str, str, int]
"""Two relations, and how much newer than the row of the first that of the second can be, in microseconds."""


@dataclass(frozen=True)
class PairwiseWindows:
    """The bounds of one join graph."""

    windows: Mapping[str, int]
    """The maximum time a row is kept by its window alone."""
    steady: frozenset[str]
    """Relations whose rows all have the same lifetime in their window, so that a deadline determines the event time."""
    _distances: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """For pairs of different relations; empty if no band is tighter than the windows."""

    def between(self, one: str, other: str) -> int:
        """Returns how much newer than a row of one relation the row of another can be."""
        return self._distances.get((one, other), self.windows.get(one, FOREVER))

    def from_any(self, inside: Iterable[str], other: str) -> int:
        """Returns how much newer than a combination of some relations the row of another can be; tables are ignored."""
        return min((self.between(one, other) for one in inside if one in self.windows), default=2 * FOREVER)

    def until_end(self, one: str) -> int:
        """Returns how long after a row of a relation the windows of all its results have ended."""
        others = (self.between(one, other) + reach for other, reach in self.windows.items() if other != one)
        return min(self.windows[one], *others, FOREVER)

    def lifetime(self, one: str, *, to_the_end: bool) -> int:
        """Returns how long a row is needed after its event time: until its results have ended, or to find more."""
        if to_the_end or len(self.windows) == 1:
            return self.until_end(one)
        return max(self.between(one, other) for other in self.windows if other != one)

    def spare(self, one: str, other: str) -> int:
        """Returns how long before its deadline a row is out of reach of rows of another relation."""
        return self.windows[one] - self.between(one, other) if one in self.steady else 0

    def spare_at_end(self, one: str) -> int:
        """Returns how long before its deadline a row no longer counts for any result."""
        return self.windows[one] - self.until_end(one) if one in self.steady else 0


def pairwise_windows(graph: JoinGraph) -> PairwiseWindows:
    """Returns the bounds set by the windows, bands and equalities over event times of a graph."""
    windows = {relation.name: relation.window.reach for relation in graph.streamed}
    steady = frozenset(each.name for each in graph.streamed if each.window.span is not None and not each.is_derived)
    given = list(_constraints(graph))
    if not given:
        return PairwiseWindows(windows, steady)
    by_windows = [(one, other, windows[one]) for one, other in permutations(windows, 2)]
    found = shortest(windows, [*by_windows, *given])
    if any(found[name, name] < 0 for name in windows):
        # The constraints contradict each other, so there are no results and no early expiry is computed.
        return PairwiseWindows(windows, steady)
    return PairwiseWindows(windows, steady, {pair: bound for pair, bound in found.items() if pair[0] != pair[1]})


def lifetimes(queries: Iterable[Query]) -> dict[str, int]:
    """Returns, for each relation of a stream, how long after its event time a row is needed by some query, at most."""
    longest: dict[str, int] = {}
    for query in queries:
        for name, span in _lifetimes(query).items():
            longest[name] = max(span, longest.get(name, span))
    return longest


def _lifetimes(query: Query) -> dict[str, int]:
    windows, found = query.pairwise, {each.name: each.window.reach for each in query.whole.streamed}
    for name in leaving_early(query):
        found[name] = windows.lifetime(name, to_the_end=query.grouping is not None or query.waits)
    return found


def leaving_early(query: Query) -> tuple[str, ...]:
    """Returns the relations whose rows may expire before their windows have ended.

    Rows of a side are kept as long as a combination may wait. A full join keeps all rows, because it may emit them
    alone.
    """
    if any(side.kind is SideKind.FULL for side in query.sides):
        return ()
    windows = query.pairwise
    if query.grouping is not None or query.waits:
        return tuple(name for name in windows.windows if windows.spare_at_end(name) > 0)
    names = tuple(windows.windows)
    return tuple(name for name in names if any(windows.spare(name, other) > 0 for other in names if other != name))


def compares_event_times(graph: JoinGraph, theta: Theta) -> bool:
    """True if a theta only bounds the distance of two event times."""
    return len(theta.relations) == 2 and any(distances(theta.predicate, partial(_timed, graph)))


def _constraints(graph: JoinGraph) -> Iterator[tuple[str, str, int]]:
    """Yields pairs of relations, and how much newer the row of the second can be than that of the first."""
    for theta in graph.thetas:
        yield from distances(theta.predicate, partial(_timed, graph))
    for key in graph.keys:
        timed = [name for name, expression in key.members if _timed(graph, expression) is not None]
        yield from ((one, other, 0) for one, other in permutations(timed, 2))


def distances(predicate: Expr, timed: Callable[[Expr], str | None]) -> Iterator[Distance]:
    """Yields the bounds that one comparison sets on the distance of two event times; `timed` names their relations."""
    match predicate:
        case Call(function="equal", arguments=(left, right)):
            one, other = timed(left), timed(right)
            if one is not None and other is not None and one != other:
                yield from ((one, other, 0), (other, one, 0))
            return
    band = bounds(predicate)
    if band is None:
        return
    one, other = timed(band.left), timed(band.right)
    if one is None or other is None:
        return
    # Event times are whole microseconds.
    strict = 1 if isinstance(predicate, Call) and predicate.function in {"less", "greater"} else 0
    if band.high is not None:
        yield other, one, math.floor(band.high) - strict
    if band.low is not None:
        yield one, other, math.floor(-band.low) - strict


def shortest(names: Collection[str], given: Iterable[Distance]) -> dict[tuple[str, str], int]:
    """Returns the tightest implied bounds for every pair; `FOREVER` if there is none."""
    found = {(one, other): 0 if one == other else FOREVER for one in names for other in names}
    for older, newer, distance in given:
        found[older, newer] = min(distance, found[older, newer])
    for by in names:
        for one in names:
            for other in names:
                # Two bounds are added only if both exist: a negative one would make a bound of none.
                if FOREVER not in (found[one, by], found[by, other]):
                    found[one, other] = min(found[one, other], found[one, by] + found[by, other])
    return found


def _timed(graph: JoinGraph, expression: Expr) -> str | None:
    """Returns the relation whose event time the expression is, or None."""
    # A timestamp without a zone is converted to an instant by the session time zone, which may skip or repeat an hour.
    if not isinstance(expression, Column) or expression.type != TIMESTAMP:
        return None
    relation = graph.relation(expression.relation)
    has_times = not (relation.is_table or relation.is_derived)
    return relation.name if has_times and expression.name == relation.event_time else None
