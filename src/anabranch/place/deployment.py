"""The deployment of one query: a value of names, texts and numbers that can be written as JSON.

It names the site of each sub-plan, the links of each flow, the running operators that are reused, and those that are
relaxed.

Limit: it describes a plan to a reader but cannot be executed. Views are texts without their columns, the inputs of a
join are names without their slots, predicates are texts, and the SELECT list and the grouping are absent. Running
operators are compiled from the landscape (`sites.compile`), and their files have all of that (`sites.codec`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class PlacedOperator:
    """An operator to start: its site, its sub-plan over the query's relations, and the view it offers."""

    name: str
    site: str
    plan: str
    view: str
    predicates: tuple[str, ...]
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Flow:
    """A stream from a producer to a consumer along links, in bytes per second; `keeps` filters at the producer."""

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
    """A query's plan and its sites; `cost` is the added network usage, including relaxed operators."""

    query: str
    sink: str
    planner: str
    plan: str
    operators: tuple[PlacedOperator, ...]
    flows: tuple[Flow, ...]
    reused: tuple[str, ...]
    relaxed: tuple[Relaxation, ...]
    cost: float
    cost_by_reuse: float | None
    """The cost of the best plan found that uses running operators; None if none was found."""
    cost_by_new: float | None
    """The cost of the best plan found with new operators only; None if none was searched or found."""
    considered: int
    evaluated: int
    searches: int
    """The searches that `considered` and `evaluated` add up: with and without reuse, by hierarchy, within limits."""
    reason: str

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)
