"""The progress that `rate@` and `first@` predict, against runs of the engine on a clock that charges its counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pytest

from anabranch.cost.counted import counted_cpu
from anabranch.cost.progress import progress
from anabranch.cost.units import ENGINE
from anabranch.lang.schema import TIMESTAMP
from anabranch.optimize.problem import resource_model
from anabranch.plan.text import parse
from anabranch.stats.step import StepStatistics
from anabranch.stats.view import FixedStatistics
from lab.virtual_clock import Moment, run_query
from tests.unit.adapt.simulated import chain

QUERY = chain("abc", window=8)
RATES = {"a": 400.0, "b": 800.0, "c": 1200.0}
AB, BC = 200, 2_000
"""Keys of the two joins."""
STATISTICS = FixedStatistics(rates=RATES, selectivities={"a b": 1 / AB, "b c": 1 / BC}, costs=ENGINE.by_name())
BATCH = 0.25
MODEL = resource_model(QUERY.graph, STATISTICS, BATCH)
PLANS = tuple(map(parse, ("((a b) c)", "(a (b c))", "(a b c | a>b>c, b>c>a, c>b>a)")))
CORES = 0.5 * min(MODEL.price(plan).cpu for plan in PLANS)
"""Half of what the cheapest plan needs, so that all of them fall behind."""
SECONDS = 24.0


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


def run(text: str) -> list[Moment]:
    plan = parse(text)

    def charge(step: StepStatistics) -> float:
        return counted_cpu(plan, step, 1, 1.0, MODEL, QUERY.graph) / CORES

    return list(run_query(QUERY, plan, slices(), charge))


@pytest.fixture(scope="module")
def runs() -> dict[str, list[Moment]]:
    return {str(plan): run(str(plan)) for plan in PLANS}


@pytest.mark.parametrize("t", [6.0, 12.0, 24.0])
def test_results_by_a_time_are_as_predicted(runs: dict[str, list[Moment]], t: float) -> None:
    found, expected = {}, {}
    for plan in PLANS:
        moments = runs[str(plan)]
        found[str(plan)] = float(np.interp(t, [m.done for m in moments], [m.results for m in moments]))
        expected[str(plan)] = progress(plan, MODEL, CORES).results_by(t)
        assert found[str(plan)] == pytest.approx(expected[str(plan)], rel=0.15)
    assert max(found, key=lambda text: found[text]) == max(expected, key=lambda text: expected[text])


@pytest.mark.parametrize("results", [200_000, 1_000_000])
def test_the_time_to_some_results_is_as_predicted(runs: dict[str, list[Moment]], results: int) -> None:
    found, expected = {}, {}
    for plan in PLANS:
        moments = runs[str(plan)]
        found[str(plan)] = float(np.interp(results, [m.results for m in moments], [m.done for m in moments]))
        expected[str(plan)] = progress(plan, MODEL, CORES).time_to(results)
        assert found[str(plan)] == pytest.approx(expected[str(plan)], rel=0.15)
    assert min(found, key=lambda text: found[text]) == min(expected, key=lambda text: expected[text])
