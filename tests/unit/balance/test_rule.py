"""Invariants of the balancing rule: load is conserved, skew never grows, groups land where they may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.balance.loads import Loads, SlotLoad, estimate_loads, skew
from anabranch.balance.rule import even_out
from anabranch.plan.partitioning import Dimension, Partitioning


def line(table: list[int], slots: int) -> Partitioning:
    """Groups along one key that all relations have."""
    return Partitioning((Dimension("k", frozenset("ab"), len(table)),), slots, tuple(table))


def loads_of(partitioning: Partitioning, groups: list[float]) -> Loads:
    cpu = [
        sum(load for load, at in zip(groups, partitioning.table, strict=True) if at == s)
        for s in range(partitioning.slots)
    ]
    return Loads(tuple(SlotLoad(each, each * 1000) for each in cpu), tuple(groups), tuple(g * 1000 for g in groups))


@st.composite
def loaded(draw: st.DrawFn) -> tuple[Partitioning, Loads]:
    slots, count = draw(st.integers(1, 6)), draw(st.integers(1, 40))
    table = draw(st.lists(st.integers(0, slots - 1), min_size=count, max_size=count))
    groups = draw(st.lists(st.floats(0, 100, allow_subnormal=False), min_size=count, max_size=count))
    partitioning = line(table, slots)
    return partitioning, loads_of(partitioning, groups)


@given(drawn=loaded(), data=st.data())
def test_load_is_conserved_and_the_slowest_slot_gets_no_slower(
    drawn: tuple[Partitioning, Loads], data: st.DataObject
) -> None:
    partitioning, loads = drawn
    found = even_out(partitioning, loads)
    assert sum(found.after) == pytest.approx(sum(found.before), abs=1e-6)
    assert max(found.after) <= max(found.before) + 1e-9
    table = partitioning
    for move in found.moves:
        assert all(partitioning.table[group] == move.sender != move.receiver for group in move.groups)
        table = table.moved(move.groups, move.receiver)
    by_hand = [
        sum(load for load, at in zip(loads.groups, table.table, strict=True) if at == s) for s in range(table.slots)
    ]
    assert by_hand == pytest.approx(list(found.after), abs=1e-6)


@given(drawn=loaded(), data=st.data())
def test_slots_that_may_have_no_groups_give_all_away(drawn: tuple[Partitioning, Loads], data: st.DataObject) -> None:
    partitioning, loads = drawn
    available = data.draw(st.lists(st.integers(0, partitioning.slots - 1), min_size=1, unique=True))
    table = partitioning
    for move in even_out(partitioning, loads, available=available).moves:
        table = table.moved(move.groups, move.receiver)
    assert set(table.table) <= set(available)


@given(count=st.integers(2, 8), many=st.integers(20, 60))
def test_many_small_groups_are_spread_within_the_tolerance(count: int, many: int) -> None:
    partitioning = line([0] * many * count, count)
    found = even_out(partitioning, loads_of(partitioning, [1.0] * many * count))
    assert found.skew_after <= 1.05 < found.skew_before
    assert found.bytes == pytest.approx(1000.0 * sum(len(move.groups) for move in found.moves))
    assert not found.heavy


@given(drawn=loaded(), data=st.data())
def test_neither_cpu_time_nor_state_gets_worse_where_both_count(
    drawn: tuple[Partitioning, Loads], data: st.DataObject
) -> None:
    partitioning, loads = drawn
    count = partitioning.groups
    held = data.draw(st.lists(st.floats(0, 1e9, allow_subnormal=False), min_size=count, max_size=count))
    loads = replace(loads, group_bytes=tuple(held)).on(partitioning.table)
    found = even_out(partitioning, loads, least_bytes=0.0)
    after = loads.on(found.applied(partitioning).table)
    assert found.after == pytest.approx(after.cpu.tolist(), abs=1e-6)
    assert found.held_after == pytest.approx([slot.bytes for slot in after.slots], rel=1e-9, abs=1.0)
    # The largest load of either kind, each by its average.
    assert worst(found.after, found.held_after) <= worst(found.before, found.held_before) * (1 + 1e-6)


def worst(cpu: Sequence[float], held: Sequence[float]) -> float:
    return max(skew(cpu), skew(held))


def test_a_busy_slot_and_a_full_slot_exchange_groups() -> None:
    partitioning = line([0] * 32 + [1] * 32, 2)
    busy, full = [(2.0, 1.0)] * 32, [(1.0, 3.0)] * 32
    loads = Loads(
        (SlotLoad(0.0, 0.0),) * 2,
        tuple(cpu for cpu, _ in (*busy, *full)),
        tuple(held * 1e6 for _, held in (*busy, *full)),
    ).on(partitioning.table)
    found = even_out(partitioning, loads, least_bytes=1e6)
    assert worst(found.before, found.held_before) == 1.5
    assert {(move.sender, move.receiver) for move in found.moves} == {(0, 1), (1, 0)}
    assert worst(found.after, found.held_after) <= 1.06
    # State that does not count is left out of it.
    alone = even_out(partitioning, loads, least_bytes=1e9)
    assert {(move.sender, move.receiver) for move in alone.moves} == {(0, 1)}
    assert skew(alone.held_after) > 1.5


def test_state_alone_moves_groups_if_there_is_enough_of_it() -> None:
    partitioning = line([0, 1] * 32, 2)
    loads = Loads(
        (SlotLoad(0.0, 0.0),) * 2, (1.0,) * 64, tuple(5e6 if group % 4 == 0 else 1e6 for group in range(64))
    ).on(partitioning.table)
    assert even_out(partitioning, loads, least_bytes=40e6).moves == ()
    found = even_out(partitioning, loads, least_bytes=20e6)
    assert found.freed > 20e6
    assert found.skew_after < 1.3


def test_balanced_slots_move_nothing() -> None:
    partitioning = line([0, 1] * 32, 2)
    assert even_out(partitioning, loads_of(partitioning, [1.0] * 64)).moves == ()


def test_a_heavy_group_stays_and_is_named_while_the_light_ones_leave() -> None:
    partitioning = line([0] * 16 + [1] * 16, 2)
    found = even_out(partitioning, loads_of(partitioning, [40.0] + [1.0] * 31))
    assert found.heavy == (0,)
    assert found.after == (40.0, 31.0)


def test_a_slow_slot_gets_less() -> None:
    partitioning = line([0] * 32 + [1] * 32, 2)
    slow = loads_of(partitioning, [2.0] * 32 + [1.0] * 32)
    found = even_out(partitioning, slow, speeds=(0.5, 1.0))
    (move,) = found.moves
    assert (move.sender, move.receiver) == (0, 1)
    assert found.after == (44.0, 42.0)


def test_a_move_that_copies_more_than_it_saves_is_not_made() -> None:
    partitioning = line([0, 0, 0, 0], 2)
    loads = loads_of(partitioning, [1.0] * 4)
    assert even_out(partitioning, loads, copying=lambda table: 10.0 * len(set(table.table))).moves == ()
    assert even_out(partitioning, loads, copying=lambda table: 0.1 * len(set(table.table))).moves != ()


@given(
    table=st.lists(st.integers(0, 2), min_size=12, max_size=12),
    rows=st.lists(st.integers(0, 50), min_size=12, max_size=12),
    cpu=st.lists(st.floats(0, 10), min_size=3, max_size=3),
    matching=st.floats(0, 1),
)
def test_the_loads_of_groups_add_up_to_those_of_their_slots(
    table: list[int], rows: list[int], cpu: list[float], matching: float
) -> None:
    grid = (Dimension("k", frozenset("ab"), 4), Dimension("j", frozenset("bc"), 3))
    partitioning = Partitioning(grid, 3, tuple(table))
    measured = [SlotLoad(each, each * 7, matching) for each in cpu]
    found = estimate_loads(partitioning, {"a": rows[:4], "b": rows, "c": rows[:3]}, measured)
    for slot, load in enumerate(measured):
        mine = np.array(table) == slot
        if mine.any():
            assert np.array(found.groups)[mine].sum() == pytest.approx(load.cpu)
            assert np.array(found.group_bytes)[mine].sum() == pytest.approx(load.bytes)


def test_matches_weigh_by_the_product_of_rows() -> None:
    partitioning = line([0, 0], 1)
    found = estimate_loads(partitioning, {"a": [3, 1], "b": [3, 1]}, [SlotLoad(10.0, 8.0, matching=1.0)])
    assert found.groups == pytest.approx((9.0, 1.0))
    assert found.group_bytes == pytest.approx((6.0, 2.0))


def test_skew_of_nothing_is_even() -> None:
    assert skew([]) == skew([0.0, 0.0]) == 1.0
