"""What planning decides about one query, as a plain value of names, texts and numbers that travels as JSON.

It says which site runs which sub-plan, which stream flows along which links, which running operators are used as they
are and which have their filters relaxed. Whoever runs a deployment needs nothing else.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class PlacedOperator:
    """An operator to start: where, the sub-plan over the query's relations, and the view it offers."""

    name: str
    site: str
    plan: str
    view: str
    predicates: tuple[str, ...]
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Flow:
    """A stream from a producer to a consumer along links, in bytes a second; `keeps` is the filter at the producer."""

    producer: str
    consumer: str
    path: tuple[str, ...]
    bytes: float
    keeps: str


@dataclass(frozen=True)
class Relaxation:
    """A running operator whose filter, window or columns are widened for this query."""

    operator: str
    before: str
    after: str


@dataclass(frozen=True)
class Deployment:
    """A query's plan and its places; `cost` is what it adds to the network usage, relaxing included."""

    query: str
    sink: str
    planner: str
    plan: str
    operators: tuple[PlacedOperator, ...]
    flows: tuple[Flow, ...]
    reused: tuple[str, ...]
    relaxed: tuple[Relaxation, ...]
    cost: float
    considered: int
    evaluated: int
    reason: str

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Deployment:
        """The deployment that `to_json` wrote."""
        entry: dict[str, Any] = json.loads(text)
        entry["operators"] = tuple(
            PlacedOperator(**{**one, "predicates": tuple(one["predicates"]), "inputs": tuple(one["inputs"])})
            for one in entry["operators"]
        )
        entry["flows"] = tuple(Flow(**{**one, "path": tuple(one["path"])}) for one in entry["flows"])
        entry["reused"] = tuple(entry["reused"])
        entry["relaxed"] = tuple(Relaxation(**one) for one in entry["relaxed"])
        return cls(**entry)
