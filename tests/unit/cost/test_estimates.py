from __future__ import annotations

import random
from dataclasses import replace

import pytest

from anabranch.cost.estimates import Estimates, ThetaEstimate, from_edges, from_statistics
from anabranch.cost.resources import ResourceModel
from anabranch.cql import compile_query
from anabranch.errors import PlanError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.optimize.problem import resource_model
from anabranch.plan.join_graph import JoinGraph
from anabranch.stats.view import NOTHING_KNOWN, FixedStatistics
from lab.papers.printed_costs import HASHED
from tests.unit.optimize.graphs import chain_graph, key, less, random_setting, relation


def test_given_numbers_arrive_with_their_source() -> None:
    seen = FixedStatistics(rates={"a": 20, "b": 30}, selectivities={"a b": 0.05}, bytes={"a": 7, "b": 9})
    estimates = from_statistics(chain_graph("ab"), seen)
    assert list(estimates.rates) == [20, 30]
    assert list(estimates.windows) == [10, 10]
    assert list(estimates.row_bytes) == [7, 9]
    assert ResourceModel(estimates, HASHED).selectivity(0b01, 0b10) == pytest.approx(0.05)
    assert {used.provenance for used in estimates.used} == {"given"}


def test_unknowns_are_assumed_and_marked() -> None:
    estimates = from_statistics(chain_graph("abc"), FixedStatistics(rates={"a": 10, "b": 30}))
    assert estimates.rates[2] == 20
    assumed = {used.what for used in estimates.used if used.provenance == "assumed"}
    assert "rate of c" in assumed
    assert "selectivity of a.a1 = b.b1" in assumed
    # A foreign key: a row of the smaller state meets about one row of the larger.
    assert ResourceModel(estimates, HASHED).selectivity(0b001, 0b010) == pytest.approx(1 / 300)


def test_a_filter_thins_the_stream() -> None:
    graph = JoinGraph(
        (relation("a", ("x",), filtered=True), relation("b", ("x",))), (key("k", ("a", "x"), ("b", "x")),)
    )
    seen = FixedStatistics(rates={"a": 100, "b": 1}, filters={"a": 0.1})
    assert list(from_statistics(graph, seen).rates) == pytest.approx([10, 1])


def test_an_unbounded_window_counts_to_the_horizon() -> None:
    graph = JoinGraph((relation("a", ("x",), None), relation("b", ("x",), 0)), (key("k", ("a", "x"), ("b", "x")),))
    assert list(from_statistics(graph, NOTHING_KNOWN, horizon=60).windows) == pytest.approx([60, 1e-6])


def with_table(rows: float | None, passing: float = 0.1) -> Estimates:
    """A stream of a thousand rows and a filtered table, by a key."""
    table = replace(relation("t", ("x",), None, filtered=True), is_table=True)
    graph = JoinGraph((relation("a", ("x",)), table), (key("k", ("a", "x"), ("t", "x")),))
    known = {} if rows is None else {"t": rows}
    return from_statistics(graph, FixedStatistics(rates={"a": 100}, filters={"t": passing}, rows=known))


def test_a_table_holds_its_rows_and_none_arrives() -> None:
    model = ResourceModel(with_table(5_000), HASHED)
    assert model.rows(0b10) == pytest.approx(500)
    assert model.births(0b10) == pytest.approx(0.0, abs=1e-5)
    assert model.held(0b10) == pytest.approx(500)
    assert model.estimates.longest_window == 10.0
    assert ("rows of t", "given") in [(used.what, used.provenance) for used in model.estimates.used]
    assert ("rows of t", "assumed") in [(used.what, used.provenance) for used in with_table(None).used]


@pytest.mark.parametrize("rows", [200.0, 5_000.0])
def test_a_row_of_a_stream_refers_to_one_row_of_a_table_which_its_filter_may_have_taken(rows: float) -> None:
    model = ResourceModel(with_table(rows), HASHED)
    assert model.rows(0b11) / model.rows(0b01) == pytest.approx(0.1)


