"""Statistics read off a running plan against those its rows were drawn from."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from anabranch import cql
from anabranch.calibrate.engine_costs import BATCH, Workload, stream
from anabranch.engine.engine import Engine
from anabranch.lang.catalog import Catalog
from anabranch.lang.schema import TIMESTAMP
from anabranch.plan.partitioning import choose_partitioning
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from anabranch.stats.measured import from_progress, measured
from anabranch.stats.step import ProbeStatistics, StateStatistics, StepStatistics
from anabranch.stats.view import NOTHING_KNOWN, FixedStatistics

SECOND = 1_000_000
LOAD = Workload(
    {"a": 300.0, "b": 500.0, "c": 400.0, "d": 200.0},
    {("a", "b"): 0.004, ("b", "c"): 0.002, ("c", "d"): 0.01},
    2.0,
    True,
)


def steps_of(load: Workload, text: str, count: int) -> list[StepStatistics]:
    query = load.query()
    engine = Engine.alone(query, parse(text))
    floors, steps = dict.fromkeys(query.graph.names, 0), []
    for rows in load.batches(np.random.default_rng(1), count, query):
        list(engine.step(rows, floors))
        floors = {name: int(batch.times[-1]) for name, batch in rows.items()}
        steps.append(engine.statistics().total)
    return steps


@pytest.mark.parametrize("text", ["(a b c d | a>b>c>d, b>a>c>d, c>b>d>a, d>c>b>a)", "(((a b) c) d)", "((a b) (c d))"])
def test_rates_and_selectivities_are_found_again(text: str) -> None:
    steps = steps_of(LOAD, text, 12)[4:]
    seen = measured(LOAD.query(), parse(text), steps, len(steps) * BATCH)
    for name, rate in LOAD.rates.items():
        known = seen.rate(name, name)
        assert known is not None
        assert known.provenance == "measured"
        assert known.value == pytest.approx(rate, rel=0.1)
    for (one, other), selectivity in LOAD.selectivities.items():
        known = seen.pair_selectivity(one, other)
        assert known is not None
        assert known.value == pytest.approx(selectivity, rel=0.15)
    theta = seen.predicate_selectivity("a.weight < b.weight")
    assert theta is not None
    assert theta.value == pytest.approx(0.5, rel=0.1)


def test_windows_that_are_still_filling_do_not_hide_matches() -> None:
    load = Workload({"a": 400.0, "b": 400.0}, {("a", "b"): 0.01}, 40.0)
    steps = steps_of(load, "(a b)", 8)
    seen = measured(load.query(), parse("(a b)"), steps, len(steps) * BATCH)
    known = seen.pair_selectivity("a", "b")
    assert known is not None
    assert known.value == pytest.approx(0.01, rel=0.25)


@pytest.mark.parametrize("text", ["(a b c | a>b>c, b>a>c, c>b>a)", "((a b) c)", "(a (b c))"])
@pytest.mark.parametrize("share", [0.25, 0.75])
def test_windows_shorter_than_a_batch_are_no_other_selectivities(text: str, share: float) -> None:
    """A row meets rows of its own batch only, and those in which the order of the inputs lets it."""
    edges = {("a", "b"): 0.02, ("b", "c"): 0.01}
    load = Workload({"a": 3000.0, "b": 3000.0, "c": 3000.0}, edges, share * BATCH)
    steps = steps_of(load, text, 8)[1:]
    seen = measured(load.query(), parse(text), steps, len(steps) * BATCH)
    for (one, other), selectivity in edges.items():
        known = seen.pair_selectivity(one, other)
        assert known is not None
        assert known.value == pytest.approx(selectivity, rel=0.35)


def test_rows_that_went_to_several_slots_count_once() -> None:
    catalog = Catalog()
    for name, columns in {"a": ("x",), "b": ("x", "y"), "c": ("y",)}.items():
        catalog.register(stream(name, columns))
    query = cql.compile_query(
        "SELECT a.x AS x FROM a [RANGE 4 SECONDS], b [RANGE 4 SECONDS], c [RANGE 4 SECONDS] "
        "WHERE a.x = b.x AND b.y = c.y",
        catalog,
    )
    plan = parse("(a b c | a>b>c, b>a>c, c>b>a)")
    seen = measured(query, plan, *_spread(query, slots=4), partitioning=choose_partitioning(query.graph, 4))
    assert choose_partitioning(query.graph, 4).copies(["a"]) > 1
    for name in "abc":
        assert seen.rates[name] == pytest.approx(200.0, rel=0.01)
    assert seen.selectivities["a b"] == pytest.approx(1 / 50, rel=0.2)
    assert seen.selectivities["b c"] == pytest.approx(1 / 20, rel=0.2)


def _spread(query: Query, *, slots: int) -> tuple[list[StepStatistics], float]:
    host, rng, steps = (
        LocalHost(query, parse("(a b c | a>b>c, b>a>c, c>b>a)"), slots=slots),
        np.random.default_rng(1),
        [],
    )
    for first, last in pairwise(range(0, 13_000_000, 1_000_000)):
        rows = {}
        for relation in query.graph.relations:
            times = pa.array(np.sort(rng.integers(first, last, 200))).cast(pa.timestamp("us")).cast(TIMESTAMP)
            keys = {"x": rng.integers(0, 50, 200), "y": rng.integers(0, 20, 200)}
            rows[relation.stream] = pa.table({**keys, relation.event_time: times})
        host.step(rows)
        steps.append(host.statistics)
    return steps[5:], float(len(steps[5:]))


def test_selectivities_without_lookups_are_unknown() -> None:
    query, plan = LOAD.query(), parse("(((a b) c) d)")
    idle = StepStatistics(rows_in=dict.fromkeys("abcd", 0), probes=(ProbeStatistics("(a b)", "a", "b"),))
    seen = measured(query, plan, [idle], 1.0)
    assert seen.pair_selectivity("a", "b") is None


def test_a_stream_without_rows_is_slow_not_stopped() -> None:
    """At a rate of zero every plan would cost nothing, and a product of streams could be chosen."""
    idle = StepStatistics(rows_in={**dict.fromkeys("bcd", 9), "a": 0})
    assert measured(LOAD.query(), parse("(((a b) c) d)"), [idle], 2.0).rates == {
        "a": 0.25,
        **dict.fromkeys("bcd", 4.5),
    }


def test_a_lookup_that_never_matched_is_rare_not_impossible() -> None:
    step = StepStatistics(
        rows_in=dict.fromkeys("abcd", 100),
        probes=(ProbeStatistics("(a b)", "a", "b", probes=100),),
        states=(StateStatistics("b", 200, 0, inserted=100),),
    )
    first = measured(LOAD.query(), parse("(((a b) c) d)"), [step], 1.0).selectivities["a b"]
    assert 0 < first < 1e-3
    for before, after in ((2 * first, first), (first / 2, first / 2)):
        seen = measured(LOAD.query(), parse("(((a b) c) d)"), [step], 1.0, before={"a b": before})
        assert seen.selectivities["a b"] == after, "few rows without a match do not prove more than was known"


def test_progress_says_the_same_as_the_steps() -> None:
    text = "((a b) (c d))"
    steps = steps_of(LOAD, text, 12)
    spread = choose_partitioning(LOAD.query().graph, 1).to_json()
    where = {"slots": 1, "grid": spread["dimensions"], "table": spread["table"]}
    progress = [
        {"adaptive": {"plan": text, **where, "watermark": (n + 1) * SECOND, "statistics": step.to_json()}}
        for n, step in enumerate(steps)
    ]
    other = {"adaptive": {**progress[0]["adaptive"], "plan": "(a b c d)"}}
    query = LOAD.query()
    seen = from_progress(query, [other, {"adaptive": None}, *progress])
    assert seen == measured(query, parse(text), steps[1:], 11.0)
    again = FixedStatistics.from_mapping(seen.to_mapping())
    again.check_names(query.graph)
    assert again.rates == seen.rates
    assert again.selectivities == seen.selectivities


@pytest.mark.parametrize("count", [0, 1])
def test_progress_whose_event_time_stands_still_is_not_used(count: int) -> None:
    step = StepStatistics(rows_in=dict.fromkeys("abcd", 1)).to_json()
    entry = {"adaptive": {"plan": "(a b c d)", "slots": 1, "table": [0], "watermark": 5, "statistics": step}}
    assert from_progress(LOAD.query(), [entry] * (2 * count)) is NOTHING_KNOWN


@pytest.mark.parametrize("text", ["((a b) c)", "(a (b c))", "(a b c | a>b>c, b>a>c, c>b>a)"])
def test_a_band_has_the_share_of_all_pairs_not_of_those_in_its_bucket(text: str) -> None:
    """Buckets reject most pairs before any predicate counts them."""
    catalog = Catalog()
    for name in "abc":
        catalog.register(stream(name, ("x", "v")))
    query = cql.compile_query(
        "SELECT a.x AS x FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS], c [RANGE 10 SECONDS] "
        "WHERE a.x = b.x AND b.v BETWEEN c.v - 2 AND c.v + 2",
        catalog,
    )
    rng, host, steps = np.random.default_rng(3), LocalHost(query, parse(text)), []
    for number in range(20):
        batch = {}
        for name in "abc":
            times = 1_000 * SECOND + number * SECOND + np.sort(rng.integers(0, SECOND, 300))
            columns = {"x": rng.integers(0, 200, 300), "v": rng.integers(0, 1_000, 300)}
            batch[name] = pa.table({"ts": pa.array(times).cast(TIMESTAMP), **columns})
        host.step(batch)
        steps.append(host.statistics)
    seen = measured(query, parse(text), steps[12:], 8.0)
    shares = [seen.predicate_selectivity(str(theta)) for theta in query.graph.thetas]
    assert all(share is not None for share in shares)
    assert [share.value for share in shares if share is not None] == pytest.approx([5 / 1_000, 1.0], rel=0.15)
