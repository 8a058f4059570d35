"""Moves of partition groups in a running host: by hand, by a schedule, and by a measured rebalancing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from anabranch.adapt.balancing import Balance
from anabranch.adapt.course import Table
from anabranch.adapt.facts import BatchFacts, Interval, Moment
from anabranch.adapt.schedule import ScheduledMove, ScheduledScale
from anabranch.adapt.table import TableSteering
from anabranch.balance.loads import SlotLoad, estimate_loads
from anabranch.balance.rule import even_out
from anabranch.balance.scaling import spread_over
from anabranch.cql import compile_query
from anabranch.engine.ownership import coordinates
from anabranch.errors import PlanError, SpecError
from anabranch.plan.partitioning import Partitioning, choose_partitioning
from anabranch.plan.query_set import ALONE, Plans, together
from anabranch.plan.slots import SlotPlan, SlotRange
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from anabranch.stats.report import QueryReport, SlotReport
from anabranch.stats.step import StateStatistics, StepStatistics
from tests.support.scripted import answer_lines, read_rows, read_script
from tests.support.workers import WorkerHost

CATALOG = read_script("\n".join(f"stream {name} (k bigint, v string)" for name in "ab")).catalog
QUERY = compile_query(
    "SELECT a.v AS x, b.v AS y FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k", CATALOG
)
PLAN = parse("(a b)")
TABLE = choose_partitioning(QUERY.graph, 2)
START = Table(TABLE)
GRID = choose_partitioning(
    compile_query("SELECT a.v AS x FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS]", CATALOG).graph, 4
)
KEYS = range(12)


def step(host: LocalHost, *lines: str) -> tuple[str, ...]:
    return answer_lines(host.step(read_rows(CATALOG, lines)))


@pytest.mark.parametrize("kind", ["in memory", "with a checkpoint", "as workers"])
def test_groups_move_and_the_answer_does_not_change(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_HOT_FOLDER", str(tmp_path / "hot"))
    if kind == "as workers":
        host: LocalHost = WorkerHost(QUERY, PLAN, slots=2, checkpoint=str(tmp_path / "kept"))
    else:
        host = LocalHost(QUERY, PLAN, slots=2, checkpoint=None if kind == "in memory" else str(tmp_path / "kept"))
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
    steering = TableSteering(START, [ScheduledMove(1, 1, 2, sender=0), ScheduledMove(2, 0, (63,))])
    assert steering.next(0) == (TABLE, [])
    moved = TABLE.moved([0, 1], 1)
    assert steering.next(1) == (moved, [])
    assert steering.next(2) == (moved.moved([63], 0), [])


def test_several_scheduled_moves_of_a_batch_are_one_change() -> None:
    steering = TableSteering(START, [ScheduledMove(1, 1, (0,)), ScheduledMove(1, 1, (2,)), ScheduledMove(1, 0, (63,))])
    assert steering.next(1) == (TABLE.moved([0, 2], 1).moved([63], 0), [])


def test_a_table_over_another_number_of_slots_is_refused() -> None:
    steering = TableSteering(START)
    with pytest.raises(PlanError, match=f"a table of 3 slots does not fit {TABLE.slots}"):
        steering.spread(choose_partitioning(QUERY.graph, 3))
    assert steering.next(0) == (TABLE, [])


def test_a_scheduled_move_that_cannot_keep_the_limit_is_told_and_not_made() -> None:
    start = Table(TABLE, rebuilds="slots of a grouped query are rebuilt")
    steering = TableSteering(start, [ScheduledMove(1, 1, (0,))], Balance(rows=10))
    table, (refused,) = steering.next(1)
    assert table == TABLE
    assert "cannot be spread over several batches" in refused.to_json()["reason"]


def test_groups_of_lost_slots_spread_over_the_others_and_go_back() -> None:
    grid = choose_partitioning(QUERY.graph, 3)
    steering = TableSteering(Table(grid), balance=Balance("auto"))
    steering.lose([2], "executor 7 was lost")
    table, _ = steering.next(0)
    assert table.working == (0, 1)
    assert abs(len(table.groups_of(0)) - len(table.groups_of(1))) <= 1
    (record,) = steering.after(BatchFacts(0, 1.0), counted(table, {0: 1.0, 1: 1.0}))
    assert record.to_json()["by"] == "executor 7 was lost"
    steering.regain("executor 8 joined")
    assert steering.counts_cells
    steering.after(BatchFacts(1, 1.0), counted(table, {0: 1.5, 1: 1.5}))
    table, _ = steering.next(2)
    assert table.working == (0, 1, 2)
    by_hand = TableSteering(Table(grid))
    by_hand.lose([2], "executor 7 was lost")
    assert by_hand.next(0) == (grid, [])


@pytest.mark.parametrize("share", ["half", "one key"])
def test_groups_come_back_within_their_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: str) -> None:
    """Few rows stay behind until they expire, so a slot that gets them back meanwhile is rebuilt."""
    monkeypatch.setenv("ANABRANCH_HOT_FOLDER", str(tmp_path / "hot"))
    host = WorkerHost(QUERY, PLAN, slots=2, checkpoint=str(tmp_path / "kept"))
    step(host, *(f"a 1 {key} x{key}" for key in range(60)))
    groups = [int(group) for group in coordinates(np.arange(60), TABLE.groups)]
    mine = next(group for group in groups if TABLE.table[group] == 0 and groups.count(group) == 1)
    for second, to in ((2, 1), (3, 0), (4, 1)):
        host.move(TABLE.groups_of(0)[::2] if share == "half" else [mine], to)
        found = step(host, *(f"b {second} {key} y" for key in range(60)))
        assert sorted(found) == sorted(f"x{key} y" for key in range(60))
        assert sum(record["rows"] for record in host.history) > 0
    assert [record["rebuilt"] for record in host.history] == [[], *([[], []] if share == "half" else [[0], [1]])]


@pytest.mark.parametrize("groups", [[0], range(64)], ids=["one group", "all groups"])
def test_a_slot_that_begins_to_own_rows_it_has_counts_them(groups: Sequence[int]) -> None:
    # Rows of `a` go to all slots, because the grid is cut by the key of the other query; one slot counts them.
    counted = "SELECT WINDOW_END() AS at, COUNT(*) AS n FROM a [RANGE 9 SECONDS SLIDE 9 SECONDS]"
    joined = "SELECT x.v AS x, y.v AS y FROM b [RANGE 9 SECONDS] AS x, b [RANGE 9 SECONDS] AS y WHERE x.k = y.k"
    several = together({"n": compile_query(counted, CATALOG), "j": compile_query(joined, CATALOG)})
    host = LocalHost(several, Plans({"n": parse("a"), "j": parse("(x y)")}), slots=2)
    assert host.partitioning.copies(["a"]) == 2
    results = []
    for number, lines in enumerate((["a 1 1 p"], ["a 2 2 q", "b 2 1 r"], ["a 30 3 s", "b 30 1 t"], ["a 50 3 s"])):
        if number == 1:
            host.move(groups, 1 - host.partitioning.table[0])
        results.append(ResultLayout(several).split(host.step(read_rows(CATALOG, lines)))["n"])
    assert pa.concat_tables(results).column("n").to_pylist() == [2, 1]


@pytest.mark.parametrize(
    ("move", "message"),
    [
        (ScheduledMove(1, 2, (0,)), "slot 2 does not exist"),
        (ScheduledMove(1, 1, 3), "3 groups are to move, from no slot"),
        (ScheduledMove(1, 1, 3, sender=5), "slot 5 does not exist"),
        (ScheduledScale(1, 3), "3 slots cannot be used: the query has 2"),
    ],
)
def test_a_schedule_that_can_never_be_kept_is_refused(move: ScheduledMove | ScheduledScale, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        TableSteering(START, [move])


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
    steering = TableSteering(START)
    busy = tuple(1 if slot == 0 else 0 for slot in TABLE.table)
    idle = tuple(1 - cell for cell in busy)
    steering.rebalance()
    counts = [steering.counts_cells]
    # A batch that was under way when it was asked for has no counts; the next one has.
    assert steering.after(BatchFacts(3, 1.0), {0: report(4.0, None), 1: report(1.0, None)}) == []
    (decision,) = steering.after(BatchFacts(4, 1.0), {0: report(4.0, busy), 1: report(1.0, idle)})
    told = decision.to_json()
    assert (told["kind"], told["action"], told["trigger"], told["skew"]) == ("balance", "move", "asked for", 1.6)
    assert told["expectedSkew"] < 1.06
    assert [*counts, steering.counts_cells] == [True, False]
    table, _ = steering.next(5)
    assert 0 < len(TABLE.groups_of(0)) - len(table.groups_of(0)) <= 14
    (record,) = steering.after(BatchFacts(5, 1.0), {0: report(2.5, None), 1: report(2.5, None)})
    assert record.to_json()["by"] == "user"


def test_a_rebalancing_of_even_slots_says_so() -> None:
    steering = TableSteering(START)
    steering.rebalance()
    half = tuple(1 for _ in TABLE.table)
    (record,) = steering.after(BatchFacts(0, 1.0), {0: report(1.0, half), 1: report(1.0, half)})
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
    steering = TableSteering(START, balance=Balance("auto", remember=3, cool_down=Interval(batches=4)))
    for batch in range(3):
        assert not steering.counts_cells
        assert steering.after(BatchFacts(batch, 1.0), even((4.0, 1.0))) == []
    (decision,) = steering.after(BatchFacts(3, 1.0), even((4.0, 1.0), counted=True))
    told = decision.to_json()
    assert (told["action"], told["trigger"]) == ("move", "slot 0 takes 1.60 times the average CPU time")
    table, _ = steering.next(4)
    assert table != TABLE
    (moved,) = steering.after(BatchFacts(4, 1.0), even((2.5, 2.5)))
    assert moved.to_json()["by"] == "balance"
    # It rests for the cool-down, whatever the loads are.
    for batch in range(5, 8):
        steering.after(BatchFacts(batch, 1.0), even((9.0, 1.0)))
        assert not steering.counts_cells


@pytest.mark.parametrize(
    ("balance", "cpu"),
    [
        (Balance("manual", remember=2), (4.0, 1.0)),
        (Balance("auto", remember=2), (1.1, 1.0)),
        (Balance("auto", remember=2, seconds=2.0), (4.0, 1.0)),
    ],
    ids=["by hand", "even enough", "too little"],
)
def test_a_query_that_need_not_move_measures_nothing(balance: Balance, cpu: tuple[float, float]) -> None:
    steering = TableSteering(START, balance=balance)
    for batch in range(20):
        assert steering.after(BatchFacts(batch, 1.0), even(cpu)) == []
        assert not steering.counts_cells


def full(held: tuple[int, int], *, counted: bool = False) -> dict[int, SlotReport]:
    """Slots that are equally busy and hold so many bytes; groups of a slot have equally many rows."""
    return {
        slot: replace(
            each,
            statistics=StepStatistics(states=(StateStatistics("a", held[slot] // 100, held[slot]),)),
            held={"a": tuple(int(at == slot) for at in TABLE.table)} if counted else None,
        )
        for slot, each in even((1.0, 1.0), counted=counted).items()
    }


def test_a_slot_that_is_only_full_gives_groups_away() -> None:
    settings = Balance("auto", remember=2, bytes=1e6)
    steering = TableSteering(START, balance=settings)
    for batch in range(2):
        assert steering.after(BatchFacts(batch, 1.0), full((9_000_000, 1_000_000))) == []
    (decision,) = steering.after(BatchFacts(2, 1.0), full((9_000_000, 1_000_000), counted=True))
    told = decision.to_json()
    assert (told["action"], told["trigger"]) == ("move", "slot 0 has 1.80 times the average bytes of state")
    assert told["stateBytes"] == [9e6, 1e6]
    assert max(told["expectedStateBytes"]) < 8e6
    assert "bytes of the slot with the most state" in told["reason"]
    assert 1.0 < max(told["expectedCpuSeconds"]) <= 1.2
    # A difference that is too small is left.
    steering = TableSteering(START, balance=settings)
    for batch in range(9):
        assert steering.after(BatchFacts(batch, 1.0), full((1_500_000, 500_000))) == []
        assert not steering.counts_cells


def test_a_frozen_query_does_not_balance_itself() -> None:
    steering = TableSteering(START, balance=Balance("auto", remember=2))
    steering.freeze()
    for batch in range(9):
        assert steering.after(BatchFacts(batch, 1.0), even((4.0, 1.0))) == []
        assert not steering.counts_cells


def test_with_balancing_off_nothing_moves() -> None:
    host = LocalHost(QUERY, PLAN, slots=2, balance=Balance("off"))
    with pytest.raises(PlanError, match="balancing is off"):
        host.move([0], 1)
    with pytest.raises(PlanError, match="balancing is off"):
        host.rebalance()
    with pytest.raises(PlanError, match="balancing is off"):
        TableSteering(START, [ScheduledMove(1, 1, (0,))], Balance("off"))


def test_decisions_that_change_nothing_become_rarer_up_to_eight_cool_downs() -> None:
    # The state is so large that no move pays.
    large = StepStatistics(states=(StateStatistics("a", 100, 10**12),))
    settings = Balance("auto", remember=2, cool_down=Interval(batches=4), bytes=1e13)
    steering, decided = TableSteering(START, balance=settings), []
    for batch in range(400):
        reports = {
            slot: replace(each, statistics=large, held={"a": (1,) * 64} if steering.counts_cells else None)
            for slot, each in even((4.0, 1.0), counted=steering.counts_cells).items()
        }
        if records := steering.after(BatchFacts(batch, 1.0), reports):
            assert [record.to_json()["action"] for record in records] == ["keep"]
            decided.append(batch)
    gaps = [after - before for before, after in itertools.pairwise(decided)]
    # With one batch more, in which the slots count.
    assert gaps[:8] == [4 * times + 1 for times in range(2, 9)] + [4 * 8 + 1]
    assert set(gaps[7:]) == {4 * 8 + 1}


def test_a_move_that_does_not_pay_is_not_made() -> None:
    dear = [SlotLoad(4.0, 1e12), SlotLoad(1.0, 1e3)]
    loads = estimate_loads(TABLE, {"a": [1] * 64, "b": [1] * 64}, dear)
    refused = Balance("auto", horizon=10, bytes=1e13).objection_to(even_out(TABLE, loads, available=(0, 1)))
    assert refused is not None
    assert "is paid back after" in refused


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("automatic", "balance"),
        ({"ratio": 0.5}, "balance.ratio"),
        ({"mode": "auto", "cool": 3}, "cool"),
        ({"strategy": "auto"}, "balance.strategy"),
    ],
)
def test_a_wrong_setting_is_named(value: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Balance.from_mapping(value)  # type: ignore[arg-type]


def counted(table: Partitioning, cpu: dict[int, float], rows: int = 1) -> dict[int, SlotReport]:
    """Reports of slots whose groups have equally many rows."""
    return {
        slot: replace(
            report(cpu.get(slot, 0.0), tuple(rows * (at == slot) for at in table.table)),
            held={name: tuple(rows * (at == slot) for at in table.table) for name in "ab"},
        )
        for slot in range(table.slots)
    }


def test_more_slots_or_fewer_are_used_as_asked(tmp_path: Path) -> None:
    host = LocalHost(QUERY, PLAN, slots=SlotRange(1, 4), checkpoint=str(tmp_path))
    assert host.partitioning.working == (0,)
    step(host, *(f"a 1 {key} x{key}" for key in KEYS))
    for slots, second in ((4, 2), (2, 4), (3, 6), (1, 8)):
        host.scale(slots)
        assert len(step(host, *(f"b {second} {key} y" for key in KEYS))) == len(KEYS)
        assert len(step(host, *(f"b {second + 1} {key} z" for key in KEYS))) == len(KEYS)
        assert host.partitioning.working == tuple(range(slots))
        assert sorted(host.engines) == [*range(slots)]
    with pytest.raises(PlanError, match="5 slots cannot be used: the query has 4"):
        host.scale(5)
    host.scale(2)
    with pytest.raises(PlanError, match="are to move with the next batch already"):
        host.scale(3)


def test_a_schedule_of_slots_is_kept() -> None:
    steering = TableSteering(START, [ScheduledScale(2, 1), ScheduledScale(4, 2)])
    working = [steering.next(batch)[0].working for batch in range(6)]
    assert working == [(0, 1), (0, 1), (0,), (0,), (0, 1), (0, 1)]


def test_a_move_within_a_limit_is_spread_over_batches() -> None:
    steering = TableSteering(START)
    steering.move(TABLE.groups_of(0), 1, most_rows=20)
    with pytest.raises(PlanError, match="are to move with the next batch already"):
        steering.move([0], 1)
    assert steering.counts_cells
    table, _ = steering.next(0)
    assert table == TABLE  # the rows of the groups are counted first
    assert steering.after(BatchFacts(0, 1.0), counted(TABLE, {0: 1.0, 1: 1.0}, rows=3)) == []
    left = []
    for batch in range(1, 20):
        before, (table, _) = table, steering.next(batch)
        if table == before:
            break
        # Three rows of each of two relations go with a group.
        assert sum(one != other for one, other in zip(before.table, table.table, strict=True)) <= 3
        (record,) = steering.after(BatchFacts(batch, 1.0), counted(table, {0: 1.0, 1: 1.0}))
        left.append(record.to_json()["left"])
    assert left == [29, 26, 23, 20, 17, 14, 11, 8, 5, 2, 0]
    assert table.working == (1,)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (Table(TABLE, rebuilds="slots of a grouped query are rebuilt"), "slots of a grouped query are rebuilt"),
        (Table(GRID), "cannot be spread over several batches where rows go to several slots"),
    ],
)
def test_a_move_that_would_rebuild_slots_with_every_part_is_not_spread(start: Table, message: str) -> None:
    steering = TableSteering(start)
    with pytest.raises(PlanError, match=message):
        steering.move([0, 1], 1, most_rows=5)
    assert steering.next(0) == (start.partitioning, [])


def test_parallel_tracks_last_until_no_row_before_the_mark_is_alive() -> None:
    steering = TableSteering(START)
    steering.move([0, 1], 1, "parallel-track")
    over = False
    began = Moment(41, lambda mark: over and mark == 42)
    table, _ = steering.next(0, began)
    assert (table.mark, table.before, table.settled) == (42, TABLE, TABLE.moved([0, 1], 1))
    (record,) = steering.after(BatchFacts(0, 1.0), even((1.0, 1.0)))
    assert (record.to_json()["phase"], record.to_json()["strategy"]) == ("began", "parallel-track")
    assert steering.next(1, began)[0] == table
    assert steering.after(BatchFacts(1, 1.0), even((1.0, 1.0))) == []
    with pytest.raises(PlanError, match="partition groups are on their way"):
        steering.move([5], 1)
    over = True
    assert steering.next(2, began)[0] == TABLE.moved([0, 1], 1)
    (record,) = steering.after(BatchFacts(2, 1.0), even((1.0, 1.0)))
    assert record.to_json()["phase"] == "ended"
    steering.move([5], 1)


def test_parallel_tracks_that_would_never_end_are_refused() -> None:
    ranges = "a [UNBOUNDED], b [RANGE 9 SECONDS]"
    text = f"SELECT a.v AS x, b.v AS y FROM {ranges} WHERE a.k = b.k"
    host = LocalHost(compile_query(text, CATALOG, allow_unbounded=True), PLAN, slots=2)
    with pytest.raises(PlanError, match=r"rows of 'a' never leave their \[UNBOUNDED\] window"):
        host.move([0], 1, "parallel-track")
    text = "SELECT a.v AS x, b.v AS y FROM a [RANGE 9 SECONDS] LEFT JOIN b [RANGE 9 SECONDS] ON a.k = b.k"
    host = LocalHost(compile_query(text, CATALOG), parse("a"), slots=2)
    with pytest.raises(PlanError, match="outer, semi and anti joins need all rows of a group in one slot"):
        host.move([0], 1, "parallel-track")
    with pytest.raises(PlanError, match="on parallel tracks"):
        LocalHost(compile_query(text, CATALOG), parse("a"), slots=2, balance=Balance(strategy="parallel-track"))
    steering = TableSteering(START)
    with pytest.raises(PlanError, match="no strategy 'hope' of moves"):
        steering.move([0], 1, "hope")
    assert steering.next(0) == (TABLE, [])


def test_on_parallel_tracks_each_result_comes_from_one_slot(tmp_path: Path) -> None:
    host = LocalHost(QUERY, PLAN, slots=2, checkpoint=str(tmp_path))
    step(host, *(f"a 1 {key} x{key}" for key in KEYS))
    host.move(range(TABLE.groups), 1, "parallel-track")
    # Rows from before the mark meet new ones, and new ones meet each other.
    found = step(host, *(f"b 2 {key} y{key}" for key in KEYS), *(f"a 3 {key} z{key}" for key in KEYS))
    assert sorted(found) == sorted(f"{one}{key} y{key}" for key in KEYS for one in "xz")
    assert host.steering.table.now.mark is not None
    again = LocalHost(QUERY, PLAN, slots=2, checkpoint=str(tmp_path))
    assert again.steering.table.now == host.steering.table.now
    found = step(again, *(f"b 4 {key} w" for key in KEYS))
    assert sorted(found) == sorted(f"{one}{key} w" for key in KEYS for one in "xz")
    step(again, "a 50 99 far", "b 50 99 far")
    step(again, "a 51 99 far")
    assert again.steering.table.now.working == (1,)
    assert [record["phase"] for record in again.history if record["kind"] == "move"] == ["ended"]


def test_an_elastic_query_uses_more_slots_when_they_are_busy_and_fewer_when_not() -> None:
    grid = choose_partitioning(QUERY.graph, 4)
    start = Table(spread_over(grid, 2), SlotRange(1, 4))
    steering = TableSteering(start, balance=Balance("auto", remember=2, cool_down=Interval(batches=1)))
    table, batch = start.partitioning, 0

    def used(cpu: float, cores: int | None = 4) -> int:
        nonlocal batch, table
        for _ in range(8):
            facts = BatchFacts(batch, 1.0, period=1.0, cores=cores)
            reports = counted(table, dict.fromkeys(table.working, cpu / len(table.working)))
            steering.after(facts, reports)
            batch += 1
            table, _ = steering.next(batch)
        return len(table.working)

    assert used(0.9) == 2  # neither busy nor idle
    assert used(1.9) == 4
    assert used(1.9, cores=3) == 3
    assert used(0.1) == 1
    assert used(0.1) == 1


def test_plans_change_before_groups_move() -> None:
    steering = TableSteering(START, balance=Balance("auto", remember=2))
    for batch in range(9):
        assert steering.after(BatchFacts(batch, 1.0), even((4.0, 1.0)), is_busy=True) == []
        assert not steering.counts_cells
    for batch in range(9, 30):
        steering.after(BatchFacts(batch, 1.0), even((4.0, 1.0)))
        if steering.counts_cells:
            break
    # After the last change of plan it rests for the cool-down.
    assert batch == 9 + 9
