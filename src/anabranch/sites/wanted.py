"""The wanted state of a deployment and its changes: a value, and pure functions from one state to the next.

A change of the operators needs no barrier and moves no state; all cuts are in event time.

*Adding a query.* New operators get their links first. When every running producer has the new list of readers, E is the
newest event time at any gate, plus one: a row from E on reaches its gate after all links were open. New joins drop
combinations with an older row. An added query has every result whose newest row is from E on. If it reads a running
join, its results may contain older rows, which that join holds; if its joins are new, all rows are from E on.

*Hand-over.* A replaced operator continues beside the new one, which is complete from E + the longest range on. Each
reader gets a cut at or after that time: the old link ends there, once its producer has confirmed that it has written no
newer rows, and the new one begins. A producer that has written newer rows refuses, and a later cut is proposed.

*A lost site.* Another site adopts its joins from their checkpoints; they are then handed over like others.

*Removing a query.* Operators without readers are stopped, readers before producers.

Invariant: `progressed` returns the next state for the observed events, or the same value. A new controller continues
from the file of a failed one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from anabranch.errors import ChangePending, SiteError
from anabranch.lang.window import FOREVER, UNITS
from anabranch.run.links.feed import BEFORE_ALL
from anabranch.run.links.link import NO_BATCH, Link
from anabranch.sites.operators import DELIVERY, GATE, GROUPS, JOIN, RELAY, OperatorSpec, Program
from anabranch.sites.wiring import Stretch, Wire, Wiring

SLACK = UNITS["second"]
"""The distance of the first proposed cut after the newest row; each refusal doubles it."""


@dataclass(frozen=True)
class Wanted:
    """The operators to run, those that wait for their start time, and the wiring."""

    version: int = 0
    operators: Mapping[str, OperatorSpec] = field(default_factory=dict)
    waiting: frozenset[str] = frozenset()
    target: frozenset[str] = frozenset()
    """The operators that remain when a change is complete."""
    born: Mapping[str, int] = field(default_factory=dict)
    """By operator: the version in which it was added; part of the name of its checkpoint."""
    wiring: Wiring = field(default_factory=lambda: Wiring({}))
    since: Mapping[str, int] = field(default_factory=dict)
    """By query: the event time E such that it has exactly the results whose newest row is from E on."""
    rows_from: Mapping[str, int] = field(default_factory=dict)
    """By query: the event time before which no row is part of a result."""
    slack: int = SLACK
    is_stopped: bool = False

    @property
    def running(self) -> list[OperatorSpec]:
        return [operator for name, operator in self.operators.items() if name not in self.waiting]

    @property
    def is_changing(self) -> bool:
        return (
            bool(self.waiting)
            or set(self.operators) != self.target
            or any(len(wire.stretches) > 1 for wire in self.wiring.wires.values())
        )

    def folder(self, operator: str) -> str:
        """Returns the name of an operator's checkpoint; an operator that is added again starts a new one."""
        return f"{operator}.{self.born[operator]}"

    def has_folder(self, folder: str) -> bool:
        """Returns True if a wanted operator has its checkpoint there."""
        return any(self.folder(name) == folder for name in self.operators)

    def oldest(self, operator: str) -> int:
        """Returns the event time before which no row is part of an operator's output."""
        spec = self.operators[operator]
        wires = [self.wiring.wires[operator, taken.stream] for taken in spec.inputs]
        found = [BEFORE_ALL if wire.since is None else wire.since for wire in wires]
        found += [self.oldest(wire.stretches[-1].producer) for wire in wires]
        return max(found, default=BEFORE_ALL)

    def gates_of(self, operator: str) -> set[str]:
        """Returns the gates whose rows reach an operator."""
        spec = self.operators[operator]
        if spec.kind == GATE:
            return {operator}
        wires = [self.wiring.wires[operator, taken.stream] for taken in spec.inputs]
        return {gate for wire in wires for stretch in wire.stretches for gate in self.gates_of(stretch.producer)}


class Seen(Protocol):
    """The observations that a change depends on."""

    def has_version(self, operator: str, version: int) -> bool:
        """Returns True if every future batch of a running operator uses the wiring of a version."""
        ...

    def newest(self, gate: str) -> int | None:
        """Returns the newest event time that a gate has committed; None before the first row."""
        ...

    def link(self, name: str) -> Link: ...


