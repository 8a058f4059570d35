"""Replans running queries after a change of rates, link costs, capacities or sites.

*Beside the running operators*: queries that no longer fit are removed and planned again. Then each query, in order of
arrival, gets a new placement beside all others and moves if that costs less, until none moves. *Afresh*: all queries
are planned on an empty network, in order of arrival. The first keeps operators, so hand-overs are smaller; the second
finds sharing that no single move leads to. `double_work` is the cost of a hand-over while it lasts.

Invariant: all queries of the landscape are deployed in the result, and no site or link is overloaded.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

from anabranch.place.landscape import Landscape
from anabranch.place.planner import Planner
from anabranch.place.removal import in_order, removed, tightened

MOST_ROUNDS = 4
"""The maximum number of new placements tried per query."""
LEAST_GAIN = 1e-6
"""The fraction of the usage that a move must save; sums in another order differ in their last digits."""


def beside(landscape: Landscape, planner: Planner) -> Landscape:
    """Replans the queries one at a time, each beside all others."""
    current = _fitting(landscape, planner)
    for _ in range(MOST_ROUNDS):
        moved = False
        for name, query in landscape.queries.items():
            offered = tightened(planner.plan(removed(current, name), query).landscape)
            if offered.cost < current.cost * (1 - LEAST_GAIN):
                current, moved = offered, True
        if not moved:
            break
    return _in_order_of_arrival(current, landscape)


def afresh(landscape: Landscape, planner: Planner) -> Landscape:
    """Plans all queries on the bare network."""
    bases = {name: one for name, one in landscape.operators.items() if one.is_base}
    return _with_queries(replace(landscape, operators=bases, queries={}), landscape, landscape.queries, planner)


def double_work(before: Landscape, after: Landscape) -> float:
    """Returns the network usage of operators that run only after the change: the extra cost of a hand-over."""
    known = set(_contents(before).values())
    return after.cost_into(name for name, content in _contents(after).items() if content not in known)


def _fitting(landscape: Landscape, planner: Planner) -> Landscape:
    """Returns the landscape after replanning the queries that use overloaded sites or links."""
    current, out = landscape, set[str]()
    while current.overloaded_sites or current.overloaded_links or current.slow_queries:
        users = [name for name in current.queries if _is_in_trouble(current, name)]
        if not users:
            break
        # The last query to arrive is the first to move.
        current = removed(current, users[-1])
        out.add(users[-1])
    return _with_queries(current, landscape, (name for name in landscape.queries if name in out), planner)


def _with_queries(current: Landscape, known: Landscape, names: Iterable[str], planner: Planner) -> Landscape:
    for name in names:
        current = tightened(planner.plan(current, known.queries[name]).landscape)
    return current


def _is_in_trouble(landscape: Landscape, query: str) -> bool:
    """Returns True if a query uses an overloaded site or link, or is above its limit of latency."""
    if query in landscape.slow_queries:
        return True
    sites, links = set(landscape.overloaded_sites), set(landscape.overloaded_links)
    for name in _used(landscape, query):
        operator = landscape.operators[name]
        if operator.has_load and operator.site in sites:
            return True
        for taken in operator.inputs:
            if links & set(landscape.topology.crossed(landscape.operators[taken.producer].site, operator.site)):
                return True
    return False


def _used(landscape: Landscape, query: str) -> set[str]:
    """Returns the operators that a query's results pass through."""
    found: set[str] = set()
    left = [query]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [taken.producer for taken in landscape.operators[name].inputs]
    return found


def _contents(landscape: Landscape) -> dict[str, Hashable]:
    """Returns, by operator, its computation, site and producers, independent of operator names."""
    found: dict[str, Hashable] = {}
    for name in in_order(landscape):
        operator = landscape.operators[name]
        inputs = tuple((found[taken.producer], taken.view) for taken in operator.inputs)
        found[name] = hash((operator.site, operator.view, inputs, name if name in landscape.queries else ""))
    return found


def _in_order_of_arrival(landscape: Landscape, known: Landscape) -> Landscape:
    return replace(landscape, queries={name: landscape.queries[name] for name in known.queries})
