"""A key that is too much for one slot is split over several: by hand, by a schedule, and by the query itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anabranch.adapt.balancing import Balance
from anabranch.adapt.course import Table
from anabranch.adapt.facts import BatchFacts, Interval
from anabranch.adapt.schedule import ScheduledSplit, split_over
from anabranch.adapt.table import TableSteering
from anabranch.balance.heavy import settle_heavy
from anabranch.balance.loads import SlotLoad, estimate_loads
from anabranch.cql import compile_query
from anabranch.errors import PlanError
from anabranch.lang.catalog import Catalog
from anabranch.plan.partitioning import Partitioning, choose_partitioning
from anabranch.plan.query_set import ALONE
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from anabranch.stats.keys import KeyCounts
from anabranch.stats.report import QueryReport, SlotReport
from anabranch.stats.report import whole as whole_report
from tests.support.scripted import answer_lines, read_rows, read_script

CATALOG = read_script(
    "stream a (k bigint, s string)\nstream b (k bigint, s string)\nstream c (k bigint, s string)"
).catalog
WINDOW = "[RANGE 10 SECONDS]"
QUERY = compile_query(f"SELECT a.s AS x, b.s AS y FROM a {WINDOW}, b {WINDOW} WHERE a.k = b.k", CATALOG)
CHAIN = compile_query(
    f"SELECT a.s AS x, b.s AS y, c.s AS z FROM a {WINDOW}, b {WINDOW}, c {WINDOW} WHERE a.k = b.k AND b.s = c.s",
    CATALOG,
)
THETA = compile_query(f"SELECT a.s AS x, b.s AS y FROM a {WINDOW}, b {WINDOW} WHERE a.k < b.k", CATALOG)
PLAN = parse("(a b)")
TABLE = choose_partitioning(QUERY.graph, 4)
HOT = 7
ROWS = [f"{name} {second + number / 10} {HOT if number % 2 else number} {name}{number}"
        for second in range(2) for name in "ab" for number in range(8)]  # fmt: skip


def step(host: LocalHost, *lines: str, catalog: Catalog = CATALOG) -> tuple[str, ...]:
    return answer_lines(host.step(read_rows(catalog, lines)))


def sent(host: LocalHost) -> float:
    return sum(host.statistics.rows_in.values())


@pytest.mark.parametrize("durable", [False, True])
def test_a_key_is_split_and_united_by_hand_and_the_answer_does_not_change(durable: bool, tmp_path: Path) -> None:
    whole = LocalHost(QUERY, PLAN)
    host = LocalHost(QUERY, PLAN, slots=4, checkpoint=str(tmp_path) if durable else None)
    assert step(host, *ROWS[:10]) == step(whole, *ROWS[:10])
    host.split(HOT, over=4)
    assert step(host, *ROWS[10:20]) == step(whole, *ROWS[10:20])
    assert sent(host) > sent(whole), "rows of the key are copied"
    split = host.history[-1]
    assert (split["kind"], split["by"], len(split["split"])) == ("move", "user", 1)
    if durable:
        host = LocalHost(QUERY, PLAN, slots=4, checkpoint=str(tmp_path))
        assert [key.value for key in host.partitioning.heavy] == [HOT]
    host.unite(HOT)
    assert step(host, *ROWS[20:]) == step(whole, *ROWS[20:])
    assert sent(host) == sent(whole)
    assert host.history[-1]["united"] == split["split"]
    assert host.partitioning == TABLE


def test_a_restart_with_other_slots_takes_the_split_back(tmp_path: Path) -> None:
    whole = LocalHost(QUERY, PLAN)
    host = LocalHost(QUERY, PLAN, slots=4, checkpoint=str(tmp_path))
    host.split(HOT)
    assert step(host, *ROWS[:16]) == step(whole, *ROWS[:16])
    host = LocalHost(QUERY, PLAN, slots=3, checkpoint=str(tmp_path))
    assert host.partitioning.heavy == ()
    assert step(host, *ROWS[16:]) == step(whole, *ROWS[16:])


def test_a_text_is_a_key_too_and_one_of_several_keys_is_named() -> None:
    whole, plan = LocalHost(CHAIN, parse("(a b c)")), parse("((a b) c)")
    rows = [*ROWS, *(f"c {second} 0 b{number}" for second in range(2) for number in range(8))]
    host = LocalHost(CHAIN, plan, slots=4)
    host.split("b1", over=[1, 3], key="c.s")
    assert sorted(step(host, *rows)) == sorted(step(whole, *rows))
    with pytest.raises(PlanError, match="the query has several keys"):
        host.split("b1")
    with pytest.raises(PlanError, match=r"has no key 'c\.q'"):
        host.split("b1", key="c.q")


@pytest.mark.parametrize(
    ("query", "value", "over", "message"),
    [
        (QUERY, "seven", None, "'seven' is not a value of key"),
        (QUERY, None, None, "never NULL"),
        (QUERY, HOT, 1, "cannot be split over 1 of 4 slots"),
        (QUERY, HOT, 9, "cannot be split over 9 of 4 slots"),
        (QUERY, HOT, [0, 4], "slot 4 does not exist"),
        (THETA, HOT, None, "compares no keys"),
    ],
)
def test_a_split_that_cannot_be_made_is_refused_and_nothing_changes(
    query: Any, value: Any, over: Any, message: str
) -> None:
    host = LocalHost(query, PLAN, slots=4)
    before = host.partitioning
    with pytest.raises(PlanError, match=message):
        host.split(value, over)
    assert host.partitioning == before
    with pytest.raises(PlanError):
        host.unite(HOT)


def test_with_balancing_off_nothing_is_split() -> None:
    host = LocalHost(QUERY, PLAN, slots=4, balance=Balance("off"))
    with pytest.raises(PlanError, match="balancing is off"):
        host.split(HOT)
    with pytest.raises(PlanError, match="balancing is off"):
        host.unite(HOT)


def test_a_schedule_splits_and_unites() -> None:
    schedule = [
        ScheduledSplit(1, "k0", HOT, 2),
        ScheduledSplit(3, "k0", HOT, unites=True),
        ScheduledSplit(4, "k0", 9, 2),
    ]
    steering = TableSteering(Table(TABLE), schedule)
    split, _ = steering.next(1)
    assert split == split_over(TABLE, "k0", HOT, 2)
    assert steering.next(2) == (split, [])
    assert steering.next(3) == (TABLE, [])
    steering.split("k0", 9)
    _, (refused,) = steering.next(4)
    assert "to move with the next batch already" in refused.to_json()["reason"]


def counts(table: Partitioning, hot: int, others: int) -> tuple[dict[str, np.ndarray], dict[str, KeyCounts]]:
    """Rows by cell of both relations: one hot value, and others evenly."""
    rows = {}
    for name in "ab":
        cells = np.zeros(table.cells(name))
        cells[: table.region(0)] = others / table.region(0)
        if table.heavy:
            cells[table.region(0) :] = hot / (table.cells(name) - table.region(0))
        else:
            cells[split_over(TABLE, "k0", HOT).heavy[0].coordinate(TABLE.region(0))] += hot
        rows[name] = cells
    keys = KeyCounts(others, dict.fromkeys("ab", hot + others), {HOT: dict.fromkeys("ab", hot)})
    return rows, {"k0": keys}


def loads_of(table: Partitioning, rows: dict[str, np.ndarray], keys: dict[str, KeyCounts], cpu: list[float]) -> Any:
    return estimate_loads(table, rows, [SlotLoad(each, 1000.0 * each) for each in cpu], keys=keys)


def test_a_key_with_more_work_than_an_average_slot_is_split_over_as_many_slots_as_it_needs() -> None:
    home = TABLE.table[split_over(TABLE, "k0", HOT).heavy[0].coordinate(64)]
    cpu = [1.0 if slot != home else 13.0 for slot in range(4)]
    rows, keys = counts(TABLE, 500, 500)
    found = settle_heavy(TABLE, loads_of(TABLE, rows, keys, cpu), keys, rows)
    (key,) = found.split
    assert (key.code, key.value) == ("k0", HOT)
    assert dict(key.shares) == {"a": 4, "b": 4}
    assert 0.4 < key.frequency < 0.6
    assert found.loads.skew < 1.3
    assert found.loads.cpu.sum() > 16.0, "copies cost"
    # Slots that may have no groups get no part of it.
    narrow = settle_heavy(TABLE, loads_of(TABLE, rows, keys, cpu), keys, rows, available=[0, 1])
    assert set(narrow.table.table[64:]) == {0, 1}


def test_a_key_that_a_slot_can_bear_is_not_split() -> None:
    rows, keys = counts(TABLE, 20, 4000)
    found = settle_heavy(TABLE, loads_of(TABLE, rows, keys, [1.0, 1.1, 1.0, 1.0]), keys, rows)
    assert not found
    assert found.table == TABLE
    assert not settle_heavy(TABLE, loads_of(TABLE, rows, keys, [0.0] * 4), keys, rows)
    assert not settle_heavy(TABLE, loads_of(TABLE, rows, keys, [9.0, 0, 0, 0]), keys, rows, available=[0])


@pytest.mark.parametrize(("hot", "united"), [(1000, 0), (10, 1)])
def test_a_key_that_is_not_heavy_any_more_is_united(hot: int, united: int) -> None:
    table = split_over(TABLE, "k0", HOT)
    rows, keys = counts(table, hot, 1000)
    found = settle_heavy(table, loads_of(table, rows, keys, [1.0] * 4), keys, rows)
    assert len(found.united) == united
    assert (found.table == TABLE) == bool(united)
    assert sum(found.loads.groups) == pytest.approx(4.0)


def report(cpu: float, rows: dict[str, np.ndarray], keys: dict[str, KeyCounts], share: float) -> SlotReport:
    cells = {name: tuple((each * share).tolist()) for name, each in rows.items()}
    return SlotReport({ALONE: QueryReport(PLAN)}, cpu=cpu, cells=cells, keys=keys if share == 1.0 else {}, was_hot=True)


def test_a_query_splits_a_key_by_itself_and_unites_it_again() -> None:
    balance = Balance("auto", remember=2, horizon=6, cool_down=Interval(batches=1), show_keys=False)
    steering = TableSteering(Table(TABLE), balance=balance)
    rows, keys = counts(TABLE, 500, 500)
    home = TABLE.table[split_over(TABLE, "k0", HOT).heavy[0].coordinate(64)]
    skewed = {slot: report(13.0 if slot == home else 1.0, rows, keys, float(slot == 0)) for slot in range(4)}
    records = [record.to_json() for batch in range(4) for record in steering.after(BatchFacts(batch, 1.0), skewed)]
    (decision,) = records
    assert (decision["action"], len(decision["split"])) == ("move", 1)
    assert decision["split"][0].startswith("k0#")
    assert decision["expectedSkew"] < 1.3
    table, _ = steering.next(4)
    assert [key.value for key in table.heavy] == [HOT]
    few, seldom = counts(table, 1, 1000)
    even = {slot: report(4.0, few, seldom, float(slot == 0)) for slot in range(4)}
    later = [record.to_json() for batch in range(4, 14) for record in steering.after(BatchFacts(batch, 1.0), even)]
    assert [record["kind"] for record in later] == ["move", "balance"]
    assert later[1]["trigger"] == "heavy keys are looked at again"
    assert later[1]["united"] == decision["split"]
    assert steering.next(14)[0].heavy == ()


def test_a_host_finds_its_heavy_key_names_it_as_allowed_and_stays_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_rows(stages: list[SlotReport]) -> SlotReport:
        """The report of a slot whose CPU time is what it received: a clock would judge a step this small by chance."""
        return replace(whole_report(stages), cpu=float(sum(stages[0].rows.values())))

    monkeypatch.setattr("anabranch.run.local.whole", by_rows)
    lines = [f"{name} {number / 50} {HOT if number % 2 else number} {name}" for number in range(200) for name in "ab"]
    whole = LocalHost(QUERY, PLAN)
    host = LocalHost(QUERY, PLAN, slots=4, balance=Balance(show_keys=True))
    host.rebalance()
    assert step(host, *lines) == step(whole, *lines)
    assert step(host, f"a 4 {HOT} x") == step(whole, f"a 4 {HOT} x")
    decision, moved = host.history
    assert decision["split"] == moved["split"] == ["a.k = b.k = 7"]
    assert step(host, f"b 4.5 {HOT} y", "b 4.5 4 y") == step(whole, f"b 4.5 {HOT} y", "b 4.5 4 y")
