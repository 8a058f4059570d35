"""Combines the meshes of the relations of a query into one mesh.

Invariant: the result is always a valid mesh: a relation without a sample keeps its default probe order. Limit: each
relation is searched separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from anabranch.mesh.existence_probes import existence_candidates, existence_route, preferred, price
from anabranch.mesh.learn import SearchSetting
from anabranch.mesh.precedence import precedence
from anabranch.mesh.proposal import MeshProposal, condensed, find_mesh, least_cost, one_route_only
from anabranch.mesh.training import Condensed, TrainingSet, training_set
from anabranch.plan.classifier import attributes
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh, RelationRoutes, Route, check_mesh, one_route
from anabranch.stats.mesh.operators import Needs
from anabranch.stats.mesh.profiles import OperatorProfile

BEYOND = 0.5
"""A classifier is searched only if its lower bound is below this fraction of the cost of a route with existence probes.

No classifier reaches its lower bound: those found with a higher bound were no cheaper than existence probes.
"""
KEEPING = 1.1
"""A given probe order is kept if it costs at most this multiple of the best single route of the sampled rows."""


@dataclass(frozen=True)
class QueryMesh:
    """A mesh with the proposals for its relations, and the plan of single best routes as the baseline."""

    mesh: Mesh
    single: Mesh
    proposals: Mapping[str, MeshProposal]
    """By relation; a relation without a sample has none, and keeps its default probe order."""

    @property
    def is_mesh(self) -> bool:
        """True if some relation has several routes or existence probes."""
        return any(proposal.is_mesh for proposal in self.proposals.values())

    def gain(self, weights: Mapping[str, float] | None = None) -> float:
        """Returns the gain over the single best routes; `weights` are the relations' rows per second."""
        shares = {name: (weights or {}).get(name, 1.0) for name in self.proposals}
        single = sum(shares[name] * proposal.single_cost for name, proposal in self.proposals.items())
        cost = sum(shares[name] * proposal.cost for name, proposal in self.proposals.items())
        return single / cost - 1 if cost > 0 else 0.0


def find_query_mesh(
    graph: JoinGraph,
    profiles: Iterable[OperatorProfile],
    rng: np.random.Generator,
    setting: SearchSetting | None = None,
    current: Mesh | None = None,
    is_worth: Callable[[Mapping[str, float]], bool] | None = None,
    orders: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> QueryMesh:
    """Returns the best mesh for all relations of a query, each searched separately.

    The search starts from the current mesh if given. Existence probes need no search: a relation uses them if they
    save. `is_worth` decides whether a search is useful, given the lower bound of the seconds per row of each relation.
    If it is not, or if existence probes leave little to gain, a relation without existence probes gets its best single
    route. `orders` are probe orders chosen elsewhere; a relation with a single route keeps its own unless the sample
    clearly contradicts it: a thousand rows do not show a key that is rare in one stream and frequent in all others.
    """
    samples = [_Sample.of(graph, seen, setting or SearchSetting(), current) for seen in profiles if seen.matrix.rows]
    probing = {each.relation: each.ask(rng) for each in samples}
    least = {each.relation: each.least for each in samples}
    is_searched = is_worth is None or is_worth(least)
    proposals = {
        each.relation: each.best(rng, probing[each.relation], least[each.relation])
        if is_searched
        else probing[each.relation] or each.single()
        for each in samples
    }
    proposals |= {
        each.relation: each.keeping(orders[each.relation], proposals[each.relation])
        for each in samples
        if each.relation in orders and not proposals[each.relation].is_mesh
    }
    default = one_route(graph)
    ways = [proposals[name].ways if name in proposals else default.of(name) for name in graph.names]
    single = [
        RelationRoutes(name, (proposals[name].single,)) if name in proposals else default.of(name)
        for name in graph.names
    ]
    return QueryMesh(check_mesh(Mesh(tuple(ways)), graph), check_mesh(Mesh(tuple(single)), graph), proposals)


@dataclass(frozen=True, eq=False)
class _Sample:
    """The input of a search for the routes of one relation."""

    seen: OperatorProfile
    rows: TrainingSet
    needs: Needs
    probeable: tuple[str, ...]
    setting: SearchSetting
    running: RelationRoutes | None

    @classmethod
    def of(cls, graph: JoinGraph, seen: OperatorProfile, setting: SearchSetting, current: Mesh | None) -> _Sample:
        running = None if current is None else current.of(seen.relation)
        # Attributes of the running classifier are kept, even if they would no longer be chosen (too many texts).
        tested = () if running is None else attributes(running.classifier)
        rows = training_set(seen.relation, seen.columns, weights=np.ones(seen.matrix.rows), also=tested)
        needs = precedence(graph, seen.relation, seen.matrix.operators)
        # A route with a deferred predicate, which only users write, has no price: that operator was not measured.
        is_priced = running is not None and all({*r.operators} == {*seen.matrix.operators} for r in running.routes)
        probeable = (
            existence_candidates(graph, seen.relation, seen.matrix.operators) if setting.existence_probes else ()
        )
        return cls(seen, rows, needs, probeable, _priced_for(seen, setting), running if is_priced else None)

    @property
    def relation(self) -> str:
        return self.seen.relation

    @property
    def least(self) -> float:
        return least_cost(self._condensed, self.needs, self.setting)

    @cached_property
    def _condensed(self) -> Condensed:
        return condensed(self.rows, self.seen.matrix, self.setting)

    def ask(self, rng: np.random.Generator) -> MeshProposal | None:
        """Returns the route with existence probes, if that saves."""
        return existence_route(self.rows, self.seen.matrix, self.needs, self.probeable, rng, self.setting)

    def best(self, rng: np.random.Generator, probing: MeshProposal | None, least: float) -> MeshProposal:
        """Returns the cheapest routes, with a classifier or existence probes; no classifier costs less than `least`."""
        if probing is not None and least > BEYOND * probing.cost:
            return probing
        condensed = self._condensed if self.setting.early_out else None
        found = find_mesh(self.rows, self.seen.matrix, self.needs, rng, self.setting, self.running, condensed)
        return found if probing is None else preferred(probing, found, self.rows, self.seen.matrix, self.setting.costs)

    def keeping(self, order: tuple[str, ...], found: MeshProposal) -> MeshProposal:
        """Returns the single route with this order, unless the one that was found costs clearly less."""
        kept = RelationRoutes(self.relation, (Route(order),))
        prices = [price(ways, self.rows, self.seen.matrix, self.setting.costs) for ways in (kept, found.ways)]
        return replace(found, ways=kept, single=kept.routes[0]) if prices[0] <= KEEPING * prices[1] else found

    def single(self) -> MeshProposal:
        why = "even a separate route for each class of rows would not pay"
        return one_route_only(self.rows, self.seen.matrix, self.needs, self.setting, why)


def _priced_for(seen: OperatorProfile, setting: SearchSetting) -> SearchSetting:
    """Returns the setting with the measured cost of a route, if the number of rows per step is known."""
    return replace(setting, costs=setting.costs.for_batches(seen.batch_rows, seen.call)) if seen.batch_rows else setting
