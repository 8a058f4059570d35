"""Plans again after the network has changed: a link got slower, a site came or went.

Every query is offered a new place on the changed network, in the order of arrival, beside all that still runs; it moves
only if its savings within a horizon pay for carrying its join states over. A query that lost a site has to move.
Sub-joins that others use stay where they are as long as anyone uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from anabranch.errors import TopologyError
from anabranch.place.landscape import Landscape, Operator
from anabranch.place.planner import Placement, Planner
from anabranch.place.removal import in_order, removed, tightened
from anabranch.place.statistics import Statistics
from anabranch.place.topology import Topology
from anabranch.place.view import View


@dataclass(frozen=True)
class Move:
    """The verdict on one query: its cost before and after on the changed network, and the cost of moving its state."""

    query: str
    before: float
    after: float
    moving: float
    forced: bool

    @property
    def is_taken(self) -> bool:
        return self.forced or self.after < self.before


@dataclass(frozen=True)
class Replanned:
    """The landscape on the changed network, and the verdict for every query that could move."""

    landscape: Landscape
    moves: tuple[Move, ...]


def replan(landscape: Landscape, topology: Topology, planner: Planner, horizon: float) -> Replanned:
    """The landscape on another topology; `horizon` is for how many seconds a saving is counted."""
    current, lost = _carried_over(landscape, topology)
    moves = []
    forced = [query for query in landscape.queries.values() if query.name not in current.queries]
    for query in forced:
        if query.sink not in topology.positions:
            raise TopologyError(
                f"query '{query.name}' has lost its sink '{query.sink}'",
                hint="remove the query, or bring the site back",
            )
        decision = planner.plan(current, query)
        moves.append(Move(query.name, float("inf"), decision.deployment.cost, 0.0, True))
        current = decision.landscape
    for query in landscape.queries.values():
        if query.name in lost:
            continue
        without = removed(current, query.name)
        if query.name in without.operators:
            # Other queries read its results, so it stays.
            continue
        before = current.cost - without.cost
        decision = planner.plan(without, query)
        moving = _moving(current, without, decision)
        move = Move(query.name, before, decision.deployment.cost + moving / horizon, moving, False)
        moves.append(move)
        if move.is_taken:
            current = decision.landscape
    return Replanned(current, tuple(moves))


def _carried_over(landscape: Landscape, topology: Topology) -> tuple[Landscape, set[str]]:
    """The operators that still run on the changed network, and the queries that lost a site."""
    old = landscape.topology.sites
    kept: dict[str, Operator] = {}
    for name in in_order(landscape):
        operator = landscape.operators[name]
        site = topology.positions.get(old[operator.site].name)
        if site is None and operator.is_base:
            raise TopologyError(f"the source of stream '{name[1:]}' has left with site '{old[operator.site].name}'")
        if site is not None and all(taken.producer in kept for taken in operator.inputs):
            kept[name] = replace(operator, site=site)
    lost = {name for name in landscape.queries if name not in kept}
    queries = {name: query for name, query in landscape.queries.items() if name not in lost}
    current = Landscape(topology, landscape.statistics, kept, queries)
    return tightened(current), lost


def _moving(current: Landscape, without: Landscape, decision: Placement) -> float:
    """Bytes of state times distance, for joins of the query that now run somewhere else.

    A join of other relations than any before has no state to carry; it fills from its own inputs and costs nothing.
    """
    old = {o.view.signature: o for name, o in current.operators.items() if name not in without.operators and o.is_join}
    cost = 0.0
    for name, operator in decision.landscape.operators.items():
        before = old.get(operator.view.signature)
        if name not in without.operators and operator.is_join and before is not None:
            carried = _carried_bytes([taken.view for taken in before.inputs], current.statistics)
            cost += carried * current.topology.distance(before.site, operator.site)
    return cost


def _carried_bytes(inputs: Sequence[View], statistics: Statistics) -> float:
    """The bytes of the rows that a join holds, which must move with it; its indexes are rebuilt."""
    return sum(view.rate(statistics) * view.shortest_range * view.width(statistics) for view in inputs)
