"""The progress entry of a batch: the keys that users read, from the reports of its slots."""

from __future__ import annotations

import json

from anabranch.adapt.records import SettingsChanged
from anabranch.plan.partitioning import Dimension, Partitioning
from anabranch.plan.text import parse
from anabranch.run.progress import BatchProgress, QueryProgress, SlotProgress, migrating_slots, sent_by_relation
from anabranch.stats.report import QueryReport, SlotReport
from anabranch.stats.step import StateStatistics, StepStatistics

PLAN = parse("(a b)")


def step(rows: int, spent: float) -> StepStatistics:
    return StepStatistics({"a": rows}, rows, states=(StateStatistics("a", rows, 8 * rows),), seconds={"probe": spent})


def slot(rows: int, spent: float, *, is_migrating: bool = False) -> SlotReport:
    own = step(rows, spent)
    return SlotReport(
        {"pairs": QueryReport(PLAN, is_migrating, own)},
        own,
        rows={"a": rows},
        seconds={"open": 0.5},
        was_hot=rows > 1,
        cpu=rows / 4,
    )


REPORTS = {1: slot(2, 0.25, is_migrating=True), 0: slot(1, 0.125)}


def progress(*, is_named: bool) -> BatchProgress:
    queries = {"pairs": QueryProgress.of({number: report.queries["pairs"] for number, report in REPORTS.items()}, 2)}
    return BatchProgress(
        plan="pairs: (a b)" if is_named else "(a b)",
        plans=(PLAN, PLAN),
        migrating=migrating_slots(REPORTS),
        records=(SettingsChanged(3, {"adapt": False}),),
        rows_in={"s": 5},
        rows_out=2,
        late_rows={"s": 1},
        ahead_rows={},
        watermark=7,
        newest={"s": 9},
        idle_streams=("t",),
        seconds={"plan": 0.001, "step": 0.9, "commit": 0.0022, "adapt": 0.0},
        slots=tuple(SlotProgress.of(number, report, (0, 1)) for number, report in sorted(REPORTS.items())),
        partitioning=Partitioning((Dimension("k0", frozenset("ab"), 2),), 2, (0, 1)),
        sent=sent_by_relation(REPORTS),
        statistics=step(3, 0.375),
        queries=queries if is_named else {},
    )


def test_a_batch_has_the_keys_that_users_read() -> None:
    found = progress(is_named=False).to_json()
    assert json.loads(json.dumps(found)) == found == {
        "plan": "(a b)",
        "plans": ["(a b)", "(a b)"],
        "migrating": [1],
        "records": [{"kind": "settings", "batch": 3, "settings": {"adapt": False}}],
        "slots": 2,
        "rowsIn": {"s": 5},
        "rowsOut": 2,
        "lateRows": {"s": 1},
        "aheadRows": {},
        "shedRows": {},
        "keptKeys": 1.0,
        "undatedRows": {},
        "stateRows": 3,
        "stateBytes": 24,
        "watermark": 7,
        "newest": {"s": 9},
        "idleStreams": ["t"],
        "durationMs": {"plan": 1.0, "step": 900.0, "commit": 2.2, "adapt": 0.0},
        "slotStatistics": [
            {"slot": 0, "groups": 1, "hot": False, "seconds": {"open": 0.5, "probe": 0.125}, "rowsIn": 1, "rowsOut": 1,
             "cpuSeconds": 0.25, "stateBytes": 8},
            {"slot": 1, "groups": 1, "hot": True, "seconds": {"open": 0.5, "probe": 0.25}, "rowsIn": 2, "rowsOut": 2,
             "cpuSeconds": 0.5, "stateBytes": 16},
        ],
        "table": [0, 1],
        "grid": [{"code": "k0", "relations": ["a", "b"], "share": 2}],
        "sent": {"a": 1.0},
        "heavy": [],
        "slotsInUse": 2,
        "skew": 1.333,
        "statistics": step(3, 0.375).to_json(),
    }  # fmt: skip


def test_queries_that_run_together_have_a_part_each() -> None:
    found = progress(is_named=True).to_json()["queries"]
    assert found == {
        "pairs": {"plans": ["(a b)", "(a b)"], "migrating": [1], "rowsOut": 2, "statistics": step(3, 0.375).to_json()}
    }


def test_our_own_time_is_the_drivers_and_that_of_the_slowest_slot() -> None:
    assert progress(is_named=False).own_seconds == 0.001 + 0.0022 + 0.75
