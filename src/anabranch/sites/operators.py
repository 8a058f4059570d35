"""Runnable operators: a query over links or over a stream, and the part that each reader takes.

| kind | reads | makes |
|---|---|---|
| gate | a stream | every row of it that is not late, with its event time |
| join | the links of several operators | combinations, with the event times of all their rows |
| relay | one link | its rows again, where another query reads a delivered view |
| groups | one link | the groups of one user's query, each with its boundary; at its last join or at its sink |
| delivery | one link | the results of one user's query |

The gate of a stream is the only place that decides which rows are late, so all readers agree. A delivery is a separate
operator: a join may move to another site or change, while the delivery stays with its sink and its checkpoint.

Invariant: the name of an operator determines its computation and its site.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from anabranch.lang.schema import Schema
from anabranch.place.view import View
from anabranch.plan.query import Query
from anabranch.run.links.directory import CONTROL
from anabranch.run.links.shape import Shape

GATE, JOIN, RELAY, GROUPS, DELIVERY = "gate", "join", "relay", "groups", "delivery"


@dataclass(frozen=True)
class InputSpec:
    """One derived stream of an operator: its producer, and the part of its rows that is read."""

    stream: str
    """The name of the stream in the operator's query."""
    producer: str
    shape: Shape
    schema: Schema
    """The columns of the shape, with their types."""


@dataclass(frozen=True)
class OperatorSpec:
    """An operator at a site. Its name covers its computation and site: another filter or site is another operator."""

    name: str
    site: str
    kind: str
    query: Query
    inputs: tuple[InputSpec, ...] = ()
    serves: str = ""
    """The stream of a gate, or the query of a delivery."""


@dataclass(frozen=True)
class PlannedFlow:
    """The estimate of one input of an operator: bytes per second, and the cost of a byte."""

    bytes: float
    distance: float
    view: View | None = None
    """The rows that are taken; None for groups."""

    @property
    def cost(self) -> float:
        return self.bytes * self.distance


@dataclass(frozen=True)
class Program:
    """All operators of a deployment by name, producers first."""

    operators: Mapping[str, OperatorSpec]
    flows: Mapping[tuple[str, str], PlannedFlow] = field(default_factory=dict)
    """By reader and stream."""

    def readers(self, producer: str) -> list[tuple[OperatorSpec, InputSpec]]:
        """Returns the inputs that read an operator's rows."""
        return [
            (operator, taken)
            for operator in self.operators.values()
            for taken in operator.inputs
            if taken.producer == producer
        ]

    def at(self, site: str) -> list[OperatorSpec]:
        return [operator for operator in self.operators.values() if operator.site == site]

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(operator.site for operator in self.operators.values()))


def link_name(producer: str, reader: str, stream: str, opened: int) -> str:
    """Returns the name of the link from a producer to one input of a reader, opened in a version of the deployment.

    A query that is removed and added again gets new links, without rows of its earlier run.
    """
    return f"{producer}--{reader}.{stream}.{opened}"


def control_link(gate: str) -> str:
    """Returns the name of the link by which the controller sends the progress of other gates to a silent gate."""
    return f"{CONTROL}--{gate}"


def operator_name(title: str, *content: object) -> str:
    """Returns a file name that is unique by content."""
    digest = hashlib.sha256("\n".join(map(str, content)).encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_]+', '-', title).strip('-')}.{digest}"
