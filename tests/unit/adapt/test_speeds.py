"""Speeds of slots from what they did and how long it took; the load follows them in one decision."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.adapt.balancing import Balance
from anabranch.adapt.course import Table
from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.loads import LoadHistory
from anabranch.adapt.table import TableSteering
from anabranch.balance.loads import Loads, SlotLoad
from anabranch.balance.scaling import rescale
from anabranch.errors import SpecError
from anabranch.plan.partitioning import Dimension, Partitioning
from anabranch.plan.query_set import ALONE
from anabranch.plan.text import parse
from anabranch.stats.report import QueryReport, SlotReport
from anabranch.stats.step import ProbeStatistics, StepStatistics

LINE = Partitioning((Dimension("k0", frozenset("ab"), 64),), 2, tuple(group // 32 for group in range(64)))
CUBE = Partitioning((Dimension("k", frozenset("ab"), 8), Dimension("j", frozenset("bc"), 8)), 2, (0,) * 32 + (1,) * 32)
ROWS = 1000


def report(table: Partitioning, slot: int, speed: float, *, hot: bool = True, cpu: float = 0.1) -> SlotReport:
    """A batch in which every group has as many rows, on a machine of a speed; CPU time says nothing about the speed."""
    mine = [1.0 if at == slot else 0.0 for at in table.table]
    rows = round(ROWS * sum(mine))
    probe = ProbeStatistics("(a b)", "a", "b", probes=rows, visited=rows, matches=rows)
    seconds = {"probe": rows * 1e-6 / speed}
    statistics = StepStatistics({"a": rows, "b": rows}, rows, (probe,), (), seconds)
    cells = {name: tuple(int(ROWS * each) for each in mine) for name in "ab"}
    return SlotReport(
        {ALONE: QueryReport(parse("(a b)"))}, statistics, was_hot=hot, cpu=cpu, cells=cells, held=cells, keys={}
    )


def reports(table: Partitioning, speeds: list[float]) -> dict[int, SlotReport]:
    return {slot: report(table, slot, speed) for slot, speed in enumerate(speeds)}


@given(st.lists(st.floats(0.1, 1.0), min_size=2, max_size=2))
def test_the_speed_of_a_slot_is_what_it_did_over_how_long_it_took(speeds: list[float]) -> None:
    watch = LoadHistory(Balance())
    for batch in range(5):
        watch = watch.after(BatchFacts(batch, 1.0), reports(LINE, speeds))
    found = watch.measured_speeds(2)
    if max(speeds) < 1.19 * min(speeds):
        assert found is None
    elif max(speeds) > 1.21 * min(speeds):
        assert found == pytest.approx([speed / max(speeds) for speed in speeds])


def test_slots_that_were_rebuilt_do_not_count_and_idle_ones_have_the_mean_speed() -> None:
    watch = LoadHistory(Balance())
    assert watch.measured_speeds(3) is None
    batches = (
        {0: report(LINE, 0, 1.0), 1: report(LINE, 1, 0.5), 2: SlotReport()},
        {0: report(LINE, 0, 0.01, hot=False), 1: report(LINE, 1, 0.5)},
    )
    for number, batch in enumerate(batches):
        watch = watch.after(BatchFacts(number, 1.0), batch)
    found = watch.measured_speeds(3)
    assert found is not None
    assert found[:2] == pytest.approx((1.0, 0.5))
    assert 0.5 < found[2] < 1.0


def decide(balance: Balance, speeds: list[float]) -> tuple[Partitioning, list[dict[str, object]]]:
    """A query that balances itself, until its first decision."""
    steering = TableSteering(Table(LINE), balance=balance)
    history = []
    for batch in range(8):
        table, _ = steering.next(batch)
        history += [r.to_json() for r in steering.after(BatchFacts(batch, 1.0), reports(table, speeds))]
        if history:
            break
    return steering.next(9)[0], history


def test_the_load_follows_the_measured_speed_in_one_decision() -> None:
    balance = replace(Balance.from_mapping({"capacities": "measured"}), seconds=0.001)
    table, (record,) = decide(balance, [1.0, 0.5])
    fast, slow = len(table.groups_of(0)), len(table.groups_of(1))
    assert abs(fast - 2 * slow) <= 3
    assert record["action"] == "move"
    assert record["speeds"] == [1.0, 0.5]
    assert str(record["trigger"]).endswith("times the average time")
    # Without measuring, CPU time is what counts, and it is even.
    assert decide(Balance("auto", seconds=0.001), [1.0, 0.5]) == (LINE, [])
    # Machines that are about equally fast are left alone.
    assert decide(balance, [1.0, 0.9]) == (LINE, [])


def test_another_number_of_slots_is_shared_by_speed() -> None:
    for grid in (LINE, CUBE):
        # The same work in every group takes twice as long on the slow slot.
        loads = Loads((SlotLoad(32.0, 0.0), SlotLoad(64.0, 0.0)), (1.0,) * 32 + (2.0,) * 32, (1.0,) * 64)
        found = rescale(grid, loads, [0, 1], speeds=[1.0, 0.5])
        fast, slow = (len(found.applied(grid).groups_of(slot)) for slot in (0, 1))
        assert fast > 1.5 * slow
        assert found.skew_after < 1.2 < found.skew_before


def test_a_word_that_is_no_list_of_capacities_is_refused() -> None:
    with pytest.raises(SpecError, match="capacities"):
        Balance.from_mapping({"capacities": "guess"})


def test_groups_that_come_to_a_slow_slot_take_longer_there() -> None:
    grid = CUBE.with_table((0,) * 64)
    loads = Loads((SlotLoad(64.0, 0.0), SlotLoad(0.0, 0.0)), (1.0,) * 64, (1.0,) * 64)
    found = rescale(grid, loads, [0, 1], speeds=[1.0, 0.5])
    fast, slow = (len(found.applied(grid).groups_of(slot)) for slot in (0, 1))
    assert fast > 1.5 * slow
    assert found.after[1] == 2.0 * slow
