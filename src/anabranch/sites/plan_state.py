"""The planner's side of a deployment: the landscape that runs, and what it becomes when queries or rates change.

Everything here is a value; the controller writes it to `plan.json` beside the orders it leads to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from anabranch.cql import compile_query
from anabranch.errors import TopologyError
from anabranch.place.landscape import Landscape, SinkQuery, view_bytes
from anabranch.place.planner import Planner
from anabranch.place.removal import removed, tightened
from anabranch.place.run import Options, planner_named
from anabranch.place.spec import Network
from anabranch.place.statistics import Statistics
from anabranch.place.topology import Topology
from anabranch.sites.codec import decode, encode
from anabranch.sites.files import QueryFile
from anabranch.spec.model import SinkSpec

RATIO, LEAST = 0.9, 1.0
"""A new plan is taken if its network usage is below this share of the old one's, and by this much less."""
PAYBACK = 600.0
"""Seconds within which a new plan must have paid back the double work of its hand-over."""


@dataclass(frozen=True)
class Planned:
    """The queries of a deployment in the order of their arrival, and the landscape that serves them."""

    landscape: Landscape
    queries: Mapping[str, QueryFile] = field(default_factory=dict)
    planner: str = "top-down"
    options: Options = field(default_factory=Options)
    rates: Mapping[str, float] = field(default_factory=dict)
    """Measured rates, in rows per second, of streams whose given ones they replace."""
    closed: frozenset[str] = frozenset()
    """Sites at which no operator is to be placed."""

    def with_query(self, query: QueryFile) -> Planned:
        """The state with one more query, on top of what runs."""
        placed = self._planner().plan(self.landscape, query.query).landscape
        return replace(self, landscape=tightened(placed), queries={**self.queries, query.query.name: query})

    def without_query(self, name: str) -> Planned:
        if name not in self.queries:
            raise TopologyError(
                f"no query '{name}' is deployed", hint=f"deployed are {', '.join(self.queries) or 'none'}"
            )
        queries = {other: query for other, query in self.queries.items() if other != name}
        return replace(self, landscape=removed(self.landscape, name), queries=queries)

    def replanned(self, rates: Mapping[str, float], closed: Iterable[str] = ()) -> Planned:
        """The state with all queries planned anew under measured rates, in the order of their arrival."""
        fresh = self.measured(rates, closed)
        bases = {name: one for name, one in fresh.landscape.operators.items() if one.is_base}
        planned = replace(fresh, landscape=replace(fresh.landscape, operators=bases, queries={}), queries={})
        for query in self.queries.values():
            planned = planned.with_query(query)
        return planned

    def measured(self, rates: Mapping[str, float], closed: Iterable[str] = ()) -> Planned:
        """The same operators under measured rates and without the capacities of some sites."""
        known = {**self.rates, **{name: rate for name, rate in rates.items() if rate > 0}}
        statistics = _with_rates(self.landscape.statistics, known)
        shut = self.closed | frozenset(closed)
        topology = _closing(self.landscape.topology, shut)
        operators = {
            name: replace(
                one,
                inputs=tuple(replace(taken, bytes=view_bytes(taken.view, statistics)) for taken in one.inputs),
            )
            for name, one in self.landscape.operators.items()
        }
        landscape = Landscape(topology, statistics, operators, self.landscape.queries)
        return replace(self, landscape=landscape, rates=known, closed=shut)

    def _planner(self) -> Planner:
        return planner_named(self.planner, self.landscape.topology, self.options)

    # --- files --------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "planner": self.planner,
            "options": self.options.__dict__,
            "rates": dict(self.rates),
            "closed": sorted(self.closed),
            "operators": encode(dict(self.landscape.operators)),
            "queries": [
                {"name": one.query.name, "sink": one.query.sink, "cql": one.cql, "into": one.into.__dict__}
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
            bound = SinkQuery(one["name"], compile_query(one["cql"], network.catalog), one["sink"])
            queries[one["name"]] = QueryFile(bound, one["cql"], SinkSpec(**into))
        landscape = replace(
            network.landscape,
            operators=decode(value["operators"]),
            queries={name: query.query for name, query in queries.items()},
        )
        state = cls(
            landscape,
            queries,
            value["planner"],
            Options(**{**value["options"], "other_cs": tuple(value["options"]["other_cs"])}),
        )
        return state.measured(value["rates"], value["closed"])


@dataclass(frozen=True)
class Verdict:
    """Whether a new plan is worth its hand-over, and why."""

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
    if new >= RATIO * old or saved < LEAST:
        return Verdict(False, old, new, f"network usage would go from {old:,.0f} to {new:,.0f}: not enough")
    if saved * PAYBACK < new * seconds:
        return Verdict(False, old, new, f"the hand-over would not pay back within {PAYBACK:g} seconds")
    return Verdict(True, old, new, f"network usage goes from {old:,.0f} to {new:,.0f}")


def _with_rates(statistics: Statistics, rates: Mapping[str, float]) -> Statistics:
    streams = {name: replace(stream, rate=rates.get(name, stream.rate)) for name, stream in statistics.streams.items()}
    return replace(statistics, streams=streams)


def _closing(topology: Topology, closed: frozenset[str]) -> Topology:
    for name in closed:
        if name not in topology.positions:
            raise TopologyError(f"the network has no site '{name}'", hint="check it against 'sites'")
    sites = tuple(replace(site, cpu=0.0, memory=0.0) if site.name in closed else site for site in topology.sites)
    return replace(topology, sites=sites) if closed else topology
