from __future__ import annotations

from math import inf

import numpy as np
import pytest

from anabranch.errors import PlanError
from anabranch.plan.text import parse
from lab.papers.rate_model import (
    RateModel,
    StreamRate,
    cardinality_cost,
    join_rate,
    local_rate,
    local_time,
    outputs,
    selection_rate,
    time_to,
)


def model(arrival: float = 0.0, extra: float = 0.0, cardinality: float = inf) -> RateModel:
    streams = {name: StreamRate(rate, cardinality) for name, rate in (("a", 50.0), ("b", 500.0), ("c", 100.0))}
    pairs = {frozenset("ab"): 2e-3, frozenset("ac"): 5e-3}
    return RateModel(streams, pairs, arrival, {frozenset("ac"): extra})


def test_operators_put_out_what_arrives_until_they_saturate() -> None:
    assert selection_rate(500, 0.0, 0.1) == pytest.approx(50)
    assert selection_rate(500, 1 / 50, 0.1) == pytest.approx(5)


def test_two_selections_differ_tenfold_by_their_order() -> None:
    slow_first = selection_rate(selection_rate(500, 1 / 50, 0.1), 0.0, 0.1)
    fast_first = selection_rate(selection_rate(500, 0.0, 0.1), 1 / 50, 0.1)
    assert fast_first == pytest.approx(10 * slow_first)


def test_a_join_rate_grows_with_time_and_falls_by_its_load() -> None:
    assert join_rate(50, 100, 5e-3, 0.0, 0.0, 2.0) == pytest.approx(50)
    assert join_rate(50, 100, 5e-3, 0.01, 0.01, 2.0) == pytest.approx(50 / 1.5)


def test_outputs_without_load_are_the_product_of_what_arrived() -> None:
    counts = outputs(parse("((a b) c)"), model(), np.linspace(0, 4, 401))
    assert counts[-1] == pytest.approx(200 * 2000 * 400 * 1e-5, rel=1e-6)
    # The mean rate of Eq. 2, times t, is the number of results of a join of two streams.
    pairs = outputs(parse("(a c)"), model(), np.linspace(0, 4, 401))[-1]
    assert pairs == pytest.approx(4 * join_rate(50, 100, 5e-3, 0, 0, 4.0), rel=1e-6)


def test_a_saturated_join_falls_behind_and_catches_up_when_streams_end() -> None:
    loaded = model(extra=0.01, cardinality=100)
    times = np.linspace(0, 10, 1001)
    counts = outputs(parse("(a c)"), loaded, times)
    free = outputs(parse("(a c)"), model(cardinality=100), times)
    assert np.all(counts <= free + 1e-9)
    # 200 rows of 10 ms are done after 2 s of work without a gap; without load the last row comes at 2 s as well.
    assert counts[150] < free[150] * 0.9
    assert counts[-1] == pytest.approx(100 * 100 * 5e-3)


def test_time_to_inverts_outputs() -> None:
    plan, given = parse("((a c) b)"), model(arrival=1e-3, extra=5e-3)
    horizon = 10.0
    t = time_to(plan, given, 500.0, horizon=horizon)
    assert outputs(plan, given, np.linspace(0, t, 2001))[-1] == pytest.approx(500.0, rel=1e-2)
    assert time_to(plan, given, 0.0, horizon=horizon) == 0.0
    assert time_to(plan, given, 1e12, horizon=horizon) == inf


def test_local_estimates_of_one_join() -> None:
    plan = parse("(a c)")
    assert local_rate(plan, model(), 4.0) == pytest.approx(join_rate(50, 100, 5e-3, 0, 0, 2.0))
    # n = f l r t^2 / 2 for a join that keeps up, unless a stream cannot have sent enough by then.
    assert local_time(plan, model(), 100.0) == pytest.approx((2 * 100 / 25) ** 0.5)


def test_local_time_of_a_tree_is_that_of_its_slowest_part() -> None:
    below, above = model(extra=0.1), model()
    assert local_time(parse("((a c) b)"), below, 1000.0) > local_time(parse("((a c) b)"), above, 1000.0)
    finite = model(cardinality=1000.0)
    assert local_time(parse("((a b) c)"), finite, 1e4) > 0
    nothing = RateModel(finite.streams, {frozenset("ab"): 0.0}, 0.0)
    assert local_time(parse("((a b) c)"), nothing, 1.0) == inf


def test_the_traditional_cost_sees_only_sizes() -> None:
    given = model(arrival=1.0, cardinality=1000.0)
    assert cardinality_cost(parse("((a b) c)"), given) == pytest.approx(2000 + 1000**2 * 2e-3 + 1000)


def test_rates_over_time_are_for_trees() -> None:
    with pytest.raises(PlanError, match="more than two inputs"):
        local_rate(parse("(a b c)"), model(), 1.0)
