"""The planning state of a deployment: the running landscape, and its changes when queries or rates change.

Everything here is a value; the controller writes it to `plan.json` beside the orders that follow from it.

Invariant: a refused change leaves the state as it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from anabranch.cql import compile_query
from anabranch.errors import NoFeasiblePlan, TopologyError
from anabranch.place.hierarchy import Hierarchy, followed, from_names, taken_over, to_names
from anabranch.place.landscape import Landscape, Operator, SinkQuery
from anabranch.place.learnt import Learnt
from anabranch.place.planner import Planner
from anabranch.place.removal import in_order, removed, tightened
from anabranch.place.replan import afresh, beside, double_work
from anabranch.place.run import DEFAULT, HIERARCHICAL, Options, hierarchies, planner_named, planner_on
from anabranch.place.spec import Network
from anabranch.place.topology import Topology
from anabranch.place.windows import as_ranges
from anabranch.sites.codec import decode, encode
from anabranch.sites.files import QueryFile
from anabranch.spec.model import SinkSpec

RATIO, LEAST = 0.9, 1.0
"""A new plan is accepted if its network usage is below this fraction of the old one's, and by this much lower."""
PAYBACK = 600.0
"""Seconds within which a new plan must pay back the double work of its hand-over."""


@dataclass(frozen=True)
class Planned:
    """The queries of a deployment in order of arrival, and the landscape that serves them."""

    landscape: Landscape
    queries: Mapping[str, QueryFile] = field(default_factory=dict)
    planner: str = DEFAULT
    options: Options = field(default_factory=Options)
    learnt: Learnt = field(default_factory=Learnt)
    """Measured statistics, which replace those of the network file."""
    closed: frozenset[str] = frozenset()
    """Sites at which no operator may be placed."""
    hierarchies: tuple[Hierarchy, ...] = ()
    """The clusters that planners use, updated as sites join and leave; built on first use."""
    silent: frozenset[str] = frozenset()
    """Sites that do not respond; backups replace them as coordinators."""

    def with_query(self, query: QueryFile) -> Planned:
        """Returns the state with one more query, on top of the running ones."""
        placed = self._planner().plan(self.landscape, query.query).landscape
        return replace(self, landscape=tightened(placed), queries={**self.queries, query.query.name: query})

    def without_query(self, name: str) -> Planned:
        if name not in self.queries:
            raise TopologyError(
                f"no query '{name}' is deployed", hint=f"deployed are {', '.join(self.queries) or 'none'}"
            )
        queries = {other: query for other, query in self.queries.items() if other != name}
        return replace(self, landscape=removed(self.landscape, name), queries=queries)

    def replanned(self, learnt: Learnt, closed: Iterable[str] = (), seconds: float = 0.0) -> Planned:
        """Returns the state with all queries replanned as measured: incrementally, or afresh if that pays.

        `seconds` is the duration of a hand-over.
        """
        state = self.measured(learnt, closed)
        planner = state._planner()
        found = [beside(state.landscape, planner)]
        with suppress(NoFeasiblePlan):
            # In order of arrival the queries may not fit, although the running ones do.
            found.append(afresh(state.landscape, planner))
        best = min(found, key=lambda one: one.cost * PAYBACK + double_work(state.landscape, one) * seconds)
        return replace(state, landscape=best)

    def measured(self, learnt: Learnt, closed: Iterable[str] = ()) -> Planned:
        """Returns the same operators under measured statistics and without the capacities of some sites."""
        known = self.learnt.updated(learnt)
        statistics = known.applied(self.landscape.statistics)
        shut = self.closed | frozenset(closed)
        topology = _closing(self.landscape.topology, shut)
        landscape = self.landscape.under(statistics, topology)
        return replace(self, landscape=landscape, learnt=known, closed=shut)

    def on(self, network: Network) -> Planned:
        """Returns the state on a changed network: joins of removed sites are replanned, everything else is kept.

        Streams and sinks stay at their sites; raises TopologyError if such a site was removed.
        """
        topology = network.landscape.topology
        sites = self.landscape.topology.sites
        kept: dict[str, Operator] = {
            name: one for name, one in network.landscape.operators.items() if name not in self.landscape.operators
        }
        for name in in_order(self.landscape):
            operator = self.landscape.operators[name]
            home = sites[operator.site].name
            site = topology.positions.get(home)
            if operator.is_base:
                _refuse_moved(name[1:], home, network)
                kept[name] = network.landscape.operators[name]
            elif site is not None and all(taken.producer in kept for taken in operator.inputs):
                kept[name] = replace(operator, site=site)
        for query in self.queries.values():
            if query.query.sink not in topology.positions:
                raise TopologyError(
                    f"query '{query.query.name}' has its sink at '{query.query.sink}', which is not in the network",
                    hint="remove the query first, or keep the site in the network",
                )
        lost = [name for name in self.landscape.queries if name not in kept]
        queries = {name: one for name, one in self.landscape.queries.items() if name not in lost}
        landscape = tightened(Landscape(topology, network.landscape.statistics, kept, queries))
        state = replace(
            self,
            landscape=landscape,
            hierarchies=tuple(followed(one, topology, self.options.seed) for one in self.hierarchies),
            closed=frozenset(name for name in self.closed if name in topology.positions),
        ).measured(Learnt())
        for name in lost:
            placed = state._planner().plan(state.landscape, self.queries[name].query).landscape
            state = replace(state, landscape=tightened(placed))
        return state

    def with_hierarchies(self) -> Planned:
        """Returns the state with the clusters that its planner needs."""
        if self.hierarchies or self.planner not in HIERARCHICAL:
            return self
        return replace(self, hierarchies=hierarchies(self.landscape.topology, self.options))

    def _planner(self) -> Planner:
        topology = self.landscape.topology
        if self.planner not in HIERARCHICAL:
            return planner_named(self.planner, topology, self.options)
        out = {topology.positions[name] for name in self.silent | self.closed if name in topology.positions}
        return planner_on(self.planner, [taken_over(one, out) for one in self.with_hierarchies().hierarchies])

    # --- files --------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "planner": self.planner,
            "options": self.options.__dict__,
            "learnt": self.learnt.to_json(),
            "closed": sorted(self.closed),
            "sites": [site.name for site in self.landscape.topology.sites],
            "hierarchies": [{"max_cs": one.max_cs, "levels": to_names(one)} for one in self.hierarchies],
            "operators": encode(dict(self.landscape.operators)),
            "queries": [
                {
                    "name": one.query.name,
                    "sink": one.query.sink,
                    "joins_at": sorted(one.query.joins_at),
                    "max_latency": one.query.max_latency if math.isfinite(one.query.max_latency) else None,
                    "cql": one.cql,
                    "into": one.into.__dict__,
                }
                for one in self.queries.values()
            ],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], network: Network) -> Planned:
        queries = {}
        for one in value["queries"]:
            into = {
                **one["into"],
                "options": tuple((key, each) for key, each in one["into"]["options"]),
                "partition_by": tuple(one["into"]["partition_by"]),
            }
            query = as_ranges(compile_query(one["cql"], network.catalog))
            most = math.inf if one["max_latency"] is None else one["max_latency"]
            bound = SinkQuery(one["name"], query, one["sink"], frozenset(one["joins_at"]), most)
            queries[one["name"]] = QueryFile(bound, one["cql"], SinkSpec(**into))
        topology = network.landscape.topology
        sites = value["sites"]
        names = sorted(set(topology.positions) ^ set(sites))
        if names:
            raise TopologyError(
                f"the network file has other sites than the deployment: {', '.join(names)}",
                hint="start with the earlier file, then: anabranch deploy network FILE --root DIR",
            )
        at = [topology.position(name) for name in sites]
        operators: dict[str, Operator] = decode(value["operators"])
        landscape = replace(
            network.landscape,
            operators={name: replace(one, site=at[one.site]) for name, one in operators.items()},
            queries={name: query.query for name, query in queries.items()},
        )
        state = cls(
            landscape,
            queries,
            value["planner"],
            Options(**{**value["options"], "other_cs": tuple(value["options"]["other_cs"])}),
            hierarchies=tuple(from_names(topology, one["max_cs"], one["levels"]) for one in value["hierarchies"]),
        )
        return state.measured(Learnt.from_json(value["learnt"]), value["closed"])