def changed(wanted: Wanted, program: Program) -> Wanted:
    """Returns the first state of a change to another program; it only opens links.

    Several changes may be in progress. Raises ChangePending while operators of an earlier change have not begun, or if
    an input is already being handed over to another producer.
    """
    if wanted.waiting:
        raise ChangePending("the operators of an earlier change have not begun")
    version = wanted.version + 1
    new = {name: spec for name, spec in program.operators.items() if name not in wanted.operators}
    is_first = not wanted.operators
    wires: list[Wire] = []
    for name, spec in program.operators.items():
        for taken in spec.inputs:
            if name in new:
                since = BEFORE_ALL if is_first else None
                wires.append(Wire(name, taken.stream, (Stretch(taken.producer, taken, opened=version),), since))
                continue
            wire = wanted.wiring.wires[name, taken.stream]
            if wire.stretches[-1].producer != taken.producer:
                if len(wire.stretches) > 1:
                    raise ChangePending(f"operator '{name}' is being handed over to another producer")
                _refuse_endless(spec, taken.stream)
                wires.append(wire.continued(taken.producer, taken, version))
    gone = [name for name, spec in wanted.operators.items() if spec.kind == DELIVERY and name not in program.operators]
    queries = {spec.serves for spec in program.operators.values() if spec.kind == DELIVERY}
    return _pruned(
        replace(
            wanted,
            version=version,
            born={**wanted.born, **dict.fromkeys(new, version)},
            operators={**{n: s for n, s in wanted.operators.items() if n not in gone}, **new},
            waiting=frozenset() if is_first else frozenset(new),
            target=frozenset(program.operators),
            wiring=wanted.wiring.without(gone).with_wires(wires),
            since={query: wanted.since.get(query, BEFORE_ALL) for query in queries},
            rows_from={query: wanted.rows_from.get(query, BEFORE_ALL) for query in queries},
            slack=SLACK,
        )
    )


def progressed(wanted: Wanted, seen: Seen) -> Wanted:
    """Returns the next state of a change if the observations allow it, else the same value."""
    if wanted.waiting:
        return _begun(wanted, seen)
    wires: list[Wire] = []
    slack = wanted.slack
    for wire in wanted.wiring.wires.values():
        if len(wire.stretches) > 1:
            moved, is_refused = _handed_over(wanted, wire, seen)
            if moved is not wire:
                wires.append(moved)
            if is_refused:
                slack = 2 * wanted.slack
    if not wires:
        return wanted
    return _pruned(replace(wanted, version=wanted.version + 1, wiring=wanted.wiring.with_wires(wires), slack=slack))


def adopted(wanted: Wanted, lost: str, by: str) -> Wanted:
    """Returns the state in which another site runs the joins and relays of a lost site.

    They continue from their checkpoints with the same offsets; their readers see a restart.
    """
    moved = {
        name: replace(spec, site=by)
        for name, spec in wanted.operators.items()
        if spec.site == lost and spec.kind in (JOIN, RELAY, GROUPS)
    }
    if not moved:
        return wanted
    return replace(wanted, version=wanted.version + 1, operators={**wanted.operators, **moved})


def _begun(wanted: Wanted, seen: Seen) -> Wanted:
    """Starts new operators once all running producers write to their links."""
    new = [wire for wire in wanted.wiring.wires.values() if wire.reader in wanted.waiting]
    producers = {wire.stretches[-1].producer for wire in new} - wanted.waiting
    if not all(seen.has_version(name, wanted.version) for name in producers):
        return wanted
    gates = {gate for name in wanted.waiting for gate in wanted.gates_of(name)}
    newest = max((_newest(wanted, gate, seen) for gate in gates - wanted.waiting), default=BEFORE_ALL)
    start = newest + 1 if newest > BEFORE_ALL else BEFORE_ALL
    begun = replace(wanted, wiring=wanted.wiring.with_wires(_opened(wanted, wire, start) for wire in new))
    joined = [name for name in wanted.waiting if wanted.operators[name].kind == DELIVERY]
    return replace(
        begun,
        version=wanted.version + 1,
        waiting=frozenset(),
        since={**wanted.since, **{wanted.operators[name].serves: start for name in joined}},
        rows_from={**wanted.rows_from, **{wanted.operators[name].serves: begun.oldest(name) for name in joined}},
    )


