"""All running operators of the network: base sources, joins and deliveries, and the streams between them.

A landscape is immutable; deploying a query returns a new one, so a refused query changes nothing. An operator without
input is a base source; one with two inputs is a join. One with a single input is the delivery of the query of its name,
or a relay, which offers the rows that a query's sink receives to other operators. The delivery of a query that runs at
one site (`whole`) reads all its streams itself. An input names its producer and the view that it takes; a telescoping
filter at the producer removes the rest. The cost of a landscape is the sum over all
inputs of bytes per second times distance. The free capacity of sites and links (`free`, `room`) follows from the
running operators.

Invariant: no operator reads a delivery, so a query can be removed even if others use operators that it started.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count

import numpy as np
import numpy.typing as npt

from anabranch.errors import TopologyError
from anabranch.place.grouping import delivered_bytes
from anabranch.place.load import NOTHING, Load, join_load
from anabranch.place.statistics import Statistics
from anabranch.place.topology import Floats, Indices, Topology
from anabranch.place.view import View, base_view
from anabranch.place.whole import inner_join, is_whole, whole_load
from anabranch.plan.query import Query

SLACK = 1e-9
"""The relative tolerance of a limit: sums of equal loads in different orders differ in their last digits."""


MONTH = 30 * 86_400
"""Seconds of a month."""


def monthly(cost: float) -> float:
    """Returns the price of a month, where a link costs a price per GB."""
    return cost * MONTH / 1e9


@dataclass(frozen=True)
class SinkQuery:
    """A query and the site that receives its results."""

    name: str
    query: Query
    sink: str
    joins_at: frozenset[str] = frozenset()
    """The only sites where its new joins may be; empty for all."""
    max_latency: float = math.inf
    """The limit on the latency of the links from any of its sources to its sink, in milliseconds."""

    @property
    def is_whole(self) -> bool:
        """True if the query runs at the site of its sink."""
        return is_whole(self.query)

    @property
    def planned(self) -> Query:
        """The inner join of its streams, which determines sizes and loads."""
        return inner_join(self.query) if self.is_whole else self.query


@dataclass(frozen=True)
class Input:
    """The view that an operator takes from a producer; its slot i becomes slot `slots[i]` of the operator's view."""

    producer: str
    view: View
    slots: tuple[int, ...]
    bytes: float


@dataclass(frozen=True)
class Operator:
    """A running operator at a site (by position), and the view that it offers."""

    name: str
    site: int
    view: View
    inputs: tuple[Input, ...]
    is_whole: bool = False
    """True if it is the delivery of a query that runs at one site."""

    @property
    def is_base(self) -> bool:
        return not self.inputs

    @property
    def is_join(self) -> bool:
        return len(self.inputs) > 1 and not self.is_whole

    @property
    def has_load(self) -> bool:
        """True if it keeps rows of streams to join them."""
        return len(self.inputs) > 1


@dataclass(frozen=True)
class Widening:
    """Operators with wider views, and for each growing flow its extra bytes per second, origin and end."""

    operators: Mapping[str, Operator]
    flows: tuple[tuple[float, int, int], ...]