def test_joins_of_tables_are_priced_once() -> None:
    tables = [replace(relation(name, ("x",), None), is_table=True) for name in "tu"]
    graph = JoinGraph(
        (relation("a", ("x", "y")), *tables), (key("k", ("a", "x"), ("t", "x")), key("l", ("a", "y"), ("u", "x")))
    )
    seen = FixedStatistics(rates={"a": 100}, rows={"t": 800, "u": 200})
    model = resource_model(graph, seen, 1.0)
    assert model.rows(0b110) == model.held(0b110) == pytest.approx(160_000)
    assert model.upkeep(0b110) < 1e-6


def test_pairs_of_one_class_are_kept_where_they_are_consistent() -> None:
    members = (("a", "x"), ("b", "x"), ("c", "x"))
    graph = JoinGraph(tuple(relation(name, ("x",)) for name in "abc"), (key("k", *members),))
    seen = FixedStatistics(rates={"a": 1, "b": 1, "c": 1}, selectivities={"a b": 1e-3, "b c": 2e-4, "a c": 2e-4})
    model = ResourceModel(from_statistics(graph, seen), HASHED)
    assert model.selectivity(0b001, 0b010) == pytest.approx(1e-3)
    assert model.selectivity(0b010, 0b100) == pytest.approx(2e-4)
    # Not the product of all three pairs: once a = b and b = c hold, a = c is no further condition.
    assert model.rows(0b111) == pytest.approx(10**3 * 1e-3 * 2e-4)


def test_a_theta_takes_its_own_entry_or_that_of_its_pair() -> None:
    graph = JoinGraph((relation("a", ("x",)), relation("b", ("x",))), (), (less(("a", "x"), ("b", "x")),))
    by_text = FixedStatistics(selectivities={"a.x < b.x": 0.4})
    by_pair = FixedStatistics(selectivities={"b a": 0.3})
    assert from_statistics(graph, by_text).thetas == (ThetaEstimate(0b11, 0.4),)
    assert from_statistics(graph, by_pair).thetas == (ThetaEstimate(0b11, 0.3),)
    assert from_statistics(graph, NOTHING_KNOWN).thetas == (ThetaEstimate(0b11, 1 / 3),)


def test_bands_over_event_times_shorten_the_windows_and_tell_their_own_share() -> None:
    catalog = Catalog()
    for name in "ab":
        catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint"), "ts"))
    text = "SELECT a.k FROM a [RANGE 1 HOUR], b [RANGE 1 HOUR] WHERE b.ts BETWEEN a.ts - INTERVAL 2 SECONDS AND a.ts"
    graph = compile_query(f"{text} + INTERVAL 6 SECONDS", catalog).graph
    seen = FixedStatistics(
        rates={"a": 10, "b": 30},
        selectivities={str(graph.thetas[0]): 0.5},
        provenance="sampled",
    )
    estimates = from_statistics(graph, seen)
    assert list(estimates.windows) == [6, 2]
    # As many pairs are born as rows of one stream come within the band around a row of the other.
    model = ResourceModel(estimates, HASHED)
    assert model.births(0b11) == pytest.approx(10 * 30 * (6 + 2))
    # In a grouped query they count for the whole window.
    assert list(from_statistics(graph, seen, slide=1.0).windows) == [3600, 3600]


def test_rows_of_a_set_do_not_depend_on_the_order_of_joining() -> None:
    rng = random.Random(5)
    for _ in range(20):
        model = ResourceModel(random_setting(rng, 6, extra_edges=3), HASHED)
        left = rng.randrange(1, 62)
        right = 63 ^ left
        joined = model.rows(left) * model.rows(right) * model.selectivity(left, right)
        assert joined == pytest.approx(model.rows(63))


def test_a_query_beyond_the_mask_is_refused() -> None:
    with pytest.raises(PlanError, match="63 relations"):
        from_edges({f"s{i}": 1.0 for i in range(63)}, 1.0, {})
    assert isinstance(from_edges({f"s{i}": 1.0 for i in range(62)}, 1.0, {}), Estimates)
