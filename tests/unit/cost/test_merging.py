"""Merging rows before they join is priced by how many of them share a key and a slide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.cost.estimates import Estimates
from anabranch.cost.resources import ResourceModel
from anabranch.cost.units import ENGINE
from anabranch.plan.text import parse


def model(keys: float, slide: float = 4.0) -> ResourceModel:
    estimates = Estimates(("a", "b"), (400.0, 400.0), (20.0, 20.0), (16.0, 16.0), ((keys, keys),), slide=slide)
    return ResourceModel(estimates, ENGINE, batch=2.0)


def test_a_state_holds_about_one_row_for_each_key_and_slide() -> None:
    plan, a, b = parse("([a] b)"), 0b01, 0b10
    assert model(50.0).merging(plan).share(a) == pytest.approx(1.5 * 50 / 1600, rel=1e-6)
    assert model(50.0).merging(plan).share(a | b) == pytest.approx(1.5 * 50 / 1600, rel=1e-6)
    assert model(50.0).merging(plan).share(b) == 1.0
    assert model(1e9).merging(plan).share(a) == pytest.approx(1.0, abs=1e-4)
    assert model(1.0).merging(plan).share(a) == 1.5 / 1600
    assert model(50.0, slide=0.0).merging(plan).share(a) == 1.0


def test_rows_arrive_merged_by_batch() -> None:
    crowded = model(50.0).merging(parse("([a] b)"))
    assert crowded.share(0b01) * crowded.freshness(0b01) == pytest.approx(50 / 800, rel=1e-6)
    assert crowded.freshness(0b10) == 1.0


def test_a_known_number_of_groups_counts_before_the_keys() -> None:
    known = model(50.0)
    known = replace(known, estimates=replace(known.estimates, groups=((0b01, 1e9),)))
    assert known.merging(parse("([a] b)")).share(0b01) == pytest.approx(1.0, abs=1e-4)


def test_merging_pays_where_many_rows_share_a_key_and_costs_where_none_do() -> None:
    single, one, both = parse("(a b)"), parse("([a] b)"), parse("([a] [b])")
    crowded, sparse = model(50.0), model(1e6)
    assert crowded.price(single).cpu > 2 * crowded.price(one).cpu > 2 * crowded.price(both).cpu
    assert sparse.price(single).cpu < sparse.price(one).cpu < sparse.price(both).cpu


def test_plans_that_merge_nothing_pay_for_grouping_alone() -> None:
    grouped, free = model(50.0).price(parse("(a b)")), model(50.0, slide=0.0).price(parse("(a b)"))
    assert grouped.cpu - free.cpu == pytest.approx(grouped.rate * ENGINE.group)
    assert grouped.memory == free.memory


def test_a_merged_sub_join_is_not_priced_as_merged_from_single_rows() -> None:
    estimates = Estimates(("a", "b", "c"), (2000.0,) * 3, (20.0,) * 3, (16.0,) * 3, ((100.0, 100.0, 100.0),), slide=5.0)
    crowded = ResourceModel(estimates, ENGINE, batch=1.0)
    merged, inner = crowded.merging(parse("([([a] b)] c)")), crowded.merging(parse("(([a] b) c)"))
    assert merged.share(0b11) == pytest.approx(crowded.merging(parse("([(a b)] c)")).share(0b11), rel=0.5)
    assert merged.shares[1].inside == inner.share(0b01)
    assert crowded.price(parse("([([a] [b])] [c])")).cpu < crowded.price(parse("([([a] b)] c)")).cpu / 2
