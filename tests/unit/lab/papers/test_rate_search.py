from __future__ import annotations

import random

import numpy as np
import pytest

from anabranch.errors import PlanError
from anabranch.plan.text import parse
from lab.papers.rate_model import RateModel, StreamRate, outputs, time_to
from lab.papers.rate_search import (
    first_to,
    maximise_local_rate,
    minimise_local_time,
    most_results_by,
    trees,
)


def setting(seed: int, size: int = 4) -> RateModel:
    rng = random.Random(seed)
    names = [f"s{i}" for i in range(size)]
    streams = {name: StreamRate(rng.uniform(5, 500)) for name in names}
    pairs = {frozenset((names[rng.randrange(i)], names[i])): 10 ** rng.uniform(-4, -2) for i in range(1, size)}
    extra = {pair: rng.choice([0.0, 5e-3]) for pair in pairs}
    return RateModel(streams, pairs, 1e-4, extra)


def test_trees_are_counted_by_the_double_factorial() -> None:
    assert [sum(1 for _ in trees(tuple("abcdef"[:size]))) for size in (2, 3, 4, 5)] == [1, 3, 15, 105]
    with pytest.raises(PlanError, match="too many"):
        next(trees(tuple("abcdefghi")))


def test_the_dear_predicate_is_kept_away_from_the_fast_side() -> None:
    streams = {"a": StreamRate(50.0), "b": StreamRate(500.0), "c": StreamRate(100.0)}
    pairs = {frozenset("ab"): 2e-3, frozenset("ac"): 5e-3}
    model = RateModel(streams, pairs, 1e-4, {frozenset("ac"): 5e-3})
    assert most_results_by(model, 60.0)[0].plan == parse("((a c) b)")
    assert first_to(model, 100_000.0, horizon=300.0)[0].plan == parse("((a c) b)")
    assert maximise_local_rate(model, 60.0).plan == parse("((a c) b)")
    assert minimise_local_time(model, 100_000.0).plan == parse("((a c) b)")


@pytest.mark.parametrize("seed", range(6))
def test_rankings_agree_with_the_integral(seed: int) -> None:
    model = setting(seed)
    ranked = most_results_by(model, 20.0)
    values = [r.value for r in ranked]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(float(outputs(ranked[0].plan, model, np.linspace(0, 20, 400))[-1]))
    goal = values[0] / 2
    quickest = first_to(model, goal, horizon=60.0)
    assert (
        quickest[0].value
        <= min(time_to(plan, model, goal, horizon=60.0) for plan in trees(tuple(model.streams))) * 1.01
    )


def test_heuristics_come_close_to_the_reference() -> None:
    shares = []
    for seed in range(12):
        model = setting(seed, size=5)
        reference = most_results_by(model, 20.0, steps=150)
        picked = maximise_local_rate(model, 20.0).plan
        got = float(outputs(picked, model, np.linspace(0, 20, 150))[-1])
        shares.append(got / reference[0].value)
    assert float(np.median(shares)) > 0.9
