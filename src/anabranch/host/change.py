"""A change of plan on its way through the slots of a query, and the records that tell of it.

Slots that come from the same plan go together, by `migrate.machine`, whose instructions say which plan each slot has
next. A record is a mapping that JSON can hold: that a migration began, and how it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.host.slot import SlotPlan
from anabranch.migrate.itinerary import box_by_box
from anabranch.migrate.machine import (
    AbortAsked,
    BatchEnded,
    ChangeRefused,
    Completed,
    Event,
    GivenUp,
    Instruction,
    Migration,
    Run,
    SlotReport,
)
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh, Plan, parse_plan


@dataclass(frozen=True)
class Wish:
    """Plans that some slots are to take, and how."""

    plans: Mapping[int, SlotPlan]
    by: str
    box_by_box: bool = False


@dataclass(frozen=True)
class Change:
    """A change since the batch in which it began; slots that came from the same plan go together."""

    migrations: tuple[Migration, ...]
    by: str
    since: int

    @property
    def slots(self) -> list[int]:
        return sorted(slot for migration in self.migrations for slot in migration.slots)

    @property
    def is_over(self) -> bool:
        return all(migration.is_over for migration in self.migrations)

    def abort(self, reason: str) -> list[Instruction]:
        """What leads all slots that are on their way back to the plans they had."""
        under_way = [migration for migration in self.migrations if not migration.is_over]
        return [instruction for migration in under_way for instruction in migration.step(AbortAsked(reason))]

    def progress(
        self, batch: int, reports: Mapping[int, Mapping[str, Any]]
    ) -> tuple[list[Instruction], list[dict[str, Any]]]:
        """How it goes on after a batch, and what is to be told of that."""
        obeyed: list[Instruction] = []
        records: list[dict[str, Any]] = []
        if self.since == batch:
            records += [_began(migration, self.by, batch, reports) for migration in self.migrations]
        for migration in self.migrations:
            if migration.is_over:
                if self.since == batch:
                    # It was to the plan that the slots had already.
                    records.append({**_common(migration, self.by, batch), **_ending(Completed(migration.new), 1)})
                continue
            events: list[Event] = [
                ChangeRefused(slot, reports[slot]["refused"]) for slot in migration.slots if "refused" in reports[slot]
            ]
            stands = {
                slot: SlotReport(parse_plan(reports[slot]["plan"]), reports[slot]["migrating"])
                for slot in migration.slots
            }
            for event in [*events, BatchEnded(batch, stands)]:
                instructions = migration.step(event)
                obeyed += instructions
                records += [
                    {**_common(migration, self.by, batch), **_ending(instruction, batch - self.since + 1)}
                    for instruction in instructions
                    if not isinstance(instruction, Run)
                ]
        return obeyed, records


def begin(wish: Wish, plans: Mapping[int, SlotPlan], batch: int, graph: JoinGraph) -> tuple[Change, list[Instruction]]:
    """The change that a wish leads to, from the plans that the slots have, and its first instructions."""
    together: dict[tuple[Plan, SlotPlan], list[int]] = {}
    for slot, wanted in wish.plans.items():
        together.setdefault((plans[slot].plan, wanted), []).append(slot)
    migrations, instructions = [], []
    for (old, wanted), slots in together.items():
        way = _itinerary(old, wanted.plan, wish.box_by_box, graph)
        migration = Migration(old, way, wanted.strategy, slots)
        instructions += migration.begin()
        migrations.append(migration)
    return Change(tuple(migrations), wish.by, batch), instructions


def _itinerary(old: Plan, new: Plan, one_by_one: bool, graph: JoinGraph) -> tuple[Plan, ...]:
    if one_by_one and not isinstance(old, Mesh) and not isinstance(new, Mesh):
        return box_by_box(old, new, graph.thetas)
    return () if old == new else (new,)


def _common(migration: Migration, by: str, batch: int) -> dict[str, Any]:
    return {"kind": "migration", "batch": batch, "by": by, "slots": sorted(migration.slots)}


def _began(migration: Migration, by: str, batch: int, reports: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    done = [each for slot in migration.slots if (each := reports[slot].get("migrated")) is not None]
    return {
        **_common(migration, by, batch),
        "phase": "began",
        "from": str(migration.plans[0]),
        "to": str(migration.new),
        "strategy": migration.strategy,
        "slotsInPlace": len(done),
        "recomputedRows": sum(sum(each["recomputed"].values()) for each in done),
        "seconds": max((each["seconds"] for each in done), default=0.0),
    }


def _ending(instruction: Completed | GivenUp, batches: int) -> dict[str, Any]:
    match instruction:
        case Completed(plan):
            return {"phase": "ended", "plan": str(plan), "batches": batches}
        case GivenUp(plan, reason):
            return {"phase": "given up", "plan": str(plan), "batches": batches, "reason": reason}
