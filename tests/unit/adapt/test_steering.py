"""Changing the plans of a running query: what takes effect, what is refused, what is told."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from anabranch.adapt.facts import Interval
from anabranch.adapt.gate import Gate
from anabranch.adapt.policy import Periodic
from anabranch.adapt.rules import ChangeRules, Switch
from anabranch.adapt.settings import Settings
from anabranch.cql import compile_query
from anabranch.errors import MigrationError, PlanError
from anabranch.lang.schema import TIMESTAMP
from anabranch.plan.query_set import ALONE
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from tests.support.oracle import rows_as_multiset
from tests.support.scripted import answer_lines, read_rows, read_script

CATALOG = read_script("\n".join(f"stream {name} (k bigint, v string)" for name in "abc")).catalog
QUERY = compile_query(
    "SELECT a.v AS x, b.v AS y, c.v AS z FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS], c [RANGE 10 SECONDS] "
    "WHERE a.k = b.k AND b.k = c.k",
    CATALOG,
)
LEFT, RIGHT, FLAT = parse("((a b) c)"), parse("(a (b c))"), parse("(a b c)")


def step(host: LocalHost, *lines: str) -> tuple[str, ...]:
    return answer_lines(host.step(read_rows(CATALOG, lines)))


@pytest.mark.parametrize("strategy", ["auto", "moving-state", "parallel-track"])
def test_the_plan_changes_and_the_answer_does_not(strategy: str) -> None:
    host = LocalHost(QUERY, LEFT, slots=2)
    assert step(host, "a 1 1 x", "b 2 1 y") == ()
    host.migrate(RIGHT, strategy)
    assert host.plan == LEFT
    assert step(host, "c 3 1 z") == ("x y z",)
    assert host.plan == RIGHT
    assert step(host, "a 4 1 w") == ("w y z",)
    began = host.history[0]
    assert (began["kind"], began["phase"], began["by"], began["slots"]) == ("migration", "began", "user", [0, 1])
    assert (began["from"], began["to"]) == ("((a b) c)", "(a (b c))")


def test_parallel_tracks_end_when_the_old_rows_are_gone() -> None:
    host = LocalHost(QUERY, LEFT)
    step(host, "a 1 1 x", "b 2 1 y", "c 2 2 q")
    host.migrate(RIGHT, "parallel-track")
    step(host, "c 3 1 z")
    with pytest.raises(MigrationError, match="changing its plan already") as caught:
        host.migrate(FLAT)
    assert caught.value.detail == "slots 0 are on their way"
    assert [record["phase"] for record in host.history] == ["began"]
    step(host, "a 30 9 n", "b 30 9 n", "c 30 9 n")
    step(host, "a 31 9 n", "b 31 9 n", "c 31 9 n")
    assert [record["phase"] for record in host.history] == ["began", "ended"]
    assert host.history[1]["batches"] == 3
    host.migrate(FLAT)


@pytest.mark.parametrize("strategy", ["moving-state", "parallel-track"])
def test_an_aborted_change_goes_back(strategy: str) -> None:
    host = LocalHost(QUERY, LEFT, slots=2)
    step(host, "a 1 1 x", "b 2 1 y")
    with pytest.raises(MigrationError, match="no change of plan is under way"):
        host.steering.of_query(None).abort()
    host.migrate(RIGHT, strategy)
    if strategy == "parallel-track":
        assert step(host, "c 3 1 z") == ("x y z",)
    host.steering.of_query(None).abort("second thoughts")
    assert step(host, "a 4 1 w") == (("w y z",) if strategy == "parallel-track" else ())
    assert host.plan == LEFT
    assert step(host, "b 5 1 v") == (("w v z", "x v z") if strategy == "parallel-track" else ())
    phases = [(record["phase"], record.get("reason")) for record in host.history]
    assert phases == ([("began", None), ("given up", "second thoughts")] if strategy == "parallel-track" else [])
    host.migrate(FLAT)


def test_a_change_may_be_made_box_by_box() -> None:
    streams = read_script("\n".join(f"stream {name} (k bigint)" for name in "abcdef")).catalog
    listed = ", ".join(f"{name} [RANGE 10 SECONDS]" for name in "abcdef")
    keys = " AND ".join(f"{one}.k = {other}.k" for one, other in pairwise("abcdef"))
    query = compile_query(f"SELECT a.k AS k FROM {listed} WHERE {keys}", streams)
    host = LocalHost(query, parse("(((a b) c) (d e f))"))
    host.migrate(parse("(((b c) a) ((d e) f))"), "moving-state", box_by_box=True)
    plans = []
    for second in range(1, 4):
        host.step(read_rows(streams, [f"{name} {second} {second}" for name in "abcdef"]))
        plans.append(str(host.engines[0].only.plan))
    assert plans == ["(((b c) a) (d e f))", "(((b c) a) ((d e) f))", "(((b c) a) ((d e) f))"]
    assert [record["phase"] for record in host.history] == ["began", "ended"]


def test_a_change_box_by_box_that_is_aborted_on_its_second_box_goes_back_all_the_way() -> None:
    """The slot undid the box that was under way and stayed on the plan before it: the change never came to an end."""
    streams = read_script("\n".join(f"stream {name} (k bigint)" for name in "abcdef")).catalog
    listed = ", ".join(f"{name} [RANGE 1 SECONDS]" for name in "abcdef")
    keys = " AND ".join(f"{one}.k = {other}.k" for one, other in pairwise("abcdef"))
    query = compile_query(f"SELECT a.k AS k FROM {listed} WHERE {keys}", streams)
    host = LocalHost(query, parse("(((a b) c) (d e f))"))
    found = []
    for second in range(6):
        if second == 1:
            host.migrate(parse("(((b c) a) ((d e) f))"), "parallel-track", box_by_box=True)
        if second == 5:
            assert str(host.engines[0].only.plan) == "(((b c) a) ((d e) f))"
            assert host.engines[0].is_migrating
            host.steering.of_query(None).abort("second thoughts")
        rows = [f"{name} {second} {second // 5}" for name in "abcdef"]
        found.append(host.step(read_rows(streams, rows)).num_rows)
    assert str(host.engines[0].only.plan) == "(((a b) c) (d e f))"
    assert [record["phase"] for record in host.history] == ["began", "given up"]
    # Each second but the first of its key: all combinations with the second before, less those of that one alone.
    assert found == [1, *[2**6 - 1] * 4, 1]
    host.migrate(parse("(a b c d e f)"))


def test_a_change_to_the_plan_at_work_begins_and_ends_with_its_batch() -> None:
    host = LocalHost(QUERY, LEFT, slots=2)
    step(host, "a 1 1 x", "b 2 1 y")
    host.migrate(LEFT)
    assert step(host, "c 3 1 z") == ("x y z",)
    assert [(record["phase"], record["batch"]) for record in host.history] == [("began", 1), ("ended", 1)]
    host.migrate(RIGHT)


def test_slots_may_run_different_plans() -> None:
    host = LocalHost(QUERY, LEFT, slots=3)
    step(host, *(f"a 1 {key} x" for key in range(9)), *(f"b 2 {key} y" for key in range(9)))
    host.migrate(RIGHT, slots=[0])
    found = step(host, *(f"c 3 {key} z" for key in range(9)))
    assert found == ("x y z",) * 9
    assert [str(each.plan) for each in host.steering.plans[ALONE]] == ["(a (b c))", "((a b) c)", "((a b) c)"]
    assert [str(engine.only.plan) for engine in host.engines.values()] == ["(a (b c))", "((a b) c)", "((a b) c)"]


def test_a_schedule_changes_plans_at_its_batches() -> None:
    switches = (Switch(1, RIGHT, "moving-state"), Switch(2, FLAT))
    host = LocalHost(QUERY, LEFT, rules=ChangeRules(switches=switches))
    plans = []
    for second in range(1, 5):
        step(host, f"a {second} 1 x", f"b {second} 1 y", f"c {second} 1 z")
        plans.append(str(host.plan))
    assert plans == ["((a b) c)", "(a (b c))", "(a b c)", "(a b c)"]
    assert {record["by"] for record in host.history} == {"schedule"}


def test_a_scheduled_change_that_comes_too_soon_is_told_and_not_made() -> None:
    host = LocalHost(QUERY, LEFT, rules=ChangeRules(switches=(Switch(1, RIGHT, "parallel-track"), Switch(2, FLAT))))
    for second in range(1, 4):
        step(host, f"a {second} 1 x", f"b {second} 1 y")
    assert host.plan == RIGHT
    assert [record["kind"] for record in host.history] == ["migration", "refused"]
    assert host.history[1]["reason"] == "the query is changing its plan already"


def test_what_cannot_be_done_is_refused_and_the_plan_goes_on() -> None:
    host = LocalHost(QUERY, LEFT, slots=2)
    step(host, "a 1 1 x", "b 2 1 y")
    with pytest.raises(PlanError, match="leaves out 'c'"):
        host.migrate(parse("(a b)"))
    with pytest.raises(MigrationError, match="no migration strategy 'teleport'"):
        host.migrate(RIGHT, "teleport")
    with pytest.raises(MigrationError, match="strategy 'none' cannot change"):
        host.migrate(RIGHT, "none")
    with pytest.raises(MigrationError, match="there is no slot 7"):
        host.migrate(RIGHT, slots=[7])
    with pytest.raises(MigrationError, match="no slot is named"):
        host.migrate(RIGHT, slots=[])
    with pytest.raises(MigrationError, match="slots are named in a list"):
        host.migrate(RIGHT, slots=1)  # type: ignore[arg-type]
    assert step(host, "c 3 1 z") == ("x y z",)
    assert host.plan == LEFT
    assert host.history == []


def test_a_schedule_for_another_query_is_refused_at_the_start() -> None:
    with pytest.raises(PlanError, match="leaves out 'c'"):
        LocalHost(QUERY, LEFT, rules=ChangeRules(switches=(Switch(1, parse("(a b)")),)))


def test_a_schedule_that_cannot_be_kept_is_refused_at_the_start() -> None:
    for switches, complaint in (
        ((Switch(3, RIGHT), Switch(3, FLAT)), r"two switches at batch 3, to '\(a \(b c\)\)' and to '\(a b c\)'"),
        ((Switch(3, RIGHT, slots=(0,)), Switch(3, FLAT)), "two switches at batch 3"),
        ((Switch(1, RIGHT, "hope"),), "no migration strategy 'hope'"),
        ((Switch(-1, RIGHT),), "there is no batch -1"),
        ((Switch(1, RIGHT, slots=(2,)),), "there is no slot 2"),
    ):
        with pytest.raises(MigrationError, match=complaint):
            LocalHost(QUERY, LEFT, slots=2, rules=ChangeRules(switches=switches))


def test_different_slots_may_be_scheduled_for_one_batch() -> None:
    switches = (Switch(1, RIGHT, slots=(0,)), Switch(1, FLAT, slots=(1,)))
    host = LocalHost(QUERY, LEFT, slots=2, rules=ChangeRules(switches=switches))
    step(host, *(f"a 1 {key} x" for key in range(9)), *(f"b 2 {key} y" for key in range(9)))
    assert step(host, *(f"c 3 {key} z" for key in range(9))) == ("x y z",) * 9
    assert [str(each.plan) for each in host.steering.plans[ALONE]] == ["(a (b c))", "(a b c)"]


def drifting(host: LocalHost, batches: int, *, matching: str) -> None:
    """a and b always meet; those of the matching pair meet in every row, the others seldom."""
    for number in range(host.batch, host.batch + batches):
        lines = []
        for row in range(20):
            time = number + row / 20
            common, rare = 1, 100 + 20 * number + row
            keys = (common, common, rare) if matching == "ab" else (rare, common, common)
            lines += [f"{name} {time} {key} v" for name, key in zip("abc", keys, strict=True)]
        step(host, *lines)


def test_the_loop_follows_a_drift() -> None:
    gate = Gate(cores=0.0, horizon=1e9, cool_down=Interval(batches=2))
    adapt = Settings(policy=Periodic(Interval(batches=3)), gate=gate, remember=4)
    host = LocalHost(QUERY, RIGHT, rules=ChangeRules(adapt))
    drifting(host, 15, matching="bc")
    settled = host.plan
    drifting(host, 30, matching="ab")
    kinds = [record["kind"] for record in host.history]
    assert "decision" in kinds
    changes = [record for record in host.history if record.get("by") == "loop"]
    assert changes, [record.get("reason") for record in host.history]
    assert host.plan != settled or len(changes) > 1


def test_a_frozen_query_keeps_its_plan_and_tells_what_it_would_do() -> None:
    gate = Gate(cores=0.0, horizon=1e9)
    adapt = Settings(policy=Periodic(Interval(batches=3)), gate=gate, freeze=True, remember=4)
    host = LocalHost(QUERY, RIGHT, rules=ChangeRules(adapt))
    drifting(host, 12, matching="bc")
    assert host.plan == RIGHT
    assert any("frozen" in record["reason"] for record in host.history)


def test_freezing_holds_back_what_was_decided_and_has_not_begun() -> None:
    gate = Gate(cores=0.0, horizon=1e9)
    adapt = Settings(policy=Periodic(Interval(batches=3)), gate=gate, remember=4)
    host = LocalHost(QUERY, RIGHT, rules=ChangeRules(adapt))
    while not any(record.get("action") == "migrate" for record in host.history):
        drifting(host, 1, matching="bc")
    host.steering.freeze()
    drifting(host, 1, matching="bc")
    assert host.plan == RIGHT
    assert host.history[-1]["kind"] == "refused"
    assert host.history[-1]["reason"] == "the query was frozen before it began"


def test_one_slot_is_not_changed_under_a_loop_that_decides_for_all() -> None:
    host = LocalHost(QUERY, LEFT, slots=2, rules=ChangeRules(Settings()))
    with pytest.raises(MigrationError, match="while the query adapts"):
        host.migrate(RIGHT, slots=[0])
    host.steering.freeze()
    host.migrate(RIGHT, slots=[0])


def test_what_a_user_asks_for_is_not_overruled_by_a_loop() -> None:
    """A decision of the loop took the place of a change that was asked for while its batch ran."""
    gate = Gate(cores=0.0, horizon=1e9)
    adapt = Settings(policy=Periodic(Interval(batches=3)), gate=gate, remember=4)
    host = LocalHost(QUERY, RIGHT, rules=ChangeRules(adapt))
    while not any(record.get("action") == "migrate" for record in host.history):
        drifting(host, 1, matching="bc")
    deciding = host.batch
    host = LocalHost(QUERY, RIGHT, rules=ChangeRules(adapt))
    drifting(host, deciding - 1, matching="bc")
    plans = host.steering.next(host.batch)  # the batch takes its plans, and then the user speaks
    host.steering.next = lambda *_: plans  # type: ignore[method-assign]
    host.migrate(LEFT)
    drifting(host, 1, matching="bc")
    del host.steering.next
    decision = [record for record in host.history if record["kind"] == "decision"][-1]
    assert decision["action"] == "keep"
    assert decision["reason"].startswith("another change is under way; otherwise: saves")
    drifting(host, 1, matching="bc")
    assert host.plan == LEFT
    assert host.history[-2]["by"] == "user"


@pytest.mark.parametrize(("keys", "merges"), [(20, True), (0, False)])
def test_the_loop_merges_rows_where_many_share_a_key_and_not_where_none_do(keys: int, merges: bool) -> None:
    window = "[RANGE 8 SECONDS SLIDE 4 SECONDS]"
    text = f"SELECT WINDOW_END() AS at, b.k AS k, SUM(a.v) AS total FROM a {window}, b {window} WHERE a.k = b.k"
    streams = read_script("stream a (k bigint, v bigint)\nstream b (k bigint, v bigint)").catalog
    query = compile_query(f"{text} GROUP BY b.k", streams)
    gate = Gate(cores=0.0, horizon=1e9, cool_down=Interval(batches=2))
    adapt = Settings(policy=Periodic(Interval(batches=4)), gate=gate, remember=4)
    host, still = LocalHost(query, parse("(a b)"), rules=ChangeRules(adapt)), LocalHost(query, parse("(a b)"))
    rng = np.random.default_rng(1)
    found, expected = [], []
    for second in range(14):
        batch = {}
        for name in "ab":
            times = pa.array(np.sort(rng.integers(second * 1_000_000, (second + 1) * 1_000_000, 400)))
            key = rng.integers(0, keys, 400) if keys else np.arange(400 * second, 400 * (second + 1))
            values = [pa.array(key), pa.array(rng.integers(0, 9, 400)), times.cast(pa.timestamp("us")).cast(TIMESTAMP)]
            batch[name] = pa.table(dict(zip(("k", "v", "ts"), values, strict=True)))
        found.append(host.step(batch))
        expected.append(still.step(batch))
    assert ("[a]" in str(host.plan)) == merges
    assert rows_as_multiset(pa.concat_tables(found)) == rows_as_multiset(pa.concat_tables(expected))
