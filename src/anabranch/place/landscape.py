"""Everything that runs in the network: base sources, joins and deliveries, and the streams that flow between them.

A landscape is immutable; deploying a query gives a new one, so a refused query leaves the deployments so far unharmed.
An operator with no input is a base source, with two a join, with one a delivery to a sink. An input names its producer
and the view it takes of it; what the producer makes beyond that view stays behind, at the producer, in a telescoping
filter. The cost of a landscape is the sum over all inputs of bytes a second times distance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from anabranch.errors import TopologyError
from anabranch.place.statistics import Statistics
from anabranch.place.topology import Topology
from anabranch.place.view import Predicate, Slot, View, base_view, needs
from anabranch.plan.query import Query


@dataclass(frozen=True)
class SinkQuery:
    """A query and the site that wants its results."""

    name: str
    query: Query
    sink: str


@dataclass(frozen=True)
class Load:
    """CPU in seconds of work a second, and memory in bytes."""

    cpu: float = 0.0
    memory: float = 0.0

    def __add__(self, other: Load) -> Load:
        return Load(self.cpu + other.cpu, self.memory + other.memory)


NOTHING = Load()


@dataclass(frozen=True)
class Input:
    """What an operator takes of a producer; slot i of the view becomes slot `slots[i]` of the operator's own view."""

    producer: str
    view: View
    slots: tuple[int, ...]
    bytes: float


@dataclass(frozen=True)
class Operator:
    """A running operator at a site (by position), the view it offers to everyone, and what it needs of its site."""

    name: str
    site: int
    view: View
    inputs: tuple[Input, ...]
    load: Load

    @property
    def is_base(self) -> bool:
        return not self.inputs

    @property
    def is_join(self) -> bool:
        return len(self.inputs) > 1

    @property
    def is_delivery(self) -> bool:
        return len(self.inputs) == 1


@dataclass(frozen=True)
class Widening:
    """Operators with wider views, and for each flow that grows the extra bytes a second, its origin and its end."""

    operators: Mapping[str, Operator]
    flows: tuple[tuple[float, int, int], ...]


