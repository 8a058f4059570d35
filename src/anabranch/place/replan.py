"""Plans again for queries that run, because rates, link costs, capacities or sites have changed.

*Beside what runs*: queries that no longer fit are taken out and planned again; then each query, in the order of
arrival, is offered another place beside all that runs, and moves if that costs less, until none moves. *Afresh*: all
queries on an empty network, in the order of arrival. The first keeps operators, so less is handed over; the second
finds sharing that no single move leads to. `double_work` is what a hand-over costs while it lasts.

Law: all queries of the landscape are deployed in the result, and no site or link is overloaded.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

from anabranch.place.landscape import Landscape
from anabranch.place.planner import Planner
from anabranch.place.removal import in_order, removed, tightened

MOST_ROUNDS = 4
"""How often each query is offered another place."""
LEAST_GAIN = 1e-6
"""The share of the usage that a move must save; sums in another order differ in their last digits."""


def beside(landscape: Landscape, planner: Planner) -> Landscape:
    """The queries planned again one at a time, each beside all others."""
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
    """All queries planned on the bare network."""
    bases = {name: one for name, one in landscape.operators.items() if one.is_base}
    return _with_queries(replace(landscape, operators=bases, queries={}), landscape, landscape.queries, planner)


def double_work(before: Landscape, after: Landscape) -> float:
    """The network usage of the operators that run only after the change: what a hand-over adds while both run."""
    known = set(_contents(before).values())
    return after.cost_into(name for name, content in _contents(after).items() if content not in known)


def _fitting(landscape: Landscape, planner: Planner) -> Landscape:
    """The landscape with the queries planned again that use what is overloaded."""
    current, out = landscape, set[str]()
    while current.overloaded_sites or current.overloaded_links:
        users = [name for name in current.queries if _is_in_trouble(current, name)]
        if not users:
            break
        # The last to come is the first to move.
        current = removed(current, users[-1])
        out.add(users[-1])
    return _with_queries(current, landscape, (name for name in landscape.queries if name in out), planner)


def _with_queries(current: Landscape, known: Landscape, names: Iterable[str], planner: Planner) -> Landscape:
    for name in names:
        current = tightened(planner.plan(current, known.queries[name]).landscape)
    return current


def _is_in_trouble(landscape: Landscape, query: str) -> bool:
    """True if a query uses an overloaded site or link."""
    sites, links = set(landscape.overloaded_sites), set(landscape.overloaded_links)
    for name in _used(landscape, query):
        operator = landscape.operators[name]
        if operator.is_join and operator.site in sites:
            return True
        for taken in operator.inputs:
            if links & set(landscape.topology.crossed(landscape.operators[taken.producer].site, operator.site)):
                return True
    return False


def _used(landscape: Landscape, query: str) -> set[str]:
    """The operators that a query's results pass through."""
    found: set[str] = set()
    left = [query]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [taken.producer for taken in landscape.operators[name].inputs]
    return found


def _contents(landscape: Landscape) -> dict[str, Hashable]:
    """By operator: what it computes, where, and from which operators, whatever these are called."""
    found: dict[str, Hashable] = {}
    for name in in_order(landscape):
        operator = landscape.operators[name]
        inputs = tuple((found[taken.producer], taken.view) for taken in operator.inputs)
        found[name] = hash((operator.site, operator.view, inputs, name if name in landscape.queries else ""))
    return found


def _in_order_of_arrival(landscape: Landscape, known: Landscape) -> Landscape:
    return replace(landscape, queries={name: landscape.queries[name] for name in known.queries})
