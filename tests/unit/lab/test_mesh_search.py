"""The search experiments: judged by true selectivities, and heuristics held against the optimum."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.mesh.learn import Priced
from anabranch.mesh.routes import Router
from anabranch.plan.classifier import Assign, parse_classifier
from lab.mesh_search import COSTS, FREE, PARTITIONS, measure_quality, present_quality, worlds
from lab.registry import Setting


def test_a_world_rewards_the_mesh_that_follows_its_partitions() -> None:
    world = next(iter(worlds(1, seed=1)))
    router = Router(world.truth, np.full(PARTITIONS, 1 / PARTITIONS), FREE)
    orders = tuple(router.best(np.array([part])).order for part in range(PARTITIONS))
    nothing = np.zeros(0)
    ideal = Priced(parse_classifier("(a0 <= 0.5 ? 0 : (a0 <= 1.5 ? 1 : 2))"), orders, 0.0, nothing, nothing)
    assert world.rate(ideal) > 1.3 * world.single_rate()
    single = Priced(Assign(0), (router.best(np.arange(PARTITIONS)).order,), 0.0, nothing, nothing)
    assert world.rate(single) == pytest.approx(world.single_rate(), rel=0.05)
    assert COSTS.route < 1 / world.rate(ideal)


def test_a_quick_run_comes_close_to_the_optimum_and_never_below_it() -> None:
    outcome = present_quality(measure_quality(Setting(seed=2, quick=True)))
    ratios = [float(row[4]) for row in outcome.rows]
    assert min(ratios) >= 1 - 1e-12
    # Merging only merges routes, so its result depends on the start; the product starts with the routes of the rows.
    usual = [ratio for ratio, row in zip(ratios, outcome.rows, strict=True) if row[2] != "merge" or row[6] == "route"]
    assert np.mean(usual) < 1.05
    assert "II-QM +" in outcome.verdicts[0].here
