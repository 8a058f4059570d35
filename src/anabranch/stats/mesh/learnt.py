"""A learnt mesh with its costs for each relation: the message from mesh searches to plan decisions.

It is serialised as JSON, so it may come from a slot of a running query or from an earlier sample. Costs are seconds of
one core per row of a relation; `gain` is relative to the single best route of each relation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from anabranch.plan.mesh import Mesh, parse_mesh

EQUALLY: Mapping[str, float] = MappingProxyType({})
"""Rates if none are known: all relations count equally."""


@dataclass(frozen=True)
class LearntRoutes:
    """The routes of new rows of one relation, and their cost."""

    reason: str
    shares: tuple[float, ...]
    """The fraction of the sampled rows on each route."""
    route_seconds: tuple[float, ...]
    """The operator seconds per row of each route."""
    seconds: float
    """The total of routes, tests and overhead."""
    single_seconds: float
    """The cost of the best single route."""
    running_seconds: float
    """The cost of the running mesh, or of the best single route if none runs."""
    certain_gain: float = 0.0
    """The gain over the best single route on held-out rows, less its standard error."""
    overhead: float = 0.0
    """The fixed cost of the routes within `seconds`, independent of their number of rows."""

    @property
    def certain_seconds(self) -> float:
        """The cost per row by the smaller of two gains: on the sampled rows, or on held-out rows."""
        return max(self.seconds, self.single_seconds / (1 + self.certain_gain))


@dataclass(frozen=True)
class Profiled:
    """Lookups, matches and seconds of operators that were run on sampled rows, summed over relations.

    They convert measured seconds to those of a cost model, so that a mesh can be compared with a plan.
    """

    lookups: float
    matches: float
    seconds: float
    fan_outs: Mapping[str, float] = field(default_factory=dict)
    """For pairs of relations that share a predicate, "a b": the matches in the second of a row of the first."""


@dataclass(frozen=True)
class LearntMesh:
    """A mesh for a whole query, with the learnt routes of each relation."""

    mesh: Mesh
    relations: Mapping[str, LearntRoutes]
    """Relations without a sample are missing."""
    took: float = 0.0
    """Seconds that the search took."""
    profiled: Profiled | None = None
    """The operator measurements, or None."""

    @property
    def is_mesh(self) -> bool:
        """True if some relation has several routes or existence probes, so that the mesh is not an mjoin."""
        return not all(way.is_plain for way in self.mesh.ways)

    def load(self, rates: Mapping[str, float] = EQUALLY) -> float:
        """Returns the cores that the mesh needs for these rows per second."""
        return sum(_rate(rates, name) * each.certain_seconds for name, each in self.relations.items())

    def single_load(self, rates: Mapping[str, float] = EQUALLY) -> float:
        """Returns the cores that the single best routes need."""
        return sum(_rate(rates, name) * each.single_seconds for name, each in self.relations.items())

    def running_load(self, rates: Mapping[str, float] = EQUALLY) -> float:
        """Returns the cores that the running routes need."""
        return sum(_rate(rates, name) * each.running_seconds for name, each in self.relations.items())

    def gain(self, rates: Mapping[str, float] = EQUALLY) -> float:
        """Returns the gain over the single best routes: 0.25 is a quarter more rows in the same time."""
        load = self.load(rates)
        return self.single_load(rates) / load - 1 if load > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "plan": str(self.mesh),
            "isMesh": self.is_mesh,
            "gain": self.gain(),
            "relations": {name: asdict(each) for name, each in self.relations.items()},
            "seconds": self.took,
            "profiled": None
            if self.profiled is None
            else {**vars(self.profiled), "fan_outs": dict(self.profiled.fan_outs)},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LearntMesh:
        relations = {name: _routes(each) for name, each in value["relations"].items()}
        profiled = value.get("profiled")
        return cls(
            parse_mesh(value["plan"]), relations, value["seconds"], None if profiled is None else Profiled(**profiled)
        )


def _routes(value: Mapping[str, Any]) -> LearntRoutes:
    lists = {name: tuple(value[name]) for name in ("shares", "route_seconds")}
    return LearntRoutes(**{**value, **lists})


def _rate(rates: Mapping[str, float], name: str) -> float:
    return rates.get(name, 0.0) if rates else 1.0
