"""A change of plan in the slots of a query, from the request to its end, and the records of it.

Slots that change from the same plan to the same new plan form one migration. `migrate.machine` decides which plan each
slot runs next; this module converts slot reports to its events, and its outcomes to records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.adapt.records import Author, MigrationBegan, MigrationEnded, QueryRecord
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
    Standing,
)
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.sharing import shares
from anabranch.plan.slots import SlotPlan
from anabranch.stats.report import QueryReport


@dataclass(frozen=True)
class ChangeRequest:
    """The requested plans of some slots, and who requested them."""

    plans: Mapping[int, SlotPlan]
    by: Author
    box_by_box: bool = False


@dataclass(frozen=True)
class Change:
    """A change of plan that began in the batch `since`."""

    migrations: tuple[Migration, ...]
    by: Author
    since: int

    @property
    def slots(self) -> list[int]:
        return sorted(slot for migration in self.migrations for slot in migration.slots)

    @property
    def is_over(self) -> bool:
        return all(migration.is_over for migration in self.migrations)

    def abort(self, reason: str) -> list[Instruction]:
        """Aborts the change; returns the instructions that take all slots back to their old plans."""
        under_way = [migration for migration in self.migrations if not migration.is_over]
        return [instruction for migration in under_way for instruction in migration.step(AbortAsked(reason))]

    def progress(self, batch: int, reports: Mapping[int, QueryReport]) -> tuple[list[Instruction], list[QueryRecord]]:
        """Returns the instructions and the records that follow from the reports of a batch."""
        obeyed: list[Instruction] = []
        records: list[QueryRecord] = []
        if self.since == batch:
            records += [_began(migration, self.by, batch, reports) for migration in self.migrations]
        for migration in self.migrations:
            if migration.is_over:
                if self.since == batch:
                    # The slots already had the plan.
                    records.append(self._ended(migration, batch, Completed(migration.new)))
                continue
            events: list[Event] = [
                ChangeRefused(slot, reason)
                for slot in migration.slots
                if (reason := reports[slot].change.refused) is not None
            ]
            stands = {slot: Standing(reports[slot].plan, reports[slot].is_migrating) for slot in migration.slots}
            for event in [*events, BatchEnded(batch, stands)]:
                instructions = migration.step(event)
                obeyed += instructions
                records += [
                    self._ended(migration, batch, instruction)
                    for instruction in instructions
                    if not isinstance(instruction, Run)
                ]
        return obeyed, records

    def _ended(self, migration: Migration, batch: int, how: Completed | GivenUp) -> MigrationEnded:
        slots, batches = tuple(sorted(migration.slots)), batch - self.since + 1
        match how:
            case Completed(plan):
                return MigrationEnded(batch, self.by, slots, plan, batches)
            case GivenUp(plan, reason):
                return MigrationEnded(batch, self.by, slots, plan, batches, given_up=reason)


def begin(
    wish: ChangeRequest, plans: Mapping[int, SlotPlan], batch: int, graph: JoinGraph
) -> tuple[Change, list[Instruction]]:
    """Begins a change of the slots' current plans; returns it with its first instructions."""
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
    if one_by_one and not any(isinstance(plan, Mesh) or shares(plan) for plan in (old, new)):
        assert not isinstance(old, Mesh)
        assert not isinstance(new, Mesh)
        return box_by_box(old, new, graph.thetas)
    return () if old == new else (new,)


def _began(migration: Migration, by: Author, batch: int, reports: Mapping[int, QueryReport]) -> MigrationBegan:
    done = [each for slot in migration.slots if (each := reports[slot].change.migrated) is not None]
    return MigrationBegan(
        batch=batch,
        by=by,
        slots=tuple(sorted(migration.slots)),
        old=migration.plans[0],
        new=migration.new,
        strategy=migration.strategy,
        slots_in_place=len(done),
        recomputed_rows=sum(sum(each.recomputed.values()) for each in done),
        seconds=max((each.seconds for each in done), default=0.0),
    )
