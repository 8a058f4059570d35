"""The first table follows the keys of a sample and the speeds of slots."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.adapt.balancing import Balance
from anabranch.balance.describe import describe_grid
from anabranch.balance.first import first_table
from anabranch.cql import compile_query
from anabranch.errors import PlanError, SpecError
from anabranch.plan.partitioning import choose_partitioning
from anabranch.plan.query_set import alone
from anabranch.plan.text import parse
from anabranch.run.counting import cells_of_sample
from anabranch.run.local import LocalHost
from anabranch.run.rows import relation_batch
from anabranch.run.wire import wire_layout
from tests.support.scripted import answer_lines, read_rows, read_script

CATALOG = read_script("stream a (k bigint)\nstream b (k bigint)").catalog
QUERY = compile_query("SELECT a.k AS k FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS] WHERE a.k = b.k", CATALOG)
GRID = choose_partitioning(QUERY.graph, 4)


def test_without_anything_known_slots_have_equally_many_groups() -> None:
    found = first_table(GRID)
    assert found.partitioning == GRID
    assert found.shares == pytest.approx([0.25] * 4)
    assert found.skew == pytest.approx(1.0)


def test_a_slot_of_half_the_speed_gets_half_the_work() -> None:
    found = first_table(GRID, capacities=[1.0, 1.0, 1.0, 0.5])
    assert found.shares[3] == pytest.approx(0.5 * found.shares[0], abs=0.04)
    assert found.skew < 1.08
    with pytest.raises(PlanError, match="3 capacities do not fit 4 slots"):
        first_table(GRID, capacities=[1.0, 1.0, 1.0])


def test_the_keys_of_a_sample_decide_which_groups_a_slot_has() -> None:
    keys = [number % 40 if number % 3 else number % 4 for number in range(300)]
    lines = [f"{name} {number / 100} {key}" for number, key in enumerate(keys) for name in "ab"]
    layout = wire_layout(alone(QUERY), GRID)
    tables = read_rows(CATALOG, lines)
    sample = {each.name: relation_batch(each, layout, tables[each.stream]) for each in QUERY.graph.relations}
    rows = cells_of_sample(GRID, sample, {"a": 10.0, "b": 30.0})
    assert rows is not None
    assert float(np.sum(rows["b"])) == pytest.approx(30.0)
    chosen = first_table(GRID, rows)
    by_count = np.bincount(GRID.table, weights=rows["a"], minlength=4)
    assert chosen.partitioning != GRID
    assert chosen.skew < by_count.max() / by_count.mean()
    whole = LocalHost(QUERY, parse("(a b)"))
    host = LocalHost(QUERY, parse("(a b)"), slots=4, sample=sample, traffic={"a": 10.0, "b": 30.0})
    assert host.partitioning == chosen.partitioning
    assert answer_lines(host.step(tables)) == answer_lines(whole.step(tables))
    assert cells_of_sample(GRID, {"a": sample["a"]}, {}) is None


def test_the_expected_work_of_slots_is_shown() -> None:
    text = describe_grid(first_table(GRID, capacities=[2.0, 1.0, 1.0, 1.0]), QUERY.graph, {"a": 1.0, "b": 1.0})
    assert "expected work of slots 39.1%, 20.3%, 20.3%, 20.3%" in text
    assert "times the average" in text


def test_capacities_are_read_and_wrong_ones_are_named() -> None:
    assert Balance.from_mapping({"capacities": [1, 0.5]}).capacities == (1.0, 0.5)
    for wrong in (5, [0, 1], ["fast"]):
        with pytest.raises(SpecError, match=r"balance\.capacities"):
            Balance.from_mapping({"capacities": wrong})
    with pytest.raises(PlanError, match="2 capacities do not fit 3 slots"):
        LocalHost(QUERY, parse("(a b)"), slots=3, balance=Balance(capacities=(1.0, 2.0)))