@dataclass(frozen=True)
class Landscape:
    """The operators by name, on a network, with statistics; `queries` are the deployed ones, by name."""

    topology: Topology
    statistics: Statistics
    operators: Mapping[str, Operator]
    queries: Mapping[str, SinkQuery] = field(default_factory=dict)

    @cached_property
    def cost(self) -> float:
        """The network usage: bytes per second times distance, over all flows."""
        return self.cost_into(self.operators)

    def cost_into(self, names: Iterable[str]) -> float:
        """Returns the network usage of the flows into some operators; zero for operators that do not run."""
        running = (self.operators[name] for name in names if name in self.operators)
        return sum(
            taken.bytes * self.topology.distance(self.operators[taken.producer].site, operator.site)
            for operator in running
            for taken in operator.inputs
        )

    @cached_property
    def offers(self) -> dict[str, tuple[Operator, ...]]:
        """The operators that offer a view, by its signature: the stream advertisements."""
        found: dict[str, list[Operator]] = {}
        for operator in self.operators.values():
            query = self.queries.get(operator.name)
            if query is None or not (query.query.grouping is not None or query.is_whole):
                # A sink may receive groups instead of the view that they aggregate, and a whole query offers no view.
                found.setdefault(operator.view.signature, []).append(operator)
        return {signature: tuple(several) for signature, several in found.items()}

    def load(self, operator: Operator) -> Load:
        """Returns the CPU and memory that an operator needs; only joins and whole queries need any."""
        if operator.is_whole:
            return whole_load(self.queries[operator.name].query, self.statistics)
        if not operator.is_join:
            return NOTHING
        left, right = ((taken.view, taken.slots) for taken in operator.inputs)
        return join_load(left, right, operator.view, self.statistics)

    @cached_property
    def free(self) -> tuple[Floats, Floats]:
        """The free CPU and memory of each site; negative if it is overloaded."""
        cpu = np.array([site.cpu for site in self.topology.sites])
        memory = np.array([site.memory for site in self.topology.sites])
        for operator in self.operators.values():
            if operator.has_load and (math.isfinite(cpu[operator.site]) or math.isfinite(memory[operator.site])):
                load = self.load(operator)
                cpu[operator.site] -= load.cpu
                memory[operator.site] -= load.memory
        return cpu, memory

    def sites_for(self, extra: Load) -> npt.NDArray[np.bool_]:
        """Returns for each site whether it can take additional load."""
        cpu, memory = self.free
        fits: npt.NDArray[np.bool_] = (extra.cpu <= cpu + SLACK * cpu) & (extra.memory <= memory + SLACK * memory)
        return fits

    @cached_property
    def overloaded_sites(self) -> tuple[int, ...]:
        """The overloaded sites."""
        if not self.topology.has_limited_sites:
            return ()
        cpu, memory = self.free
        allowed = [(-SLACK * site.cpu, -SLACK * site.memory) for site in self.topology.sites]
        return tuple(
            position
            for position, (least_cpu, least_memory) in enumerate(allowed)
            if cpu[position] < least_cpu or memory[position] < least_memory
        )

    def latency(self, name: str) -> float:
        """Returns the latency of the links from the farthest source to an operator, in milliseconds."""
        operator = self.operators[name]
        return max(
            (
                self.latency(taken.producer) + self.topology.latency(self.operators[taken.producer].site, operator.site)
                for taken in operator.inputs
            ),
            default=0.0,
        )

    @cached_property
    def slow_queries(self) -> tuple[str, ...]:
        """The queries above their limit of latency."""
        return tuple(name for name, query in self.queries.items() if self.is_slow(query))

    def is_slow(self, query: SinkQuery) -> bool:
        """Returns True if a deployed query is above its limit of latency."""
        return math.isfinite(query.max_latency) and self.latency(query.name) > query.max_latency * (1 + SLACK)

    @cached_property
    def traffic(self) -> Floats:
        """The bytes per second over each link, in the order of `Topology.pairs`."""
        found = np.zeros(len(self.topology.pairs))
        for operator in self.operators.values():
            for taken in operator.inputs:
                found[list(self.topology.crossed(self.operators[taken.producer].site, operator.site))] += taken.bytes
        return found

    @cached_property
    def overloaded_links(self) -> tuple[int, ...]:
        """The overloaded links, as positions in `Topology.pairs`."""
        if not self.topology.has_limited_links:
            return ()
        return tuple(int(one) for one in np.flatnonzero(self.traffic > self.topology.bandwidths * (1 + SLACK)))

    def room(self, ends: Sequence[int] | Indices) -> Floats:
        """Returns the free bytes per second on the path from every site to each end, one row per end."""
        missing = [int(end) for end in ends if int(end) not in self._rooms]
        if missing:
            rows = self.topology.narrowest(self.topology.bandwidths * (1 + SLACK) - self.traffic, missing)
            self._rooms.update(zip(missing, rows, strict=True))
        return np.stack([self._rooms[int(end)] for end in ends])

    @cached_property
    def _rooms(self) -> dict[int, Floats]:
        return {}

    def relaxed(self, name: str, wanted: View) -> Widening | None:
        """Widens operators so that one of them covers a view; also returns the growth of the flows between them.

        A delivery is never widened, because its sink receives it. Base sources cover everything.
        """
        changed: dict[str, Operator] = {}
        flows: list[tuple[float, int, int]] = []
        possible = self._relax(name, wanted, changed, flows)
        return Widening(changed, tuple(flows)) if possible else None

    def _relax(
        self, name: str, wanted: View, changed: dict[str, Operator], flows: list[tuple[float, int, int]]
    ) -> bool:
        operator = changed.get(name, self.operators[name])
        if operator.view.covers(wanted):
            return True
        if not operator.is_join:
            return False
        view = operator.view.union(wanted)
        inputs = []
        for taken in operator.inputs:
            asked = View(tuple(view.slots[slot] for slot in taken.slots), taken.view.predicates)
            wider = taken.view.union(asked)
            if not self._relax(taken.producer, wider, changed, flows):
                return False
            # Estimates of different filters may be inconsistent; a wider view never carries less.
            volume = max(taken.bytes, view_bytes(wider, self.statistics))
            flows.append((volume - taken.bytes, self.operators[taken.producer].site, operator.site))
            inputs.append(replace(taken, view=wider, bytes=volume))
        changed[name] = replace(operator, view=view, inputs=tuple(inputs))
        return True

    def relaying(self, name: str) -> tuple[Landscape, str]:
        """Returns the landscape in which others can read an operator's output, and the operator to read.

        For a delivery, that is its producer if both are at one site, else a new relay at the sink.
        """
        if name not in self.queries:
            return self, name
        delivery = self.operators[name]
        (taken,) = delivery.inputs
        if self.operators[taken.producer].site == delivery.site:
            return self, taken.producer
        relay = replace(delivery, name=self.free_name(name))
        passed = replace(taken, producer=relay.name)
        return self.with_operators([relay, replace(delivery, inputs=(passed,))]), relay.name

    def reading(self, producers: Mapping[str, str]) -> Landscape:
        """Returns the landscape without some operators; their readers read the given producers instead."""

        def producer(name: str) -> str:
            return producer(producers[name]) if name in producers else name

        operators = {
            name: replace(one, inputs=tuple(replace(taken, producer=producer(taken.producer)) for taken in one.inputs))
            for name, one in self.operators.items()
            if name not in producers
        }
        return replace(self, operators=operators)

    def free_name(self, query: str) -> str:
        """Returns an unused name for another operator of a query."""
        return next(name for n in count(1) if (name := f"{query}/{n}") not in self.operators)

    def under(self, statistics: Statistics, topology: Topology | None = None) -> Landscape:
        """Returns the same operators with other statistics, or with other costs and capacities of the same sites."""

        def volume(operator: Operator, taken: Input) -> float:
            if operator.name in self.queries and not operator.is_whole:
                return delivered_bytes(self.queries[operator.name].query, statistics)
            return view_bytes(taken.view, statistics)

        operators = {
            name: replace(one, inputs=tuple(replace(taken, bytes=volume(one, taken)) for taken in one.inputs))
            for name, one in self.operators.items()
        }
        return Landscape(topology or self.topology, statistics, operators, self.queries)

    def with_operators(self, operators: Iterable[Operator], query: SinkQuery | None = None) -> Landscape:
        """Returns the landscape with operators added or replaced by name."""
        named = {**self.operators, **{operator.name: operator for operator in operators}}
        queries = self.queries if query is None else {**self.queries, query.name: query}
        return replace(self, operators=named, queries=queries)


def bare(topology: Topology, statistics: Statistics, schemas: Mapping[str, Iterable[str]]) -> Landscape:
    """Returns a network with only its base sources; `schemas` has the columns of each stream."""
    sources = {}
    for stream, columns in schemas.items():
        name = stream.lower()
        site = statistics.stream(name).site
        if site not in topology.positions:
            raise TopologyError(f"stream '{name}' has unknown site '{site}'", hint="check it against 'sites'")
        sources[f"@{name}"] = Operator(f"@{name}", topology.position(site), base_view(name, columns), ())
    return Landscape(topology, statistics, sources)


def view_bytes(view: View, statistics: Statistics) -> float:
    """Returns the bytes per second of a view."""
    return view.rate(statistics) * view.width(statistics)
