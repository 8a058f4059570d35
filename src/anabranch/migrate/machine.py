"""Controls a migration over the slots of a query, without I/O: events in, instructions out.

A migration goes from the current plan through the plans of an itinerary to the last one. Every slot advances
independently: it gets the next plan when it has completed the change to the previous one, so slots may run different
plans for a while. The host reports events and follows the instructions before the slot's next step:

    BatchEnded (a report of every slot) ──►                   ──► Run(slot, plan, strategy)
    ChangeRefused (by an engine)        ──►     Migration     ──► Completed(plan)
    AbortAsked (by a person or a gate)  ──►                   ──► GivenUp(plan, reason)

Invariant: every slot ends on the last plan or every slot ends on the first. A refusal or an abort reverses the
migration: the current step is undone, and completed steps are changed back by moving state. A crash is not an event:
slots restart with some plan of the itinerary, their next report shows which, and the migration continues from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from anabranch.errors import InvariantBroken
from anabranch.plan.mesh import Plan


@dataclass(frozen=True)
class Standing:
    """The plan of a slot after a batch, and whether the slot is still migrating to it."""

    plan: Plan
    is_migrating: bool = False


@dataclass(frozen=True)
class BatchEnded:
    """A batch was committed; `slots` has the standing of every participating slot."""

    batch: int
    slots: Mapping[int, Standing]

    def __str__(self) -> str:
        stands = ", ".join(
            f"slot {slot} {'on its way to' if report.is_migrating else 'runs'} {report.plan}"
            for slot, report in self.slots.items()
        )
        return f"batch {self.batch} ended: {stands}"


@dataclass(frozen=True)
class ChangeRefused:
    """A slot could not change its plan and keeps the one it had."""

    slot: int
    reason: str

    def __str__(self) -> str:
        return f"slot {self.slot} refused: {self.reason}"


@dataclass(frozen=True)
class AbortAsked:
    """A user or a gate cancels the migration."""

    reason: str

    def __str__(self) -> str:
        return f"abort asked: {self.reason}"


Event: TypeAlias = BatchEnded | ChangeRefused | AbortAsked


@dataclass(frozen=True)
class Run:
    """The slot runs this plan from its next step on, or migrates to it by that strategy.

    A slot that is sent back to the plan that it is leaving undoes the current migration.
    """

    slot: int
    plan: Plan
    strategy: str


@dataclass(frozen=True)
class Completed:
    """Every slot runs the new plan."""

    plan: Plan


@dataclass(frozen=True)
class GivenUp:
    """Every slot runs the old plan again."""

    plan: Plan
    reason: str


Instruction: TypeAlias = Run | Completed | GivenUp


class Migration:
    """One migration of some slots of a query; `events` has its events so far, for users and errors."""

    def __init__(self, old: Plan, itinerary: tuple[Plan, ...], strategy: str, slots: Iterable[int]) -> None:
        self.plans = (old, *itinerary)
        self.strategy = strategy
        self.events: list[str] = []
        self.is_over = False
        self._targets = dict.fromkeys(slots, 0)
        self._reason: str | None = None

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(self._targets)

    @property
    def new(self) -> Plan:
        return self.plans[-1]

    def begin(self) -> list[Instruction]:
        """Returns the first instructions, before any event."""
        self._note(f"from {self.plans[0]} to {self.new} by {self.strategy}, {len(self.plans) - 1} steps")
        return (
            [self._send(slot, 1) for slot in self._targets] if len(self.plans) > 1 else [self._end(Completed(self.new))]
        )

    def step(self, event: Event) -> list[Instruction]:
        """Returns the instructions that follow from an event."""
        if self.is_over:
            raise self._broken(f"{event}, after the end")
        self._note(str(event))
        match event:
            case BatchEnded(slots=reports):
                return self._go_on(reports)
            case ChangeRefused(reason=reason) | AbortAsked(reason=reason):
                return self._turn_round(reason)

    def _go_on(self, reports: Mapping[int, Standing]) -> list[Instruction]:
        instructions: list[Instruction] = []
        settled = 0
        for slot, target in self._targets.items():
            report = reports.get(slot)
            if report is None or report.is_migrating:
                continue
            if report.plan not in self.plans:
                raise self._broken(f"slot {slot} runs '{report.plan}', which is not of this migration")
            at = self.plans.index(report.plan)
            if self._reason is not None:
                if at > 0:
                    instructions.append(self._send(slot, 0))
                else:
                    settled += 1
            elif at == len(self.plans) - 1:
                settled += 1
            else:
                # A slot that crashed may have restarted behind or ahead of its target.
                instructions.append(self._send(slot, at + 1 if at >= target else target))
        if settled < len(self._targets):
            return instructions
        return [self._end(Completed(self.new) if self._reason is None else GivenUp(self.plans[0], self._reason))]

    def _turn_round(self, reason: str) -> list[Instruction]:
        if self._reason is not None:
            return []
        self._reason = reason
        return [self._send(slot, 0) for slot in self._targets]

    def _send(self, slot: int, to: int) -> Run:
        self._targets[slot] = to
        strategy: str = self.strategy if to else "moving-state"
        self._note(f"slot {slot} must run {self.plans[to]} by {strategy}")
        return Run(slot, self.plans[to], strategy)

    def _end(self, instruction: Completed | GivenUp) -> Completed | GivenUp:
        self.is_over = True
        self._note(str(instruction))
        return instruction

    def _note(self, line: str) -> None:
        self.events.append(line)

    def _broken(self, what: str) -> InvariantBroken:
        return InvariantBroken(f"a migration reached an impossible state: {what}", detail="\n".join(self.events))
