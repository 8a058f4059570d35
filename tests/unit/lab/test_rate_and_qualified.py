"""The virtual clock and the experiments on rates and qualified plans, on small inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from anabranch.cost.resources import ResourceModel
from anabranch.optimize.jtree_finder import find_jtrees
from anabranch.optimize.proposals import kind
from anabranch.plan.text import parse
from lab import qualified_sets, qualified_sweep, rate_joins, rate_selections
from lab.papers.printed_costs import HASHED
from lab.papers.rate_model import outputs
from lab.registry import Setting
from lab.virtual_clock import SourceRows, poisson_rows, run_query, run_tree, served


def test_a_server_handles_one_row_at_a_time() -> None:
    assert served(np.array([0.0, 0.1, 5.0]), 1.0).tolist() == [1.0, 2.0, 6.0]
    assert served(np.array([0.0, 0.1, 5.0]), np.array([0.0, 2.0, 0.5])).tolist() == pytest.approx([0.0, 2.1, 5.5])


def test_rows_agree_as_often_as_the_selectivity_says() -> None:
    rng = np.random.default_rng(1)
    pair = frozenset("ab")
    left, right = (poisson_rows(rng, 3000, 100.0, name, {pair: 0.01}) for name in "ab")
    assert left.times[-1] == pytest.approx(30.0, rel=0.1)
    counts = [np.bincount(rows.keys[pair], minlength=100) for rows in (left, right)]
    assert (counts[0] * counts[1]).sum() == pytest.approx(3000 * 3000 * 0.01, rel=0.05)


def test_a_tree_emits_each_result_when_its_later_row_is_handled() -> None:
    ab, ac = frozenset("ab"), frozenset("ac")
    sources = {
        "a": SourceRows(np.array([0.0]), {ab: np.array([7]), ac: np.array([1])}),
        "b": SourceRows(np.array([1.0, 2.0]), {ab: np.array([7, 8])}),
        "c": SourceRows(np.array([0.5, 9.0]), {ac: np.array([1, 1])}),
    }
    found = run_tree(parse("((a b) c)"), sources, lambda join: 0.25)
    # a and b meet when b is done at 1.25; their pair is done at 1.5, the second c at 9.25.
    assert found.times.tolist() == [1.5, 9.25]
    assert found.rows["c"].tolist() == [0, 1]


def test_measured_results_follow_the_prediction() -> None:
    given = rate_joins.model(rate_joins.THREE, rate_joins.THREE_HANDLING, 10.0)
    measured = rate_joins.measure(given, rate_joins.THREE_PLANS, seed=3)
    for name, times in measured.items():
        expected = outputs(parse(rate_joins.THREE_PLANS[name]), given, np.linspace(0, 20.0, 4001))[-1]
        assert (times <= 20.0).sum() == pytest.approx(expected, rel=0.3)


def test_overtaking_is_for_good() -> None:
    assert rate_joins.overtaking(np.array([1.0, 2.0, 9.0, 9.5]), np.array([2.0, 3.0, 4.0, 5.0])) == 2
    assert rate_joins.overtaking(np.array([1.0, 2.0]), np.array([2.0, 3.0])) is None


def test_both_orders_of_two_selections_pass_the_same_rows() -> None:
    found = rate_selections.measure(Setting(quick=True))
    slow, fast = found["slow first"], found["fast first"]
    assert slow.rows == fast.rows == pytest.approx(100, rel=0.3)
    assert fast.predicted > slow.predicted


def test_the_model_qualifies_the_plans_of_the_four_sets_as_the_paper_does() -> None:
    for given in qualified_sets.SETS.values():
        model = qualified_sets.model(given)
        for name, plan in qualified_sets.plans(given).items():
            cost = model.price(plan)
            assert kind(plan) == name
            assert (cost.cpu <= 1.0 and cost.memory <= given.memory) == given.expected[name]


def test_a_saturated_plan_falls_behind_on_the_virtual_clock() -> None:
    given = qualified_sets.SETS[4]
    lateness = {}
    for name, plan in qualified_sets.plans(given).items():
        slices = qualified_sets._slices(given, 15.0, seed=1)
        *_, last = run_query(qualified_sets._query(given), plan, slices, qualified_sets._charge)
        lateness[name] = last.done - last.arrived
    assert lateness["mjoin"] > 2.0
    assert lateness["jtree"] < 1.0


def test_random_settings_are_connected() -> None:
    rng = np.random.default_rng(1)
    model = ResourceModel(qualified_sweep.random_setting(rng, 8), HASHED)
    reached = 1
    for _ in range(8):
        for position in range(8):
            if model.connected(reached, 1 << position):
                reached |= 1 << position
    assert reached == 0b11111111


def test_rows_that_wait_count_as_memory() -> None:
    """The mjoin of set 2 falls behind; with little memory its queue alone is too much."""
    given = qualified_sets.SETS[2]
    plan = qualified_sets.plans(given)["mjoin"]
    moments, _ = qualified_sets._measure(given, plan, 40.0, seed=1)
    states = max(moment.state_rows for moment in moments) * qualified_sets.ROW_BYTES
    assert not qualified_sets._measure(given, plan, 40.0, seed=1)[1]
    assert qualified_sets._measure(replace(given, memory=1.02 * states), plan, 40.0, seed=1)[1]


def test_budgets_of_the_sweep_can_be_out_of_reach() -> None:
    rng = np.random.default_rng(1)
    found = set()
    for _ in range(12):
        model = ResourceModel(qualified_sweep.random_setting(rng, 4), HASHED)
        for kind_of_budget, budget in qualified_sweep._budgets(model, rng).items():
            found.add((kind_of_budget, bool(find_jtrees(model, budget))))
    assert found == {(kind_of_budget, found) for kind_of_budget in qualified_sweep.KINDS for found in (True, False)}
