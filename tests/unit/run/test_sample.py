"""What a sample says, against what its rows were drawn from."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from anabranch import cql
from anabranch.calibrate.engine_costs import stream
from anabranch.engine.batch import RelationBatch
from anabranch.lang.catalog import Catalog
from anabranch.lang.schema import TIMESTAMP
from anabranch.plan.query import Query
from anabranch.run.sample import Stretch, sampled

SECOND = 1_000_000


def joined(conditions: str, seconds: int = 10) -> Query:
    catalog = Catalog()
    for name in "ab":
        catalog.register(stream(name, ("x", "y", "v")))
    windows = f"a [RANGE {seconds} SECONDS], b [RANGE {seconds} SECONDS]"
    return cql.compile_query(f"SELECT a.v AS av, b.v AS bv FROM {windows} WHERE {conditions}", catalog)


def drawn(query: Query, name: str, rng: np.random.Generator, count: int, span: int, **codes: int) -> RelationBatch:
    """Rows over a span of seconds; codes and columns are uniform over so many values."""
    times = np.sort(rng.integers(0, span * SECOND, count))
    payload = {
        field.name: pa.array(times).cast(pa.timestamp("us")).cast(TIMESTAMP)
        if field.type == TIMESTAMP
        else pa.array(rng.integers(0, 1000, count))
        for field in query.graph.relation(name).schema
    }
    keys = {key.name: rng.integers(0, codes[key.name], count) for key in query.graph.keys_of([name])}
    return RelationBatch(times, keys, pa.RecordBatch.from_pydict(payload))


def test_keys_that_repeat_give_their_selectivity_from_a_short_sample() -> None:
    query, rng = joined("a.x = b.x", seconds=600), np.random.default_rng(1)
    rows = {"a": drawn(query, "a", rng, 3000, 5, k0=40), "b": drawn(query, "b", rng, 2000, 5, k0=40)}
    seen = sampled(query, {}, rows)
    known = seen.pair_selectivity("a", "b")
    assert known is not None
    assert known.provenance == "sampled"
    assert known.value == pytest.approx(1 / 40, rel=0.1)


def test_of_a_predicate_that_another_keeps_from_failing_nothing_is_known() -> None:
    """It is tried on pairs that the other would have rejected; the overflow ended the start of the query."""
    query = joined("a.x = b.x AND a.v + b.v < 0 AND a.v * 9000000000000000000 <> b.v")
    rng = np.random.default_rng(1)
    rows = {name: drawn(query, name, rng, 3000, 5, k0=40) for name in "ab"}
    seen = sampled(query, {}, rows)
    guard, guarded = query.graph.thetas
    assert str(guard) in seen.selectivities
    assert str(guarded) not in seen.selectivities


def test_pairs_outside_the_windows_do_not_count() -> None:
    """Keys drift with time: only rows near each other agree, and only those are ever compared."""
    query, rng = joined("a.x = b.x", seconds=2), np.random.default_rng(2)
    rows = {name: drawn(query, name, rng, 4000, 100, k0=1) for name in "ab"}
    rows = {name: RelationBatch(b.times, {"k0": b.times // (5 * SECOND)}, b.payload) for name, b in rows.items()}
    known = sampled(query, {}, rows).pair_selectivity("a", "b")
    assert known is not None
    # Of two rows within 2 s of each other, most are in the same stretch of 5 s.
    assert known.value == pytest.approx(0.8, abs=0.05)


def test_a_short_sample_of_rarely_repeated_keys_is_not_used() -> None:
    query, rng = joined("a.x = b.x", seconds=600), np.random.default_rng(3)
    rows = {name: drawn(query, name, rng, 1000, 5, k0=1_000_000) for name in "ab"}
    assert sampled(query, {}, rows).pair_selectivity("a", "b") is None
    long = {name: drawn(query, name, rng, 1000, 1200, k0=1_000_000) for name in "ab"}
    known = sampled(query, {}, long).pair_selectivity("a", "b")
    assert known is not None
    assert known.value < 1e-4


def test_two_keys_are_taken_together_and_predicates_are_tried() -> None:
    query, rng = joined("a.x = b.x AND a.y = b.y AND a.v < b.v"), np.random.default_rng(4)
    rows = {name: drawn(query, name, rng, 3000, 30, k0=10, k1=5) for name in "ab"}
    seen = sampled(query, {}, rows)
    known = seen.pair_selectivity("a", "b")
    assert known is not None
    assert known.value == pytest.approx(1 / 50, rel=0.1)
    theta = seen.predicate_selectivity("a.v < b.v")
    assert theta is not None
    assert theta.value == pytest.approx(0.5, abs=0.05)


def test_rates_filters_and_sizes_come_from_the_stretch() -> None:
    query, rng = joined("a.x = b.x AND a.v > 5"), np.random.default_rng(5)
    rows = {"a": drawn(query, "a", rng, 500, 10, k0=4)}
    seen = sampled(query, {"a": Stretch(1000, 10.0, 0.5), "b": Stretch(30, 0.0, 1.0)}, rows)
    assert seen.rates == {"a": 100.0}
    assert seen.filters["a"] == 0.5
    assert seen.bytes["a"] >= 8
    assert seen.pair_selectivity("a", "b") is None


def test_a_filter_that_passed_nothing_is_rare_not_impossible() -> None:
    query = joined("a.x = b.x AND a.v > 5")
    seen = sampled(query, {"a": Stretch(100, 10.0, 0.0)}, {})
    assert seen.filters["a"] == pytest.approx(0.005)


def test_rows_years_apart_fit_beside_their_keys() -> None:
    query, rng = joined("a.x = b.x", seconds=86_400 * 365), np.random.default_rng(6)
    rows = {name: drawn(query, name, rng, 500, 86_400 * 365 * 20, k0=10) for name in "ab"}
    known = sampled(query, {}, rows).pair_selectivity("a", "b")
    assert known is not None
    assert known.value == pytest.approx(0.1, rel=0.2)


def test_a_grouped_query_learns_into_how_many_groups_rows_would_be_merged() -> None:
    catalog = Catalog()
    for name in "ab":
        catalog.register(stream(name, ("x", "y", "v")))
    windows = "a [RANGE 10 SECONDS SLIDE 5 SECONDS], b [RANGE 10 SECONDS SLIDE 5 SECONDS]"
    text = f"SELECT b.y AS y, SUM(a.v) AS total FROM {windows} WHERE a.x = b.x GROUP BY b.y"
    query, rng = cql.compile_query(text, catalog), np.random.default_rng(3)
    rows = {"a": drawn(query, "a", rng, 3000, 5, k0=40), "b": drawn(query, "b", rng, 3000, 5, k0=40)}
    seen = sampled(query, {}, rows)
    # Rows of a need only agree in the key; those of b in the key and the group.
    assert seen.groups["a"] == pytest.approx(40, rel=0.1)
    assert seen.groups["b"] > 10_000
    assert not sampled(joined("a.x = b.x"), {}, rows).groups


@pytest.mark.parametrize("condition", ["a.v BETWEEN b.v - 2 AND b.v + 2", "b.v - a.v <= 2 AND a.v - b.v <= 2"])
def test_a_band_has_the_share_of_both_its_halves(condition: str) -> None:
    """Each half alone passes half of all pairs, and together they are not independent."""
    query, rng = joined(condition), np.random.default_rng(5)
    rows = {name: drawn(query, name, rng, 3000, 30) for name in "ab"}
    seen = sampled(query, {}, rows)
    shares = [seen.selectivities[str(theta)] for theta in query.graph.thetas]
    assert shares[0] == pytest.approx(5 / 1000, rel=0.15)
    assert shares[1] == 1.0


def test_other_predicates_beside_a_band_are_tried_on_what_it_keeps() -> None:
    query, rng = joined("a.v BETWEEN b.v - 2 AND b.v + 2 AND a.v <> b.v"), np.random.default_rng(6)
    rows = {name: drawn(query, name, rng, 3000, 30) for name in "ab"}
    seen = sampled(query, {}, rows)
    assert seen.selectivities["a.v <> b.v"] == pytest.approx(4 / 5, rel=0.1)
