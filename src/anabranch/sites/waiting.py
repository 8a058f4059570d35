"""What a deployment waits for, and the event time of silent streams.

A change ends when event time has passed its cut, so a silent stream would delay it. A stream with an idle timeout does
not: while other streams advance, its gate follows them; while all are silent, event time advances with the clock, minus
the idle timeout. Invariant: gates receive this as *ticks* over a link, so a replay reads the same ticks.

Limit: a row that arrives after its stream was considered idle, and is older than the tick, is late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.lang.window import instant_text, parse_duration
from anabranch.sites.observed import Observed
from anabranch.sites.operators import GATE
from anabranch.sites.root import LEASE, Orders, now

STEPS = 4
"""While all streams are silent, a gate gets a tick when it would advance by this fraction of its idle timeout."""


@dataclass(frozen=True)
class GateProgress:
    """The progress of a gate; times in microseconds."""

    watermark: int | None
    newest: int | None
    """The newest event time when it last had rows."""
    silence: int
    """The time since then."""
    timeout: int | None
    disorder: int

    @property
    def is_silent(self) -> bool:
        return self.timeout is not None and self.silence >= self.timeout

    @property
    def by_the_clock(self) -> int | None:
        """The watermark of a silent gate, if event time moves with the clock."""
        if self.newest is None or self.timeout is None:
            return None
        return self.newest - self.disorder + self.silence - self.timeout


def ticks(gates: Mapping[str, GateProgress]) -> dict[str, int]:
    """Returns the event time to which each silent gate must advance."""
    silent = {name: gate for name, gate in gates.items() if gate.is_silent}
    awake = [gate.watermark for name, gate in gates.items() if name not in silent]
    known = [floor for floor in awake or (gate.by_the_clock for gate in silent.values()) if floor is not None]
    if not known or (awake and len(known) < len(awake)):
        return {}
    floor, found = min(known), {}
    for name, gate in silent.items():
        step = 1 if awake else (gate.timeout or 0) // STEPS
        if gate.watermark is None or floor >= gate.watermark + step:
            found[name] = floor + gate.disorder
    return found


def gates_of(orders: Orders, seen: Observed) -> dict[str, GateProgress]:
    """Returns the progress of all gates that have reported."""
    found = {}
    for name, spec in orders.wanted.operators.items():
        report = seen.operator(name) if spec.kind == GATE else None
        if report is None:
            continue
        # A gate that failed, or whose site does not respond, is not idle: its rows are still to come.
        is_well = report["active"] and report["error"] is None and seen.age(name) < LEASE
        silence = round(1e6 * (now() - report["heard"])) if is_well and report["heard"] is not None else 0
        disorder = spec.query.graph.relations[0].disorder
        timeout = timeout_of(orders.sources[spec.serves].idle_timeout)
        found[name] = GateProgress(report["watermark"], report.get("heard_newest"), silence, timeout, disorder)
    return found


def waits(orders: Orders, seen: Observed) -> list[str]:
    """Returns what the changes in progress wait for, as text; empty if there are none."""
    wanted, found = orders.wanted, {}
    if wanted.waiting:
        new = [wire for wire in wanted.wiring.wires.values() if wire.reader in wanted.waiting]
        for name in sorted({wire.stretches[-1].producer for wire in new} - wanted.waiting):
            if not seen.has_version(name, wanted.version):
                found[name] = f"operator '{name}' at '{wanted.operators[name].site}' to write to its new links"
    for wire in wanted.wiring.wires.values():
        if len(wire.stretches) < 2:
            continue
        before, last = wire.stretches[-2:]
        if last.start is None:
            site = wanted.operators[before.producer].site
            found[before.producer] = f"operator '{before.producer}' at '{site}' to end its link to '{wire.reader}'"
            continue
        for gate in sorted(wanted.gates_of(wire.reader)):
            report = seen.operator(gate)
            reached = None if report is None else report["watermark"]
            if reached is None or reached < last.start:
                stream = wanted.operators[gate].serves
                at = "has no rows" if reached is None else f"is at {instant_text(reached)}"
                rule = "" if orders.sources[stream].idle_timeout else "; it has no idle_timeout"
                found[gate] = f"stream '{stream}' to reach {instant_text(last.start)} (it {at}{rule})"
    return list(found.values())


def timeout_of(text: str | None) -> int | None:
    """Returns the idle timeout of a stream in microseconds; None if disabled."""
    return None if text in (None, "none") else parse_duration(str(text))
