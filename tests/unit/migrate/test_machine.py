"""The course of a migration, driven by events alone: every slot ends on the new plan, or every slot on the old one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import InvariantBroken
from anabranch.migrate.itinerary import at_once, box_by_box
from anabranch.migrate.machine import (
    AbortAsked,
    BatchEnded,
    ChangeRefused,
    Completed,
    GivenUp,
    Instruction,
    Migration,
    Run,
    Standing,
)
from anabranch.plan.difference import boxes
from anabranch.plan.mesh import Plan
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.text import parse
from tests.support.strategies import plans

OLD, NEW = parse("(((a b) c) (d e f))"), parse("(((b c) a) ((d e) f))")
BETWEEN = parse("(((b c) a) (d e f))")


def test_a_migration_at_once() -> None:
    migration = Migration(OLD, at_once(OLD, NEW), "parallel-track", slots=range(2))
    assert migration.begin() == [Run(0, NEW, "parallel-track"), Run(1, NEW, "parallel-track")]
    assert migration.step(BatchEnded(7, {0: Standing(NEW, True), 1: Standing(NEW)})) == []
    assert migration.step(BatchEnded(8, {0: Standing(NEW), 1: Standing(NEW)})) == [Completed(NEW)]
    assert migration.is_over


def test_a_migration_box_by_box_lets_each_slot_go_on_when_it_has_settled() -> None:
    migration = Migration(OLD, box_by_box(OLD, NEW), "moving-state", slots=range(2))
    assert migration.begin() == [Run(slot, BETWEEN, "moving-state") for slot in (0, 1)]
    both = {0: Standing(BETWEEN), 1: Standing(BETWEEN, True)}
    assert migration.step(BatchEnded(1, both)) == [Run(0, NEW, "moving-state")]


def test_a_refusal_turns_everybody_round() -> None:
    migration = Migration(OLD, at_once(OLD, NEW), "moving-state", slots=range(3))
    migration.begin()
    back = migration.step(ChangeRefused(1, "no space"))
    assert back == [Run(slot, OLD, "moving-state") for slot in range(3)]
    reports = {0: Standing(NEW), 1: Standing(OLD), 2: Standing(OLD)}
    assert migration.step(BatchEnded(1, reports)) == [Run(0, OLD, "moving-state")]
    assert migration.step(BatchEnded(2, dict.fromkeys(range(3), Standing(OLD)))) == [GivenUp(OLD, "no space")]


def test_an_unexpected_plan_is_an_error_with_the_events_before_it() -> None:
    migration = Migration(OLD, at_once(OLD, NEW), "moving-state", slots=range(1))
    migration.begin()
    with pytest.raises(InvariantBroken, match=r"\(a b c d e f\)") as broken:
        migration.step(BatchEnded(1, {0: Standing(parse("(a b c d e f)"))}))
    assert "slot 0 must run (((b c) a) ((d e) f)) by moving-state" in broken.value.detail


def test_nothing_may_happen_after_the_end() -> None:
    migration = Migration(OLD, at_once(OLD, OLD), "none", slots=range(1))
    assert migration.begin() == [Completed(OLD)]
    with pytest.raises(InvariantBroken, match="after the end"):
        migration.step(AbortAsked("too late"))


@given(old=plans(tuple("abcdef")), new=plans(tuple("abcdef")))
def test_an_itinerary_changes_one_box_at_a_time(old: PhysicalPlan, new: PhysicalPlan) -> None:
    way = (old, *box_by_box(old, new))
    assert way[-1] == new
    changed = [{box.output for box in boxes(one, other)} for one, other in itertools.pairwise(way)]
    assert all(len(step) == 1 for step in changed[:-1])
    assert set().union(*changed) == {box.output for box in boxes(old, new)}


@dataclass
class _Slot:
    """A slot that changes as it is told: at once, or within a few batches."""

    plan: Plan
    leaving: Plan | None = None
    left: int = 0

    def run(self, plan: Plan, batches: int) -> None:
        if plan == self.leaving:
            self.plan, self.leaving = plan, None
        elif self.leaving is not None:
            self.plan, self.leaving = self.leaving, None
        elif plan != self.plan:
            self.leaving, self.plan, self.left = (self.plan if batches else None), plan, batches

    def take_batch(self) -> Standing:
        if self.leaving is not None:
            self.left -= 1
            self.leaving = self.leaving if self.left > 0 else None
        return Standing(self.plan, self.leaving is not None)


@given(data=st.data(), several=st.booleans(), slots=st.integers(1, 3))
def test_whatever_happens_all_slots_end_on_one_of_the_two_plans(data: st.DataObject, several: bool, slots: int) -> None:
    itinerary = box_by_box(OLD, NEW) if several else at_once(OLD, NEW)
    migration = Migration(OLD, itinerary, "parallel-track", range(slots))
    running = [_Slot(OLD) for _ in range(slots)]
    instructions = migration.begin()
    for batch in range(60):
        trouble = data.draw(st.sampled_from(["", "", "", "abort", "refuse", "crash"])) if batch < 20 else ""
        if trouble in ("abort", "refuse") and not migration.is_over:
            event = AbortAsked("why") if trouble == "abort" else ChangeRefused(0, "why")
            instructions += migration.step(event)
        if trouble == "crash":
            crashed = running[data.draw(st.integers(0, slots - 1))]
            crashed.plan, crashed.leaving = data.draw(st.sampled_from(migration.plans)), None
        _perform(instructions, running, data.draw(st.integers(0, 3)))
        reports = {slot: state.take_batch() for slot, state in enumerate(running)}
        instructions = migration.step(BatchEnded(batch, reports))
        if migration.is_over:
            break
    match instructions:
        case [Completed(plan=plan) | GivenUp(plan=plan)]:
            assert [(state.plan, state.leaving) for state in running] == [(plan, None)] * slots
            assert plan == (OLD if isinstance(instructions[0], GivenUp) else NEW)
        case _:
            pytest.fail("\n".join(migration.events))


def _perform(instructions: list[Instruction], running: list[_Slot], batches: int) -> None:
    for instruction in instructions:
        assert isinstance(instruction, Run)
        running[instruction.slot].run(instruction.plan, batches)
