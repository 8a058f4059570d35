"""Another number of slots: exactly those slots have groups, loads are even, and blocks copy few rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.balance.loads import Loads, SlotLoad
from anabranch.balance.scaling import require_count, rescale, spread_over
from anabranch.errors import PlanError
from anabranch.plan.partitioning import Dimension, Partitioning

LINE = Partitioning((Dimension("k", frozenset("ab"), 64),), 8, (0,) * 64)
CUBE = Partitioning((Dimension("k", frozenset("ab"), 8), Dimension("j", frozenset("bc"), 8)), 8, (0,) * 64)
GRIDS = st.sampled_from([LINE, CUBE])


@given(grid=GRIDS, slots=st.integers(1, 8))
def test_a_grid_is_spread_over_as_many_slots_as_asked(grid: Partitioning, slots: int) -> None:
    table = spread_over(grid, slots)
    assert table.working == tuple(range(slots))
    sizes = [len(table.groups_of(slot)) for slot in range(slots)]
    assert max(sizes) <= 2 * min(sizes)


def test_more_slots_than_groups_are_not_used() -> None:
    two = Partitioning((Dimension("k", frozenset("ab"), 2),), 4, (0, 0))
    assert spread_over(two, 3).working == (0, 1)
    with pytest.raises(PlanError, match="3 slots cannot be used: the grid has 2 partition groups"):
        require_count(two, 3)


def test_blocks_copy_fewer_rows_than_runs_do() -> None:
    assert spread_over(CUBE, 4).copies("a") == spread_over(CUBE, 4).copies("c") == 2.0
    runs = CUBE.with_table(group * 4 // 64 for group in range(64))
    assert runs.copies("a") + runs.copies("c") == 5.0


@given(grid=GRIDS, data=st.data())
def test_a_change_leaves_groups_on_the_available_slots_alone(grid: Partitioning, data: st.DataObject) -> None:
    before = spread_over(grid, data.draw(st.integers(1, 8)))
    available = data.draw(st.sets(st.integers(0, 7), min_size=1))
    each = data.draw(st.lists(st.floats(1.0, 2.0), min_size=64, max_size=64))
    cpu = [sum(each[group] for group in before.groups_of(slot)) for slot in range(8)]
    loads = Loads(tuple(SlotLoad(spent, 0.0) for spent in cpu), tuple(each), tuple(each))
    found = rescale(before, loads, sorted(available))
    after = found.applied(before)
    assert set(after.working) == available
    assert found.after == pytest.approx([sum(each[group] for group in after.groups_of(slot)) for slot in range(8)])
    assert found.skew_after <= 1.5


@pytest.mark.parametrize("slots", [0, 9])
def test_slots_that_the_run_does_not_have_are_refused(slots: int) -> None:
    with pytest.raises(PlanError, match=f"{slots} slots cannot be used: the query has 8"):
        spread_over(LINE, slots)


def test_a_grid_with_heavy_keys_is_spread_with_their_groups() -> None:
    axes = (Dimension("k", frozenset("ab"), 8), Dimension("m", frozenset("bc"), 8))
    grid = Partitioning(axes, 4, tuple(group % 4 for group in range(64))).split(
        "k", 1, [0, 1, 2, 3], {"a": 1.0, "b": 1.0}
    )
    assert grid.groups > 64
    for slots in (1, 2, 4):
        spread = spread_over(grid, slots)
        assert set(spread.table) == set(range(slots))
        assert len(spread.table) == grid.groups


def test_a_query_that_cannot_be_spread_uses_the_slots_that_it_can() -> None:
    one = Partitioning((Dimension("k", frozenset("a"), 1),), 4, (0,))
    assert [spread_over(one, slots).working for slots in (1, 2, 4)] == [(0,)] * 3
