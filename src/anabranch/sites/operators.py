"""Operators that can run: a query over links or over a stream, and what its readers take of it.

| kind | reads | makes |
|---|---|---|
| gate | a stream | every row of it that is not late, with its event time |
| join | the links of several operators | combinations, with the event times of all rows inside |
| relay | one link | its rows again, where another query reads what is delivered |
| groups | one link | the groups of one user's query, each with its boundary; at its last join or at its sink |
| delivery | one link | the results of one user's query |

Late rows are judged once, at the gate of their stream; so all readers agree on them. A delivery has its own operator: a
join may move to another site or change, while the delivery with its sink and its checkpoint stays.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from anabranch.lang.schema import Schema
from anabranch.plan.query import Query
from anabranch.run.links.shape import Shape

GATE, JOIN, RELAY, GROUPS, DELIVERY = "gate", "join", "relay", "groups", "delivery"


@dataclass(frozen=True)
class InputSpec:
    """One derived stream of an operator: the operator that makes it, and the part of it that is taken."""

    stream: str
    """The name of the stream in the operator's query."""
    producer: str
    shape: Shape
    schema: Schema
    """The columns of the shape, with their types."""


@dataclass(frozen=True)
class OperatorSpec:
    """An operator at a site. Its name says what it computes and where: another filter or site is another operator."""

    name: str
    site: str
    kind: str
    query: Query
    inputs: tuple[InputSpec, ...] = ()
    serves: str = ""
    """The stream of a gate, the query of a delivery."""

    @cached_property
    def schema_names(self) -> tuple[str, ...]:
        return self.query.schema.names


@dataclass(frozen=True)
class Program:
    """All operators of a deployment by name, producers first."""

    operators: Mapping[str, OperatorSpec]

    def readers(self, producer: str) -> list[tuple[OperatorSpec, InputSpec]]:
        """The inputs that take an operator's rows."""
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
    """The name of the link from a producer to one input of a reader, opened with a version of the deployment.

    A query that leaves and comes back gets links of its own: nothing of its first life is left in them.
    """
    return f"{producer}--{reader}.{stream}.{opened}"


def control_link(gate: str) -> str:
    """The name of the link by which the controller tells a silent gate how far the others are."""
    return f"control--{gate}"


def operator_name(title: str, *content: object) -> str:
    """A name for files, unique by content."""
    digest = hashlib.sha256("\n".join(map(str, content)).encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_]+', '-', title).strip('-')}.{digest}"