@dataclass(frozen=True)
class Landscape:
    """The operators by name, on a network, under statistics; `queries` are those already deployed, by name."""

    topology: Topology
    statistics: Statistics
    operators: Mapping[str, Operator]
    queries: Mapping[str, SinkQuery] = field(default_factory=dict)

    @cached_property
    def cost(self) -> float:
        """Network usage: bytes a second times distance, over all flows."""
        return self.cost_into(self.operators)

    def cost_into(self, names: Iterable[str]) -> float:
        """The network usage of the flows into some operators; those that do not run have none."""
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
            found.setdefault(operator.view.signature, []).append(operator)
        return {signature: tuple(several) for signature, several in found.items()}

    @cached_property
    def loads(self) -> dict[int, Load]:
        """What runs at each busy site."""
        found: dict[int, Load] = {}
        for operator in self.operators.values():
            if operator.is_join:
                found[operator.site] = found.get(operator.site, NOTHING) + operator.load
        return found

    def overloaded(self, sites: Iterable[int]) -> tuple[int, ...]:
        """Those of the sites that are asked for more than they have."""
        if not self.topology.is_limited:
            return ()
        return tuple(site for site in sites if not self._fits(site, self.loads.get(site, NOTHING)))

    def _fits(self, site: int, load: Load) -> bool:
        limits = self.topology.sites[site]
        return load.cpu <= limits.cpu and load.memory <= limits.memory

    def fits(self, site: int, extra: Load) -> bool:
        """True when a site can take on more."""
        return self._fits(site, self.loads.get(site, NOTHING) + extra)

    def relaxed(self, name: str, wanted: View) -> Widening | None:
        """The operators to change so that one of them covers a view, and how much wider the flows between them get.

        A delivery is offered as it is: nobody changes what another sink receives. Base sources cover everything.
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
            # Estimates of different filters need not agree; a wider view still never carries less.
            volume = max(taken.bytes, view_bytes(wider, self.statistics))
            flows.append((volume - taken.bytes, self.operators[taken.producer].site, operator.site))
            inputs.append(replace(taken, view=wider, bytes=volume))
        load = join_load([taken.view for taken in inputs], view, self.statistics)
        changed[name] = replace(operator, view=view, inputs=tuple(inputs), load=load)
        return True

    def with_operators(self, operators: Iterable[Operator], query: SinkQuery | None = None) -> Landscape:
        """The landscape with operators added or replaced by name."""
        named = {**self.operators, **{operator.name: operator for operator in operators}}
        queries = self.queries if query is None else {**self.queries, query.name: query}
        return replace(self, operators=named, queries=queries)


def bare(topology: Topology, statistics: Statistics, schemas: Mapping[str, Iterable[str]]) -> Landscape:
    """A network in which nothing runs but the base sources; `schemas` gives the columns of each stream."""
    sources = {}
    for stream, columns in schemas.items():
        name = stream.lower()
        site = statistics.stream(name).site
        if site not in topology.positions:
            raise TopologyError(f"stream '{name}' is born at unknown site '{site}'", hint="check it against 'sites'")
        sources[f"@{name}"] = Operator(f"@{name}", topology.position(site), base_view(name, columns), (), NOTHING)
    return Landscape(topology, statistics, sources)


def view_bytes(view: View, statistics: Statistics) -> float:
    """Bytes a second of a view."""
    return view.rate(statistics) * view.width(statistics)


def join_load(inputs: Iterable[View], output: View, statistics: Statistics) -> Load:
    """What a join needs: every row of an input enters its state and probes the other; results are written once.

    A row of a derived input stays until the shortest of its windows has passed, as the engine keeps it.
    """
    work, memory = statistics.work, 0.0
    cpu = output.rate(statistics) * work.row_out
    for view in inputs:
        rate = view.rate(statistics)
        cpu += rate * work.row_in
        memory += rate * view.shortest_range * view.width(statistics)
    return Load(cpu, memory)


def complaints(landscape: Landscape, query: SinkQuery) -> tuple[str, ...]:
    """Why what runs does not compute the query at its sink; empty when it does.

    The delivery's inputs are followed to the base sources. Every input must be covered by what its producer surely
    makes, every join must make of its inputs exactly its view, and the delivery's view must be the query's own join
    graph.
    """
    found: list[str] = []
    delivery = landscape.operators.get(query.name)
    wanted = needs(query.query)[-1].view
    if delivery is None:
        return (f"nothing is delivered for query '{query.name}'",)
    if landscape.topology.sites[delivery.site].name != query.sink:
        found.append(f"query '{query.name}' is delivered to another site than '{query.sink}'")
    if delivery.view != wanted:
        found.append(f"query '{query.name}' is delivered '{delivery.view}' where it asked for '{wanted}'")
    _follow(landscape, delivery, found, ())
    return tuple(found)


def _follow(landscape: Landscape, operator: Operator, found: list[str], above: tuple[str, ...]) -> None:
    if operator.name in above:
        found.append(f"operator '{operator.name}' feeds itself")
        return
    if operator.is_base:
        return
    slots: dict[int, Slot] = {}
    checked = set()
    for taken in operator.inputs:
        producer = landscape.operators.get(taken.producer)
        if producer is None:
            found.append(f"operator '{operator.name}' reads '{taken.producer}', which does not run")
            continue
        if producer.view.signature != taken.view.signature:
            found.append(f"operator '{operator.name}' takes another join than '{producer.name}' makes")
        elif not producer.view.covers(taken.view):
            found.append(f"'{producer.name}' holds back rows or columns that '{operator.name}' asks of it")
        if set(taken.slots) & set(slots):
            found.append(f"operator '{operator.name}' takes one stream from two inputs")
        slots |= dict(zip(taken.slots, taken.view.slots, strict=True))
        checked |= {predicate.moved(taken.slots) for predicate in taken.view.predicates}
        _follow(landscape, producer, found, (*above, operator.name))
    if sorted(slots) != list(range(len(operator.view.slots))):
        found.append(f"operator '{operator.name}' does not read all its streams")
        return
    for position, slot in enumerate(operator.view.slots):
        have = slots[position]
        if have.stream != slot.stream or not replace(have, columns=have.columns | slot.columns).covers(slot):
            found.append(f"operator '{operator.name}' promises more of '{slot.stream}' than it reads")
        elif not slot.columns <= have.columns:
            found.append(f"operator '{operator.name}' promises columns of '{slot.stream}' that it does not read")
    stray = [p for p in checked if not any(_contains(whole, p) for whole in operator.view.predicates)]
    if stray:
        found.append(f"operator '{operator.name}' reads rows that a foreign predicate '{stray[0]}' has thinned out")
    for predicate in operator.view.predicates - checked:
        for position, reads in zip(predicate.positions, predicate.reads, strict=True):
            if not reads <= slots[position].columns:
                found.append(
                    f"operator '{operator.name}' cannot check '{predicate}' without {', '.join(sorted(reads))}"
                )


def _contains(whole: Predicate, part: Predicate) -> bool:
    """True when the part is the whole predicate, or an equality among some members of a larger one."""
    if not whole.is_equality or not part.is_equality:
        return bool(whole == part)
    members = set(zip(whole.positions, whole.text.split(" = "), strict=True))
    return set(zip(part.positions, part.text.split(" = "), strict=True)) <= members
