"""A query that falls behind, or breaks its limit on memory, is recorded with the figures, once until it recovers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from anabranch.adapt.facts import BatchFacts, Waiting
from anabranch.adapt.keeping_up import KeepingUp
from anabranch.adapt.records import FellBehind, LimitBroken
from anabranch.adapt.rules import ChangeRules, Criteria
from anabranch.cost.resources import Resources
from anabranch.optimize.proposals import UNLIMITED, Budget
from anabranch.plan.query_set import ALONE
from anabranch.plan.text import parse
from anabranch.stats.report import QueryReport, SlotReport
from anabranch.stats.step import StateStatistics, StepStatistics

BUDGET = Budget(0.8, 1000.0, 2, taken=Resources(0.3, 200.0, 0.0), room=2.0)
CRITERIA = Criteria(budget=BUDGET, expected=Resources(0.2, 100.0, 1.0))


def watch(criteria: Criteria = CRITERIA) -> KeepingUp:
    return KeepingUp({ALONE: ChangeRules(criteria=criteria)})


def reports(state: int = 100, cpu: float = 0.1) -> dict[int, SlotReport]:
    step = StepStatistics({}, 0, (), (StateStatistics("a", 1, state, 1, 0),))
    query = QueryReport(parse("(a b)"), statistics=step)
    return {slot: SlotReport({ALONE: query}, step, cpu=cpu) for slot in range(2)}


def facts(batch: int, backlog: float | None = None, behind: float | None = None) -> BatchFacts:
    return BatchFacts(batch, 1.0, waiting=100, behind=behind, period=1.5, backlog=backlog)


def test_a_backlog_that_grows_is_recorded_once_with_the_figures() -> None:
    keeping = watch()
    records = [keeping.after(facts(n, backlog=50.0 * n), reports()) for n in range(8)]
    assert [len(each) for each in records] == [0, 0, 0, 0, 1, 0, 0, 0]
    (found,) = records[4]
    assert isinstance(found, FellBehind)
    assert (found.before, found.rows, found.period, found.seconds) == (100, 300, 1.5, 1.0)
    assert found.slot_cores == pytest.approx(0.1)
    assert "a slot was to need 0.4 of 0.8 cores, 0.3 of them for Spark" in found.reason
    assert json.loads(json.dumps(found.to_json()))["needs"] == [{"cores": 0.4, "spark": 0.3, "allowed": 0.8}]


def test_after_it_has_caught_up_it_may_fall_behind_again() -> None:
    keeping = watch()
    waiting = [0, 50, 100, 150, 200, 20, 0, 50, 100, 150, 200]
    records = [keeping.after(facts(n, backlog=float(rows)), reports()) for n, rows in enumerate(waiting)]
    assert [bool(each) for each in records] == [n in (4, 10) for n in range(11)]


def test_sources_that_do_not_say_are_known_by_the_time_of_day() -> None:
    slow, steady = watch(), watch()
    assert [len(slow.after(facts(n, behind=100.0 + 0.5 * n), reports())) for n in range(6)] == [0, 0, 0, 0, 1, 0]
    assert not any(steady.after(facts(n, behind=100.0), reports()) for n in range(8))


def test_without_limits_nothing_is_recorded() -> None:
    keeping = watch(replace(CRITERIA, budget=UNLIMITED))
    assert not keeping.is_active
    assert not any(keeping.after(facts(n, backlog=50.0 * n), reports()) for n in range(8))


def test_memory_beyond_the_limit_is_recorded_until_it_is_free_again() -> None:
    keeping = watch()
    # 2 x 401 of state with room to grow, and 200 for the worker, of 1000.
    states = [100, 400, 401, 500, 360, 340, 401]
    records = [keeping.after(facts(n, behind=1.0), reports(state)) for n, state in enumerate(states)]
    assert [bool(each) for each in records] == [False, False, True, False, False, False, True]
    (found,) = records[2]
    assert isinstance(found, LimitBroken)
    assert (found.state_bytes, found.bytes, found.allowed) == (401, 1002, 1000)
    assert "of state" in found.to_json()["reason"]


def test_rows_wait_by_the_sources_where_they_say() -> None:
    def rows(waiting: int | None, backlog: float | None, behind: float | None, seconds: float) -> tuple[float, ...]:
        seen = BatchFacts(0, seconds, waiting=waiting, behind=behind, backlog=backlog)
        return Waiting(behind=1.0).after(seen).rows

    assert rows(100, 7.0, 5.0, 1.0) == (107,)
    assert rows(100, None, 5.0, 2.0) == (300,)
    assert rows(100, None, None, 2.0) == (100,)
    assert rows(None, None, 5.0, 1.0) == ()
