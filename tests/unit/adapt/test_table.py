"""Moves of partition groups in a running host: by hand, by a schedule, and by a measured rebalancing."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.adapt.balancing import Balance, BalanceWatch, Thresholds
from anabranch.adapt.policy import Interval
from anabranch.adapt.table import ScheduledMove, TableSteering
from anabranch.balance.loads import SlotLoad, estimate_loads
from anabranch.cql import compile_query
from anabranch.errors import PlanError, SpecError
from anabranch.host.local import LocalHost
from anabranch.plan.partitioning import choose_partitioning
from anabranch.plan.query_set import ALONE
from anabranch.plan.slots import SlotPlan
from anabranch.plan.text import parse
from anabranch.stats.report import QueryReport, SlotReport
from anabranch.testing.scripted import answer_lines, read_rows, read_script

CATALOG = read_script("\n".join(f"stream {name} (k bigint, v string)" for name in "ab")).catalog
QUERY = compile_query(
    "SELECT a.v AS x, b.v AS y FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k", CATALOG
)
PLAN = parse("(a b)")
TABLE = choose_partitioning(QUERY.graph, 2)
KEYS = range(12)


def step(host: LocalHost, *lines: str) -> tuple[str, ...]:
    return answer_lines(host.step(read_rows(CATALOG, lines)))


@pytest.mark.parametrize("durable", [False, True])
def test_groups_move_and_the_answer_does_not_change(durable: bool, tmp_path: Path) -> None:
    host = LocalHost(QUERY, PLAN, slots=2, checkpoint=str(tmp_path) if durable else None)
    assert step(host, *(f"a 1 {key} x{key}" for key in KEYS)) == ()
    host.move(range(TABLE.groups), 1)
    assert sorted(step(host, *(f"b 2 {key} y" for key in KEYS))) == sorted(f"x{key} y" for key in KEYS)
    (record,) = host.history
    assert (record["kind"], record["batch"], record["by"], record["rebuilt"]) == ("move", 1, "user", [])
    assert [(move["from"], move["to"]) for move in record["moves"]] == [(0, 1)]
    assert 0 < record["rows"] < len(KEYS)
    # And back, while rows that were left behind are still there: the slot that takes the groups is rebuilt.
    host.move(TABLE.groups_of(0), 0)
    assert sorted(step(host, *(f"b 3 {key} z" for key in KEYS))) == sorted(f"x{key} z" for key in KEYS)
    assert host.history[-1]["rebuilt"] == [0]
    assert host.partitioning == TABLE


def test_the_table_survives_a_restart(tmp_path: Path) -> None:
    host = LocalHost(QUERY, PLAN, slots=2, checkpoint=str(tmp_path))
    host.move([0, 1, 2], 1)
    step(host, "a 1 1 x")
    assert LocalHost(QUERY, PLAN, slots=2, checkpoint=str(tmp_path)).partitioning == TABLE.moved([0, 1, 2], 1)
    assert LocalHost(QUERY, PLAN, slots=3, checkpoint=str(tmp_path)).partitioning.slots == 3


def test_groups_move_before_the_first_batch_too() -> None:
    """Engines were made for the first table and kept its test of ownership, so results of the groups were lost."""
    theta = compile_query("SELECT a.v AS x, b.v AS y FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS]", CATALOG)
    host = LocalHost(theta, PLAN, slots=4)
    host.move(host.partitioning.groups_of(0), 1)
    found = step(host, *(f"a 1 {key} x{key}" for key in KEYS), *(f"b 2 {key} y{key}" for key in KEYS))
    assert sorted(found) == sorted(f"x{one} y{other}" for one in KEYS for other in KEYS)


def test_a_schedule_moves_groups_and_says_what_it_could_not() -> None:
    steering = TableSteering(TABLE, [ScheduledMove(1, 1, 2, sender=0), ScheduledMove(2, 0, (63,))])
    assert steering.next(0) == (TABLE, [])
    moved = TABLE.moved([0, 1], 1)
    assert steering.next(1) == (moved, [])
    assert steering.next(2) == (moved.moved([63], 0), [])


@pytest.mark.parametrize(
    ("move", "message"),
    [
        (ScheduledMove(1, 2, (0,)), "slot 2 does not exist"),
        (ScheduledMove(1, 1, 3), "3 groups are to move, from no slot"),
        (ScheduledMove(1, 1, 3, sender=5), "slot 5 does not exist"),
    ],
)
def test_a_schedule_that_can_never_be_kept_is_refused(move: ScheduledMove, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        TableSteering(TABLE, [move])


def test_a_move_that_cannot_be_made_is_refused_and_nothing_moves() -> None:
    host = LocalHost(QUERY, PLAN, slots=2)
    for groups, to, message in (([64], 0, "partition group 64 does not exist"), ([0], 7, "slot 7 does not exist")):
        with pytest.raises(PlanError, match=message):
            host.move(groups, to)
    assert host.partitioning == TABLE
    host.move([0], 1)
    with pytest.raises(PlanError, match="are to move with the next batch already"):
        host.move([1], 1)
    step(host, "a 1 1 x")
    host.move([1], 1)


def report(cpu: float, cells: tuple[int, ...] | None) -> SlotReport:
    counts = None if cells is None else {"a": cells, "b": cells}
    return SlotReport({ALONE: QueryReport(SlotPlan(PLAN).plan)}, cpu=cpu, cells=counts, was_hot=True)


def test_a_rebalancing_moves_what_a_measured_batch_shows() -> None:
    steering = TableSteering(TABLE)
    busy = tuple(1 if slot == 0 else 0 for slot in TABLE.table)
    idle = tuple(1 - cell for cell in busy)
    steering.rebalance()
    counts = [steering.counts_cells]
    # A batch that was under way when it was asked for has no counts; the next one has.
    assert steering.after(3, {0: report(4.0, None), 1: report(1.0, None)}) == []
    (decision,) = steering.after(4, {0: report(4.0, busy), 1: report(1.0, idle)})
    told = decision.to_json()
    assert (told["kind"], told["action"], told["trigger"], told["skew"]) == ("balance", "move", "asked for", 1.6)
    assert told["expectedSkew"] < 1.06
    assert [*counts, steering.counts_cells] == [True, False]
    table, _ = steering.next(5)
    assert 0 < len(TABLE.groups_of(0)) - len(table.groups_of(0)) <= 14
    (record,) = steering.after(5, {0: report(2.5, None), 1: report(2.5, None)})
    assert record.to_json()["by"] == "user"


def test_a_rebalancing_of_even_slots_says_so() -> None:
    steering = TableSteering(TABLE)
    steering.rebalance()
    half = tuple(1 for _ in TABLE.table)
    (record,) = steering.after(0, {0: report(1.0, half), 1: report(1.0, half)})
    told = record.to_json()
    assert (told["action"], told["skew"], told["heavy"]) == ("keep", 1.0, [])
    assert told["reason"] == "no group can move without making another slot the slowest"


def test_a_host_counts_its_rows_by_cell_when_it_is_asked_to() -> None:
    host = LocalHost(QUERY, PLAN, slots=2)
    host.rebalance()
    assert step(host, *(f"a 1 {key} x" for key in KEYS), *(f"b 2 {key} y" for key in KEYS)) == ("x y",) * len(KEYS)
    assert not host.steering.table.counts_cells


def even(cpu: tuple[float, float], *, counted: bool = False) -> dict[int, SlotReport]:
    return {
        slot: report(each, tuple(int(at == slot) for at in TABLE.table) if counted else None)
        for slot, each in enumerate(cpu)
    }


def test_a_query_that_balances_itself_watches_measures_moves_and_rests() -> None:
    steering = TableSteering(TABLE, balance=Balance("auto", remember=3, cool_down=Interval(batches=4)))
    for batch in range(3):
        assert not steering.counts_cells
        assert steering.after(batch, even((4.0, 1.0))) == []
    (decision,) = steering.after(3, even((4.0, 1.0), counted=True))
    told = decision.to_json()
    assert (told["action"], told["trigger"]) == ("move", "slot 0 takes 1.60 times the average CPU time")
    table, _ = steering.next(4)
    assert table != TABLE
    (moved,) = steering.after(4, even((2.5, 2.5)))
    assert moved.to_json()["by"] == "balance"
    # It rests for the cool-down, whatever the loads are.
    for batch in range(5, 8):
        steering.after(batch, even((9.0, 1.0)))
        assert not steering.counts_cells


@pytest.mark.parametrize(
    ("balance", "cpu"),
    [
        (Balance("manual", remember=2), (4.0, 1.0)),
        (Balance("auto", remember=2), (1.1, 1.0)),
        (Balance("auto", remember=2, seconds=2.0), (4.0, 1.0)),
        (Balance("auto", remember=2, thresholds=Thresholds(100.0, 50.0, 10.0)), (4.0, 1.0)),
    ],
    ids=["by hand", "even enough", "too little", "state is even"],
)
def test_a_query_that_need_not_move_measures_nothing(balance: Balance, cpu: tuple[float, float]) -> None:
    steering = TableSteering(TABLE, balance=balance)
    for batch in range(20):
        assert steering.after(batch, even(cpu)) == []
        assert not steering.counts_cells


def test_a_frozen_query_does_not_balance_itself() -> None:
    steering = TableSteering(TABLE, balance=Balance("auto", remember=2))
    steering.freeze()
    for batch in range(9):
        assert steering.after(batch, even((4.0, 1.0))) == []
        assert not steering.counts_cells


def test_with_balancing_off_nothing_moves() -> None:
    host = LocalHost(QUERY, PLAN, slots=2, balance=Balance("off"))
    with pytest.raises(PlanError, match="balancing is off"):
        host.move([0], 1)
    with pytest.raises(PlanError, match="balancing is off"):
        host.rebalance()
    with pytest.raises(PlanError, match="balancing is off"):
        TableSteering(TABLE, [ScheduledMove(1, 1, (0,))], Balance("off"))


def test_a_move_that_does_not_pay_is_not_made() -> None:
    dear = [SlotLoad(4.0, 1e12), SlotLoad(1.0, 1e3)]
    loads = estimate_loads(TABLE, {"a": [1] * 64, "b": [1] * 64}, dear)
    _, refused = BalanceWatch(Balance("auto", horizon=10)).propose(TABLE, loads)
    assert refused is not None
    assert "is paid back after" in refused


def test_thresholds_move_half_the_difference_between_one_pair() -> None:
    watch = BalanceWatch(Balance("auto", remember=1, thresholds=Thresholds(100.0, 50.0, 10.0)))
    loads = estimate_loads(TABLE, {"a": [1] * 64, "b": [1] * 64}, [SlotLoad(1.0, 320.0), SlotLoad(1.0, 0.0)])
    found, refused = watch.propose(TABLE, loads)
    assert refused is None
    (move,) = found.moves
    assert (move.sender, move.receiver, found.bytes) == (0, 1, 160.0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("automatic", "balance"),
        ({"ratio": 0.5}, "balance.ratio"),
        ({"mode": "auto", "cool": 3}, "cool"),
        ({"thresholds": {"most": 1}}, "balance.thresholds.least"),
    ],
)
def test_a_wrong_setting_is_named(value: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Balance.from_mapping(value)  # type: ignore[arg-type]
