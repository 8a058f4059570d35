"""Predicates at work: counted one by one, and checked in the order of what was measured of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.engine.meter import LEARNT_ROWS, Meter
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.optimize.problem import resource_model
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from anabranch.stats.measured import TIMED_ROWS, measured
from anabranch.stats.step import CheckStatistics, StepStatistics, merge
from anabranch.stats.view import FixedStatistics


def query_of(condition: str) -> Query:
    catalog = Catalog()
    for name in "ab":
        catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint, v bigint, s string"), "ts"))
    text = f"SELECT a.v AS x, b.v AS y FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS] WHERE a.k = b.k AND {condition}"
    return compile_query(text, catalog)


def rows(count: int, seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    times = (
        pa.array(np.sort(random.integers(0, 1_000_000, count))).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    )
    values = random.integers(0, 100, count)
    return pa.table({"ts": times, "k": random.integers(0, 4, count), "v": values, "s": [str(v) for v in values]})


def test_each_predicate_is_counted_on_what_the_ones_before_left() -> None:
    query = query_of("a.v <= b.v AND a.v + b.v <> 7")
    host = LocalHost(query, parse("(a b)"))
    given = {"a": rows(100, 1), "b": rows(100, 2)}
    found = host.step(given)
    (probe,) = [each for each in host.statistics.probes if each.matches]
    first, second = sorted(host.statistics.checks, key=lambda check: -check.rows)
    assert first.rows == probe.matches
    assert second.rows == first.passed
    assert second.passed == probe.kept == found.num_rows > 0
    assert {first.predicate, second.predicate} == {str(theta) for theta in query.graph.thetas}


def test_the_statistics_of_a_step_have_its_counts() -> None:
    meter = Meter()
    first, second = query_of("a.v <= b.v AND a.s <> b.s").graph.thetas
    meter.checked(first, 100, 40, 1e-3)
    meter.checked(second, 40, 39, 2e-3)
    meter.checked(first, 10, 1, 1e-3)
    step = meter.finish({})
    assert step.checks == (
        CheckStatistics(str(first), 110, 41, 2e-3),
        CheckStatistics(str(second), 40, 39, 2e-3),
    )
    assert merge([step, step]).checks[1] == CheckStatistics(str(second), 80, 78, 4e-3)
    assert StepStatistics.from_json(step.to_json()) == step
    assert meter.finish({}).checks == ()


@pytest.mark.parametrize("slow", [0, 1])
def test_the_order_follows_what_was_measured(slow: int) -> None:
    meter = Meter()
    thetas = query_of("a.v <= b.v AND a.v <> b.k").graph.thetas
    for place, theta in enumerate(thetas):
        meter.checked(theta, 10_000, 5_000, 1.0 if place == slow else 1e-4)
    assert meter.in_order(thetas) == thetas, "the order changes between steps"
    meter.finish({})
    assert meter.in_order(thetas)[-1] is thetas[slow]
    for place, theta in enumerate(thetas):
        meter.checked(theta, LEARNT_ROWS, LEARNT_ROWS // 2, 1e-2 if place == slow else 200.0)
    meter.finish({})
    assert meter.in_order(thetas)[0] is thetas[slow], "what was learnt before is forgotten"


def test_a_guard_stays_first_however_slow_it_is() -> None:
    meter = Meter()
    thetas = query_of("a.s <> b.s || 'x' AND CAST(a.s AS BIGINT) < b.v").graph.thetas
    guard, guarded = thetas
    meter.checked(guard, 10_000, 9_999, 9.0)
    meter.checked(guarded, 10_000, 1, 1e-6)
    meter.finish({})
    assert meter.in_order(thetas) == thetas


def test_measured_costs_and_shares_of_predicates_reach_the_model() -> None:
    query = query_of("a.v <= b.v AND a.s <> b.s")
    first, second = map(str, query.graph.thetas)
    checks = (
        CheckStatistics(first, TIMED_ROWS, TIMED_ROWS // 5, TIMED_ROWS * 4e-7),
        CheckStatistics(second, TIMED_ROWS - 1, 7, 1.0),
    )
    seen = measured(query, parse("(a b)"), [StepStatistics({"a": 10, "b": 10}, checks=checks)], 1.0)
    assert seen.predicates == {first: pytest.approx(4e-7)}
    assert seen.selectivities[first] == pytest.approx(0.2)
    cost = seen.predicate_cost(first)
    assert cost is not None
    assert cost.provenance == "measured"
    estimates = resource_model(query.graph, seen).estimates
    assert [theta.weight for theta in estimates.thetas] == [pytest.approx(10.0), 1.0]


def test_the_cost_of_a_predicate_can_be_given() -> None:
    query = query_of("a.v <= b.v")
    seen = FixedStatistics.from_mapping({"predicates": {"a.v <= b.v": 8e-8}})
    seen.check_names(query.graph)
    assert resource_model(query.graph, seen).estimates.thetas[0].weight == pytest.approx(2.0)
