"""The fewest slots: with them the fullest slot keeps its limits, with one less it does not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import cql
from anabranch.balance.allocation import Allocation, fewest_slots, over_limits
from anabranch.balance.first import FirstTable, first_table
from anabranch.calibrate.engine_costs import stream
from anabranch.cost.resources import Resources
from anabranch.errors import NoFeasiblePlan, SpecError
from anabranch.lang.catalog import Catalog
from anabranch.optimize import Choice
from anabranch.plan.partitioning import Dimension, Partitioning
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, as_set
from anabranch.plan.slots import FEWEST, SlotRange
from anabranch.planning.choosing import decide
from anabranch.planning.options import TOGETHER, PlanOptions
from anabranch.planning.together import allocate


def line(slots: int) -> Partitioning:
    return Partitioning(
        (Dimension("k", frozenset("ab"), 64),), slots, tuple(group * slots // 64 for group in range(64))
    )


def whole(slots: int, rows: list[float]) -> FirstTable:
    counts = np.array(rows)
    return first_table(line(slots), {"a": counts, "b": counts})


@given(
    rows=st.lists(st.floats(0.0, 10.0), min_size=64, max_size=64).filter(lambda rows: sum(rows) > 1),
    cpu=st.floats(0.1, 20.0),
    memory=st.floats(1.0, 100.0),
)
def test_the_fullest_slot_keeps_its_limits_and_with_one_slot_less_it_would_not(
    rows: list[float], cpu: float, memory: float
) -> None:
    need = Resources(cpu, memory, 1.0)

    def objection(slots: int) -> str | None:
        return over_limits(need, whole(slots, rows), 1.0, 20.0)

    try:
        found = fewest_slots(SlotRange(1, 16, is_sought=True), objection)
    except NoFeasiblePlan:
        assert all(objection(slots) for slots in range(1, 17))
        return
    fullest = max(whole(found.slots, rows).shares)
    assert fullest * cpu <= 1.0
    assert fullest * memory <= 20.0
    assert found.slots >= max(cpu, memory / 20.0)
    if found.slots > 1:
        assert max(whole(found.slots - 1, rows).shares) * cpu > 1.0 or max(
            whole(found.slots - 1, rows).shares
        ) * memory > (20.0)


def test_a_frequent_key_asks_for_more_slots_than_the_average_does() -> None:
    even, skewed = [1.0] * 64, [1.0] * 63 + [20.0]
    need = Resources(2.4, 0.0, 1.0)

    def fewest(rows: list[float]) -> int:
        return fewest_slots(FEWEST, lambda n: over_limits(need, whole(n, rows), 0.8, math.inf)).slots

    assert fewest(even) in (3, 4)
    with pytest.raises(NoFeasiblePlan, match="no number of slots from 1 to 64 keeps the limits") as error:
        fewest(skewed)
    assert "the slowest slot needs" in str(error.value.detail)


def test_a_slow_slot_counts_by_its_time() -> None:
    table = FirstTable(line(2), (0.5, 0.5), (1.0, 0.5))
    assert over_limits(Resources(1.0, 10.0, 1.0), table, 0.9, 5.0) == "the slowest slot needs 1 of 0.9 cores"
    assert over_limits(Resources(1.0, 10.0, 1.0), table, 1.0, 4.0) is not None
    assert over_limits(Resources(1.0, 10.0, 1.0), table, 1.0, 5.0) is None


def test_an_allocation_states_why_one_slot_less_is_not_enough() -> None:
    assert str(Allocation(3, "memory is short")).endswith("the fewest that keep the limits: with 2, memory is short")
    assert "no smaller number" in str(Allocation(1))


def chosen(cpu: float, slots: int, rate: float) -> dict[str, Choice]:
    return {ALONE: decide(_query(), _plan_options(cpu, rate), slots=slots)}


def _query() -> Query:
    catalog = Catalog()
    for name in "ab":
        catalog.register(stream(name, ("k", "v")))
    return cql.compile_query("SELECT a.v AS x FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k", catalog)


def _plan_options(cpu: float, rate: float) -> PlanOptions:
    rates = {"rates": {"a": rate, "b": rate}, "selectivities": {"a b": 0.0001}}
    return PlanOptions(cpu=cpu).with_stats(rates)


def test_the_plans_of_a_query_are_priced_for_every_number() -> None:
    def fewest(cpu: float, rate: float) -> int:
        found = allocate(
            as_set(_query()),
            FEWEST,
            lambda slots: chosen(cpu, slots, rate),
            {ALONE: _plan_options(cpu, rate)},
            TOGETHER,
            lambda grid, _: first_table(grid),
        )
        assert found is not None
        return found.slots

    one = decide(_query(), _plan_options(math.inf, 50_000.0), slots=1)
    cpu = one.answer.cost.cpu
    assert fewest(cpu * 1.01, 50_000.0) == 1
    assert fewest(cpu / 3.5, 50_000.0) == 4
    with pytest.raises(SpecError, match="there are no limits"):
        fewest(math.inf, 50_000.0)
