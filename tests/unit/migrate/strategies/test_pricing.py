"""What a migration is reckoned to cost: nothing where no state is lacking, and in proportion to what is computed."""

from __future__ import annotations

import pytest

from anabranch.cost.units import ENGINE
from anabranch.cql import compile_query
from anabranch.migrate.strategies.pricing import prices
from anabranch.migrate.strategies.strategy import Price
from anabranch.optimize.problem import resource_model
from anabranch.plan.text import parse
from anabranch.stats.view import FixedStatistics
from tests.support.scripted import read_script
from tests.unit.adapt.simulated import chain
from tests.unit.optimize.graphs import chain_graph, key, relation

GRAPH = chain().graph
LEFT, RIGHT, FLAT = parse("((a b) c)"), parse("(a (b c))"), parse("(a b c | a>b>c, b>a>c, c>b>a)")


def statistics(bc: float = 0.001) -> FixedStatistics:
    return FixedStatistics(rates=dict.fromkeys("abc", 1000.0), selectivities={"a b": 0.001, "b c": bc})


def test_where_no_state_is_lacking_there_is_one_way_and_it_is_short() -> None:
    model = resource_model(GRAPH, statistics())
    (way,) = prices(GRAPH, LEFT, FLAT, model)
    assert (way.strategy, way.memory, way.seconds) == ("none", 0.0, 0.0)
    (orders,) = prices(GRAPH, FLAT, FLAT, model)
    assert orders.cpu == 0.0


def test_moving_state_costs_what_it_computes_and_parallel_tracks_a_window() -> None:
    few, many = (resource_model(GRAPH, statistics(bc)) for bc in (0.0001, 0.01))
    cheap, dear = ({way.strategy: way for way in prices(GRAPH, LEFT, RIGHT, model)} for model in (few, many))
    assert cheap["moving-state"].cpu < dear["moving-state"].cpu / 10
    assert cheap["parallel-track"].seconds == 10.0
    assert dear["moving-state"].memory == pytest.approx(100 * cheap["moving-state"].memory)
    assert prices(GRAPH, LEFT, RIGHT, few)[0].strategy == "moving-state"
    # Spread over steps it costs a little more, and no step waits.
    assert cheap["spread"].cpu > cheap["moving-state"].cpu == cheap["moving-state"].pause
    assert (cheap["spread"].pause, cheap["spread"].memory) == (0.0, cheap["moving-state"].memory)


def test_a_strategy_that_never_ends_is_not_offered() -> None:
    bounded = chain_graph("abc")
    endless = type(bounded)(
        (relation("a", ("a0", "a1"), None), *bounded.relations[1:]),
        (key("k0", ("a", "a1"), ("b", "b1")), *bounded.keys[1:]),
    )
    model = resource_model(endless, statistics())
    assert [way.strategy for way in prices(endless, LEFT, RIGHT, model)] == ["moving-state", "spread"]


def test_merged_states_are_filled_from_the_rows_that_are_there() -> None:
    streams = read_script("stream a (k bigint, v bigint)\nstream b (k bigint)").catalog
    window = "[RANGE 20 SECONDS SLIDE 5 SECONDS]"
    text = f"SELECT b.k AS k, SUM(a.v) AS t FROM a {window}, b {window} WHERE a.k = b.k GROUP BY b.k"
    query = compile_query(text, streams)

    def ways(rate: float, groups: float) -> dict[str, Price]:
        seen = FixedStatistics({"a": rate, "b": rate}, {}, {"a b": 0.02}, groups={"a": groups, "b": groups})
        model = resource_model(query.graph, seen, 1.0, query.grouping)
        return {way.strategy: way for way in prices(query.graph, parse("(a b)"), parse("([a] [b])"), model)}

    few, many = ways(1000.0, 50.0), ways(10_000.0, 50.0)
    assert few["moving-state"].cpu > 2 * 20_000 * ENGINE.group
    assert many["moving-state"].cpu > 9 * few["moving-state"].cpu
    assert few["moving-state"].memory < ways(1000.0, 5_000.0)["moving-state"].memory / 5
    assert few["parallel-track"].cpu > few["moving-state"].cpu


def test_filtering_a_state_costs_less_than_computing_it_and_leaves_nothing_to_wait_for() -> None:
    streams = [f"stream {name} (k bigint, v bigint)" for name in "abc"]
    windows = ", ".join(f"{name} [RANGE 10 SECONDS]" for name in "abc")
    text = f"query SELECT a.v AS v FROM {windows} WHERE a.k = b.k AND b.k = c.k AND a.v < b.v"
    query = read_script("\n".join([*streams, text]))
    graph = compile_query(query.query, query.catalog).graph
    model = resource_model(graph, statistics())
    late = parse("((a b) c #0)")
    filtering, slowly = prices(graph, late, LEFT, model)
    assert (filtering.strategy, slowly.strategy) == ("moving-state", "spread")
    assert 0 < filtering.cpu < min(way.cpu for way in prices(graph, RIGHT, LEFT, model))
    (moving,) = prices(graph, LEFT, late, model)
    assert moving.strategy == "none"
