"""The wiring of a deployment: the link from each producer to each of its readers. It can change while operators run.

A *wire* is one input of an operator. It consists of segments, one for each producer that it has had: usually one. A
hand-over adds a segment that begins at an event time, the *cut*; the previous link ends there. Producers request their
readers and readers their inlets for every batch, so a change of the wiring needs no restart. Invariant: the segments of
a wire do not overlap in event time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from anabranch.run.links.feed import BEFORE_ALL, Inlet, Segment
from anabranch.run.links.outlet import Reader
from anabranch.sites.operators import InputSpec, OperatorSpec, link_name


@dataclass(frozen=True)
class Stretch:
    """The rows of a wire from one producer, from `start` on; None while the cut is unknown."""

    producer: str
    taken: InputSpec
    """The part of this producer's rows that the wire reads."""
    start: int | None = BEFORE_ALL
    opened: int = 0
    """The version of the deployment in which the link was opened."""
    proposed: int | None = None
    """The cut proposed to the previous producer, until it has agreed."""


@dataclass(frozen=True)
class Wire:
    """One input of an operator; `since` is the event time from which a query added later is complete."""

    reader: str
    stream: str
    stretches: tuple[Stretch, ...]
    since: int | None = BEFORE_ALL
    """None while unknown: links are open, and the reader does not run yet."""

    def link(self, stretch: Stretch) -> str:
        return link_name(stretch.producer, self.reader, self.stream, stretch.opened)

    def continued(self, producer: str, taken: InputSpec, opened: int) -> Wire:
        """Returns the wire with one more producer, whose start is not known yet."""
        return replace(self, stretches=(*self.stretches, Stretch(producer, taken, None, opened)))

    def proposing(self, at: int) -> Wire:
        """Returns the wire with a proposed end for the producer before the last."""
        return replace(self, stretches=(*self.stretches[:-1], replace(self.stretches[-1], proposed=at)))

    def cut(self, at: int) -> Wire:
        """Returns the wire whose last producer starts at an event time, at which the previous one has agreed to end."""
        last = replace(self.stretches[-1], start=at, proposed=None)
        return replace(self, stretches=(*self.stretches[:-1], last))

    def settled(self) -> Wire:
        """Returns the wire without the producers before the last."""
        return replace(self, stretches=self.stretches[-1:])


@dataclass(frozen=True)
class Wiring:
    """All wires by reader and stream."""

    wires: Mapping[tuple[str, str], Wire]

    def readers(self, producer: str) -> list[Reader]:
        """Returns the readers of an operator, with the cuts of links that must end."""
        found = []
        for wire in self.wires.values():
            ends = {
                one: other.proposed if other.start is None else other.start for one, other in pairwise(wire.stretches)
            }
            found += [
                Reader(wire.link(stretch), stretch.taken.shape, ends.get(stretch))
                for stretch in wire.stretches
                if stretch.producer == producer
            ]
        return found

    def inlets(self, operator: OperatorSpec) -> list[Inlet]:
        """Returns the inlets of an operator; omits segments whose start is unknown."""
        found = []
        for taken in operator.inputs:
            wire = self.wires[operator.name, taken.stream]
            segments = tuple(
                Segment(wire.link(stretch), stretch.start) for stretch in wire.stretches if stretch.start is not None
            )
            relation = next(r for r in operator.query.whole.relations if r.stream == taken.stream)
            since = BEFORE_ALL if wire.since is None else wire.since
            found.append(Inlet(taken.stream, taken.schema.to_arrow(), relation.parts, segments, since))
        return found

    def with_wires(self, wires: Iterable[Wire]) -> Wiring:
        return Wiring({**self.wires, **{(wire.reader, wire.stream): wire for wire in wires}})

    def without(self, readers: Iterable[str]) -> Wiring:
        gone = set(readers)
        return Wiring({key: wire for key, wire in self.wires.items() if key[0] not in gone})

    def producers(self) -> set[str]:
        """Returns the operators that some wire still reads."""
        return {stretch.producer for wire in self.wires.values() for stretch in wire.stretches}