def _refuse_moved(stream: str, home: str, network: Network) -> None:
    """Refuses to move a stream: its gate has the stream's offsets and cannot be handed over to another site."""
    operator = network.landscape.operators.get(f"@{stream}")
    now = None if operator is None else network.landscape.topology.sites[operator.site].name
    if now != home:
        raise TopologyError(
            f"stream '{stream}' is read at '{home}'",
            detail="it is no longer in the network" if now is None else f"the new network has it at '{now}'",
            hint="remove the queries that read it first, or keep it where it is",
        )


@dataclass(frozen=True)
class Verdict:
    """The decision on a new plan, and its reason."""

    is_taken: bool
    before: float
    after: float
    reason: str


def judged(before: Planned, after: Planned, seconds: float) -> Verdict:
    """Compares the network usage of two plans under the same statistics.

    `seconds` is how long both run side by side during the hand-over.
    """
    old, new = before.landscape.cost, after.landscape.cost
    saved = old - new
    if before.landscape.overloaded_sites or before.landscape.overloaded_links or before.landscape.slow_queries:
        return Verdict(
            True, old, new, f"a site or a link was overloaded, or a query too slow; network usage changes to {new:,.0f}"
        )
    if new >= RATIO * old or saved < LEAST:
        return Verdict(False, old, new, f"network usage would go from {old:,.0f} to {new:,.0f}: not enough")
    if saved * PAYBACK < double_work(before.landscape, after.landscape) * seconds:
        return Verdict(False, old, new, f"the hand-over would not pay back within {PAYBACK:g} seconds")
    return Verdict(True, old, new, f"network usage goes from {old:,.0f} to {new:,.0f}")


def _closing(topology: Topology, closed: frozenset[str]) -> Topology:
    for name in closed:
        if name not in topology.positions:
            raise TopologyError(f"the network has no site '{name}'", hint="check it against 'sites'")
    sites = tuple(replace(site, cpu=0.0, memory=0.0) if site.name in closed else site for site in topology.sites)
    return replace(topology, sites=sites) if closed else topology
