"""The grid of a running query follows the rates of its streams, and the answer does not change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from anabranch.adapt.balancing import Balance
from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.loads import LoadHistory
from anabranch.cql import compile_query
from anabranch.plan.partitioning import Partitioning, choose_partitioning
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from anabranch.stats.report import SlotReport
from anabranch.stats.step import StateStatistics, StepStatistics
from tests.support.oracle import describe_difference, rows_as_multiset
from tests.support.scripted import read_rows, read_script

CATALOG = read_script(
    "stream p (x bigint, v bigint)\nstream a (x bigint, y bigint)\nstream b (y bigint, v bigint)"
).catalog
QUERY = compile_query(
    "SELECT p.v AS i, b.v AS j FROM p [RANGE 4 SECONDS], a [RANGE 4 SECONDS], b [RANGE 4 SECONDS] "
    "WHERE p.x = a.x AND a.y = b.y",
    CATALOG,
)
PLAN = parse("((p a) b)")
FREE = Balance("auto", seconds=0.0, horizon=10_000_000, remember=2)


def batches(rates: Mapping[str, int], count: int) -> Iterator[dict[str, pa.Table]]:
    """Batches of a second each; keys repeat, so that rows of all ages meet."""
    for second in range(count):
        lines = []
        for name, rate in rates.items():
            for number in range(rate):
                time, key = second + number / rate, (7 * second + number) % 5
                lines.append(f"a {time} {key} {key}" if name == "a" else f"{name} {time} {key} {second * 100 + number}")
        yield read_rows(CATALOG, lines)


def run(host: LocalHost, rates: Mapping[str, int], count: int) -> tuple[pa.Table, list[float]]:
    results, sent = [], []
    for batch in batches(rates, count):
        results.append(host.step(batch))
        sent.append(sum(host.statistics.rows_in.values()) / sum(rates.values()))
    return pa.concat_tables(results), sent


@pytest.mark.parametrize("asked", [False, True])
def test_a_query_whose_rates_changed_takes_the_grid_that_sends_fewer_rows(asked: bool) -> None:
    rates = {"p": 1, "a": 3, "b": 46}
    expected, _ = run(LocalHost(QUERY, PLAN), rates, 6)
    host = LocalHost(QUERY, PLAN, slots=2, balance=Balance() if asked else FREE)
    if asked:
        host.rebalance()
    found, sent = run(host, rates, 6)
    assert sent[0] == pytest.approx(1.92)
    assert sent[-1] == pytest.approx(1.02)
    assert not describe_difference(rows_as_multiset(expected), rows_as_multiset(found))
    decided, moved = host.history
    assert (decided["kind"], decided["action"], decided["sent"]) == ("balance", "grid", pytest.approx(1.92))
    assert decided["expectedGrid"] == moved["grid"] == {"k0": 1, "k1": 64}
    assert (moved["kind"], moved["by"], moved["moves"]) == ("move", "balance" if not asked else "user", [])
    assert moved["rebuilt"] == [0, 1]


def test_the_grid_survives_a_restart(tmp_path: Any) -> None:
    host = LocalHost(QUERY, PLAN, slots=2, balance=FREE, checkpoint=str(tmp_path))
    run(host, {"p": 1, "a": 3, "b": 46}, 4)
    assert LocalHost(QUERY, PLAN, slots=2, checkpoint=str(tmp_path)).partitioning == host.partitioning
    assert host.partitioning.shares == {"k0": 1, "k1": 64}


def best(traffic: Mapping[str, float]) -> Partitioning:
    return choose_partitioning(QUERY.graph, 2, traffic=traffic)


def watched(balance: Balance, reports: Mapping[int, SlotReport]) -> LoadHistory:
    watch = LoadHistory(balance)
    for batch in range(balance.remember):
        watch = watch.after(BatchFacts(batch, 1.0), reports)
    return watch


def slots(rows: Mapping[str, int], cpu: float = 1.0, state: int = 100) -> dict[int, SlotReport]:
    step = StepStatistics(states=tuple(StateStatistics(name, 10, state) for name in "pab"))
    return {slot: SlotReport(rows={**rows}, statistics=step, cpu=cpu) for slot in range(2)}


TABLE = choose_partitioning(QUERY.graph, 2)
FAST_B = {"p": 1, "a": 3, "b": 46}


def proposed(balance: Balance, rows: Mapping[str, int], cpu: float = 1.0, state: int = 100) -> str | None:
    found = watched(balance, slots(rows, cpu, state)).other_grid(TABLE, best)
    return "nothing" if found is None else balance.objection(found.saved, found.bytes)


def test_a_grid_must_pay() -> None:
    auto = Balance("auto")
    assert proposed(auto, FAST_B) is None
    assert proposed(auto, {"p": 46, "a": 3, "b": 1}) == "nothing", "the grid in force is the best"
    assert proposed(auto, {"p": 21, "a": 3, "b": 22}) == "nothing", "another one is hardly better"
    assert "s of a batch, 0.02 s are wanted" in (proposed(auto, FAST_B, cpu=0.001) or "")
    assert "is paid back after" in (proposed(auto, FAST_B, state=10**12) or "")


def test_wide_rows_count_more_than_narrow_ones() -> None:
    reports = slots({"p": 10, "a": 3, "b": 12})
    step = StepStatistics(states=(StateStatistics("p", 10, 9000), StateStatistics("b", 10, 10)))
    wide = {slot: SlotReport(rows=report.rows, statistics=step, cpu=1.0) for slot, report in reports.items()}
    by_rows = best({"p": 10.0, "a": 3.0, "b": 12.0})
    assert by_rows.shares == {"k0": 1, "k1": 64}
    assert watched(Balance("auto"), reports).other_grid(by_rows, best) is None
    found = watched(Balance("auto"), wide).other_grid(by_rows, best)
    assert found is not None
    assert found.proposed.shares == {"k0": 64, "k1": 1}


def test_a_frozen_query_keeps_its_grid() -> None:
    host = LocalHost(QUERY, PLAN, slots=2, balance=FREE)
    host.steering.freeze()
    _, sent = run(host, FAST_B, 6)
    assert sent[-1] == pytest.approx(1.92)
    assert host.history == []


def test_one_slot_and_one_key_have_no_grid_to_choose() -> None:
    one = Partitioning.from_json({**TABLE.to_json(), "slots": 1, "table": [0] * 64})
    assert watched(Balance("auto"), slots(FAST_B)).other_grid(one, best) is None


def test_what_saves_nothing_does_not_pay_whatever_it_costs() -> None:
    assert FREE.objection(0.0, 1000.0) == "saves nothing"
    assert FREE.objection(1e-9, 0.0) is None
