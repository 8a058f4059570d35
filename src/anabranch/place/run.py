"""Planners by name, and the planning of whole workloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import process_time

from anabranch.errors import SpecError
from anabranch.place.bottom_up import BottomUp, NetPresentCost
from anabranch.place.coordinates import embed
from anabranch.place.exhaustive import Exhaustive
from anabranch.place.hierarchy import Hierarchy, build, zones
from anabranch.place.integer_program import IntegerProgram
from anabranch.place.junction import Junction
from anabranch.place.landscape import Landscape, SinkQuery
from anabranch.place.phased import InNetwork, PlanThenDeploy, Relaxation
from anabranch.place.planner import Placement, Planner, cheapest
from anabranch.place.top_down import TopDown
from anabranch.place.topology import Topology


@dataclass(frozen=True)
class Options:
    """Options of planners; a planner ignores those that it does not use."""

    max_cs: int = 32
    other_cs: tuple[int, ...] = ()
    """Further cluster sizes; the cheapest placement over the hierarchies of all sizes is taken (3.1.2)."""
    zones: int = 5
    iterations: int = 4000
    seed: int = 0


HIERARCHICAL: dict[str, Callable[[Hierarchy], Planner]] = {
    "top-down": TopDown,
    "bottom-up": BottomUp,
    "npc": NetPresentCost,
}
"""The planners that use a hierarchy of clusters."""

PLANNERS: dict[str, Callable[[Topology, Options], Planner]] = {
    "exhaustive": lambda topology, options: Exhaustive(),
    "top-down": lambda topology, options: TopDown(build(topology, options.max_cs, options.seed)),
    "bottom-up": lambda topology, options: BottomUp(build(topology, options.max_cs, options.seed)),
    "npc": lambda topology, options: NetPresentCost(build(topology, options.max_cs, options.seed)),
    "junction": lambda topology, options: Junction(),
    "plan-then-deploy": lambda topology, options: PlanThenDeploy(),
    "in-network": lambda topology, options: InNetwork(zones(topology, options.zones, options.seed)),
    "relaxation": lambda topology, options: Relaxation(embed(topology, options.seed, iterations=options.iterations)),
    "integer-program": lambda topology, options: IntegerProgram(),
}
DEFAULT = "junction"
"""The planner of `anabranch place` and `anabranch deploy`: nearest to the optimum, and needs no hierarchy."""
COMPARED = tuple(name for name in PLANNERS if name != "integer-program")
"""The planners that `--compare` runs; the integer program is for a handful of sites."""


@dataclass(frozen=True)
class Cheapest:
    """Several planners; each query gets the cheapest of their placements."""

    name: str
    planners: tuple[Planner, ...]

    def plan(self, landscape: Landscape, query: SinkQuery) -> Placement:
        return cheapest([planner.plan(landscape, query) for planner in self.planners])


@dataclass(frozen=True)
class Run:
    """The result of planning queries one after another; `seconds` is the total CPU time."""

    planner: str
    decisions: tuple[Placement, ...]
    landscape: Landscape
    seconds: float

    @property
    def considered(self) -> int:
        return sum(decision.deployment.considered for decision in self.decisions)

    @property
    def evaluated(self) -> int:
        return sum(decision.deployment.evaluated for decision in self.decisions)

    @property
    def joins(self) -> int:
        return sum(operator.is_join for operator in self.landscape.operators.values())

    @property
    def filters(self) -> int:
        """The number of running filters: one for every input that takes less than its producer offers."""
        operators = self.landscape.operators
        return sum(
            any(
                mine.selection != theirs.selection
                for mine, theirs in zip(taken.view.slots, operators[taken.producer].view.slots, strict=True)
            )
            for operator in operators.values()
            for taken in operator.inputs
        )


def planner_named(name: str, topology: Topology, options: Options) -> Planner:
    """Returns the planner with that name for a network."""
    if name in HIERARCHICAL:
        return planner_on(name, hierarchies(topology, options))
    if name not in PLANNERS:
        raise SpecError(f"unknown planner '{name}'", hint=f"one of {', '.join(PLANNERS)}")
    return PLANNERS[name](topology, options)


def hierarchies(topology: Topology, options: Options) -> tuple[Hierarchy, ...]:
    """Builds one hierarchy for each cluster size."""
    return tuple(build(topology, size, options.seed) for size in (options.max_cs, *options.other_cs))


def planner_on(name: str, known: Sequence[Hierarchy]) -> Planner:
    """Returns the planner with that name on some hierarchies of one network."""
    planners = [HIERARCHICAL[name](hierarchy) for hierarchy in known]
    return planners[0] if len(planners) == 1 else Cheapest(name, tuple(planners))


def deploy(planner: Planner, landscape: Landscape, queries: Sequence[SinkQuery]) -> Run:
    """Plans all queries in order, each on top of those before it."""
    decisions = []
    seconds = 0.0
    for query in queries:
        start = process_time()
        decision = planner.plan(landscape, query)
        seconds += process_time() - start
        decisions.append(decision)
        landscape = decision.landscape
    return Run(planner.name, tuple(decisions), landscape, seconds)
