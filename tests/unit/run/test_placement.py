"""Invariants of the placement of slots on executors: shares follow cores, and slots that need not leave stay."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from anabranch.spark.placement import Executor, place

EXECUTORS = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(
    lambda cores: [Executor(str(number), "127.0.0.1", count) for number, count in enumerate(cores)]
)


@given(executors=EXECUTORS, slots=st.integers(1, 12), lost=st.sets(st.integers(0, 4)), packed=st.booleans())
def test_every_slot_has_a_live_executor_and_shares_follow_cores(
    executors: list[Executor], slots: int, lost: set[int], packed: bool
) -> None:
    before = place(range(slots), executors, {}, packed=packed)
    left = [each for each in executors if int(each.id) not in lost] or executors[:1]
    placed = place(range(slots), left, before, packed=packed)
    assert sorted(placed) == [*range(slots)]
    counts, cores = Counter(placed.values()), {each.id: each.cores for each in left}
    assert set(counts) <= set(cores)
    used = [each for each in cores if counts[each]] if packed else [*cores]
    for one in used:
        for other in used:
            assert counts[one] / cores[one] <= (counts[other] + 1) / cores[other]
    # Nothing changes where nothing happened.
    assert place(range(slots), left, placed, packed=packed) == placed


def test_an_executor_that_joins_gets_slots_and_the_others_stay() -> None:
    two = [Executor("0", "h", 1), Executor("1", "h", 1)]
    before = place(range(4), two, {})
    after = place(range(4), [*two, Executor("2", "h", 1)], before)
    assert [slot for slot in range(4) if before[slot] != after[slot]] == [3]
    assert after[3] == "2"


def test_slots_of_a_lost_executor_go_to_those_with_room() -> None:
    three = [Executor(str(number), "h", 1) for number in range(3)]
    before = {0: "0", 1: "1", 2: "2", 3: "0"}
    after = place(range(4), three[:2], before)
    assert after == {0: "0", 1: "1", 2: "1", 3: "0"}


def test_under_dynamic_allocation_executors_that_are_not_needed_are_left() -> None:
    three = [Executor(str(number), "h", 2) for number in range(3)]
    before = place(range(6), three, {}, packed=True)
    assert sorted(Counter(before.values()).values()) == [2, 2, 2]
    after = place(range(3), three, before, packed=True)
    assert len(set(after.values())) == 2
    assert len(set(place(range(2), three, after, packed=True).values())) == 1


def test_without_executors_there_are_no_places() -> None:
    assert place(range(3), [], {0: "1"}) == {}
