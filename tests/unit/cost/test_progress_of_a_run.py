"""The progress that `rate@` and `first@` predict, against runs of the engine on a clock that charges its counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pytest

from anabranch.cost.counted import counted_cpu
from anabranch.cost.progress import at, progress, stream_time_to
from anabranch.cost.resources import ResourceModel
from anabranch.cost.units import ENGINE
from anabranch.lang.schema import TIMESTAMP
from anabranch.optimize.problem import resource_model
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.text import parse
from anabranch.stats.step import StepStatistics
from anabranch.stats.view import FixedStatistics
from lab.virtual_clock import Moment, run_query
from tests.unit.adapt.simulated import chain

RATES = {"a": 400.0, "b": 800.0, "c": 1200.0}
AB, BC = 200, 2_000
"""Keys of the two joins."""
STATISTICS = FixedStatistics(rates=RATES, selectivities={"a b": 1 / AB, "b c": 1 / BC}, costs=ENGINE.by_name())
BATCH = 0.25
PLANS = tuple(map(parse, ("((a b) c)", "(a (b c))", "(a b c | a>b>c, b>c>a, c>b>a)")))
SECONDS = 24.0
WINDOWS = (2, 8, 800)
"""The times in question are from a hundredth of the window to more than ten windows."""


def model(window: int) -> ResourceModel:
    return resource_model(chain("abc", window=window).graph, STATISTICS, BATCH)


def cores(window: int) -> float:
    """Half of what the cheapest plan needs halfway, so that all plans fall behind."""
    return 0.5 * min(at(model(window), SECONDS / 2).price(plan).cpu for plan in PLANS)


def slices() -> Iterator[tuple[float, Mapping[str, pa.Table]]]:
    rng = np.random.default_rng(7)
    for number in range(round(SECONDS / BATCH)):
        tables = {}
        for name, rate in RATES.items():
            count = round(rate * BATCH)
            times = np.sort(rng.integers(0, round(BATCH * 1e6), count)) + round(number * BATCH * 1e6)
            keys = {"l": rng.integers(0, BC if name == "c" else AB, count)}
            keys["r"] = rng.integers(0, BC if name == "b" else AB, count)
            tables[name] = pa.table({"ts": pa.array(times).cast(pa.timestamp("us")).cast(TIMESTAMP), **keys})
        yield (number + 1) * BATCH, tables


def run(window: int, plan: PhysicalPlan) -> list[Moment]:
    query, priced, available = chain("abc", window=window), model(window), cores(window)

    def charge(step: StepStatistics) -> float:
        return counted_cpu(plan, step, 1, 1.0, priced, query.graph) / available

    return list(run_query(query, plan, slices(), charge))


@pytest.fixture(scope="module")
def runs() -> dict[tuple[int, PhysicalPlan], list[Moment]]:
    return {(window, plan): run(window, plan) for window in WINDOWS for plan in PLANS}


Runs: TypeAlias = dict[tuple[int, PhysicalPlan], list[Moment]]


@pytest.mark.parametrize(("window", "t"), [(2, 8.0), (2, 24.0), (8, 4.0), (8, 8.0), (8, 24.0), (800, 8.0), (800, 24.0)])
def test_results_by_a_time_are_as_predicted(runs: Runs, window: int, t: float) -> None:
    found, expected = {}, {}
    for plan in PLANS:
        moments = runs[window, plan]
        found[plan] = float(np.interp(t, [m.done for m in moments], [m.results for m in moments]))
        expected[plan] = progress(plan, model(window), cores(window), t).results_by(t)
        assert found[plan] >= 10_000
        assert expected[plan] == pytest.approx(found[plan], rel=0.05)
    ahead = max(PLANS, key=lambda plan: expected[plan])
    assert found[ahead] >= 0.99 * max(found.values())


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("results", [10_000, 100_000])
def test_the_time_to_some_results_is_as_predicted(runs: Runs, window: int, results: int) -> None:
    found, expected = {}, {}
    until = stream_time_to(model(window), results)
    for plan in PLANS:
        moments = runs[window, plan]
        found[plan] = float(np.interp(results, [m.results for m in moments], [m.done for m in moments]))
        expected[plan] = progress(plan, model(window), cores(window), until).time_to(results)
        assert expected[plan] == pytest.approx(found[plan], rel=0.05)
    ahead = min(PLANS, key=lambda plan: expected[plan])
    assert found[ahead] <= 1.01 * min(found.values())