def _opened(wanted: Wanted, wire: Wire, start: int) -> Wire:
    """Returns a new wire with its start time.

    An operator that only forwards rows accepts all new rows of a running join, even with older rows inside, because the
    join is complete. A join with other inputs needs all its rows to be new.
    """
    (stretch,) = wire.stretches
    if not _passes_on(wanted, wire.reader):
        return replace(wire, since=start)
    is_running = stretch.producer not in wanted.waiting
    return replace(wire, since=BEFORE_ALL, stretches=(replace(stretch, start=start if is_running else BEFORE_ALL),))


def _passes_on(wanted: Wanted, operator: str) -> bool:
    """Returns True for a delivery, relay or grouping of a running join, directly or through another such operator."""
    spec = wanted.operators[operator]
    if spec.kind not in (DELIVERY, RELAY, GROUPS):
        return False
    producer = wanted.operators[spec.inputs[0].producer]
    if producer.name in wanted.waiting:
        return _passes_on(wanted, producer.name)
    return producer.kind != GATE


def _handed_over(wanted: Wanted, wire: Wire, seen: Seen) -> tuple[Wire, bool]:
    """Returns the wire one step closer to its last producer, and whether a cut was refused."""
    before, last = wire.stretches[-2:]
    link = seen.link(wire.link(before))
    if last.start is not None:
        entries = link.entries(link.status().acknowledged - 1, link.status().acknowledged)
        is_through = bool(entries) and entries[-1].tick >= last.start
        return (wire.settled() if is_through else wire), False
    agreed = link.until()
    if agreed is not None:
        return wire.cut(agreed), False
    is_refused = last.proposed is not None and _top(link) >= last.proposed
    if last.proposed is None or is_refused:
        return wire.proposing(_cut(wanted, wire, seen, 2 * wanted.slack if is_refused else wanted.slack)), is_refused
    return wire, False


def _newest(wanted: Wanted, gate: str, seen: Seen) -> int:
    """Returns the newest event time of a gate that any reader can have seen.

    A batch is in the links before it is committed; its readers may have processed it before the gate commits.
    """
    committed = seen.newest(gate)
    written = [_top(seen.link(reader.link)) for reader in wanted.wiring.readers(gate)]
    return max([BEFORE_ALL if committed is None else committed, *written])


def _top(link: Link) -> int:
    """Returns the newest event time of any row sent over a link."""
    last = link.last()
    top = link.entries(last - 1, last)[-1].top if last > NO_BATCH else None
    return BEFORE_ALL if top is None else top


def _cut(wanted: Wanted, wire: Wire, seen: Seen, slack: int) -> int:
    """Returns an event time from which the last producer is complete and that the previous one has not reached."""
    last = wire.stretches[-1]
    complete = _complete_from(wanted, last.producer)
    newest = max((_newest(wanted, gate, seen) for gate in wanted.gates_of(wire.reader)), default=BEFORE_ALL)
    return max(complete, newest + slack)


def _complete_from(wanted: Wanted, producer: str) -> int:
    """Returns the event time from which an operator emits every combination."""
    spec = wanted.operators[producer]
    if spec.kind == GATE:
        return BEFORE_ALL
    found = BEFORE_ALL
    for relation, taken in zip(spec.query.whole.streamed, spec.inputs, strict=True):
        wire = wanted.wiring.wires[producer, taken.stream]
        since, start = wire.since, wire.stretches[0].start
        found = max(found, BEFORE_ALL if start is None else start)
        begun = max(BEFORE_ALL if since is None else since, _complete_from(wanted, taken.producer))
        if begun > BEFORE_ALL:
            found = max(found, begun + max(part.range for part in relation.parts))
    return found


def _refuse_endless(spec: OperatorSpec, stream: str) -> None:
    relation = next(each for each in spec.query.whole.relations if each.stream == stream)
    if any(part.range >= FOREVER for part in relation.parts):
        raise SiteError(
            f"operator '{spec.name}' cannot be handed to another producer",
            detail="its window is unbounded, so the new producer would never be complete",
            hint="remove the query and add it again",
        )


def _pruned(wanted: Wanted) -> Wanted:
    """Returns the state without unwanted operators that have no readers, and without their wires."""
    operators, wiring = dict(wanted.operators), wanted.wiring
    while gone := _unread(operators, wanted.target, wiring):
        operators = {name: spec for name, spec in operators.items() if name not in gone}
        wiring = wiring.without(gone)
    born = {name: version for name, version in wanted.born.items() if name in operators}
    return replace(wanted, operators=operators, wiring=wiring, born=born)


def _unread(operators: Mapping[str, OperatorSpec], target: Iterable[str], wiring: Wiring) -> set[str]:
    return set(operators) - set(target) - wiring.producers()
