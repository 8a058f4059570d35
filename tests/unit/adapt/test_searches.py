"""Searches beside the batches: no batch waits for a long one, and the outcome is judged when a later batch ends.

No test here looks at a clock: searches wait for an event that the test sets when the batches are over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from threading import Event
from typing import Any

import pytest

from anabranch.adapt.advisors import plan as advisor
from anabranch.adapt.controller import Controller
from anabranch.adapt.facts import Interval
from anabranch.adapt.gate import Gate
from anabranch.adapt.policy import DataDriven, Periodic
from anabranch.adapt.records import Decision
from anabranch.adapt.rules import IN_LINE, ChangeRules, Criteria
from anabranch.adapt.searches import Searches, outcome
from anabranch.adapt.settings import Settings
from anabranch.optimize.choice import answer_to
from anabranch.optimize.problem import Problem
from anabranch.plan.physical import PhysicalPlan, mjoin
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from anabranch.stats.view import FixedStatistics
from tests.support.scripted import read_rows, read_script
from tests.unit.adapt.simulated import chain, controller, observed, pricing
from tests.unit.adapt.simulated import observe as take_in

NAMES = "abcdefg"
LONG = chain(NAMES)
EVERY_BATCH = Periodic(Interval(batches=1))


def streams(first: float, last: float) -> FixedStatistics:
    """Seven streams of one rate; the first and the last pair are as selective as told, those between are alike."""
    pairs = [f"{one} {other}" for one, other in pairwise(NAMES)]
    middle = dict.fromkeys(pairs, 0.001)
    return FixedStatistics(dict.fromkeys(NAMES, 100.0), selectivities={**middle, "a b": first, "f g": last})


class Held:
    """An optimizer that answers when it is let go."""

    def __init__(self) -> None:
        self.begun, self.free = Event(), Event()
        self.calls = 0

    def answer_to(self, problem: Problem) -> Any:
        self.calls += 1
        self.begun.set()
        assert self.free.wait(60)
        return answer_to(problem)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    optimizer = Held()
    monkeypatch.setattr(advisor, "answer_to", optimizer.answer_to)
    yield optimizer
    optimizer.free.set()


def all_ended(searches: Searches) -> None:
    """Waits for the searches that were begun before: they are done one after another."""
    searches.begin(lambda: None, is_long=True).result()


def test_only_long_searches_run_beside_the_batches() -> None:
    searches, free = Searches(), Event()
    slow = searches.begin(lambda: free.wait(60), is_long=True)
    assert searches.begin(lambda: 7, is_long=False).result() == 7
    assert not slow.done()
    free.set()
    assert slow.result() is True
    assert slow.done()


def test_searches_that_batches_wait_for_have_ended_when_they_are_begun() -> None:
    assert Searches(waits=True).begin(lambda: 7, is_long=True).done()


def test_searches_of_a_query_that_has_ended_are_cancelled() -> None:
    searches, begun, free = Searches(), Event(), Event()

    def slow() -> bool:
        begun.set()
        return free.wait(60)

    running = searches.begin(slow, is_long=True)
    queued = searches.begin(lambda: 7, is_long=True)
    assert begun.wait(60)
    searches.close()
    assert outcome(queued, "a plan") is None
    assert outcome(searches.begin(lambda: 7, is_long=False), "a plan") is None
    free.set()
    assert running.result() is True


@pytest.mark.parametrize("is_long", [False, True])
def test_a_search_that_fails_gives_a_warning_and_nothing_else(is_long: bool) -> None:
    search = Searches().begin(lambda: 1 // 0, is_long=is_long)
    with pytest.warns(UserWarning, match="a search for a plan failed: ZeroDivisionError"):
        assert outcome(search, "a plan") is None


def test_a_batch_of_a_query_does_not_wait_for_the_optimizer(held: Held) -> None:
    assert len(NAMES) > IN_LINE
    script = read_script("\n".join(f"stream {name} (l bigint, r bigint)" for name in NAMES))
    rules = ChangeRules(Settings(EVERY_BATCH, Gate(cores=0.0, horizon=1e9), remember=2))
    host, plain = (LocalHost(LONG, mjoin(tuple(NAMES)), rules=each) for each in (rules, ChangeRules()))

    def step(batch: int) -> None:
        rows = read_rows(script.catalog, [f"{name} {batch} {batch} {batch}" for name in NAMES])
        assert host.step(rows).equals(plain.step(rows))

    for batch in range(4):
        step(batch)
    # Four batches have ended, and the optimizer, asked after the second, has not.
    assert held.begun.wait(60)
    assert host.batch == 4
    assert host.history == []
    held.free.set()
    all_ended(host.steering.of_query(None).controller.searches)
    step(4)
    (decision,) = host.history
    assert (decision["kind"], decision["batch"], decision["origin"]) == ("decision", 4, "optimizer")
    assert held.calls == 1


def test_a_batch_waits_where_experiments_ask_for_it() -> None:
    found = []
    for _ in range(2):
        looping = controller(LONG, Settings(EVERY_BATCH), Criteria(pricing=pricing()), Searches(waits=True))
        found.append([take_in(looping, observed(n, PLAN, streams(0.01, 0.0001), query=LONG)) for n in range(3)])
    assert found[0] == found[1]
    assert all(decision is not None for decision in found[0])


PLAN = parse("((a b) c d e f g)")


def adapting(searches: Searches, **settings: Any) -> Controller:
    return controller(LONG, replace(Settings(EVERY_BATCH), **settings), Criteria(pricing=pricing()), searches)


def observe(looping: Controller, batch: int, seen: FixedStatistics, plan: PhysicalPlan = PLAN) -> Decision | None:
    return take_in(looping, observed(batch, plan, seen, query=LONG))


def test_what_was_found_is_judged_by_the_statistics_of_the_batch_that_ends(held: Held) -> None:
    """The search began when the streams asked for another plan; by its end they fit the plan in force again."""
    searches = Searches()
    looping = adapting(searches, remember=1)
    before, later = streams(0.05, 0.00001), streams(0.00001, 0.05)
    assert observe(looping, 0, before) is None
    assert held.begun.wait(60)
    assert observe(looping, 1, later) is None
    held.free.set()
    all_ended(searches)
    decision = observe(looping, 2, later)
    assert decision is not None
    assert (decision.batch, decision.action) == (2, "keep")
    assert decision.statistics.selectivities["a b"] == pytest.approx(0.00001, rel=0.2)
    assert decision.proposed != PLAN


def test_a_drift_during_a_search_is_noticed_after_it(held: Held) -> None:
    searches = Searches()
    looping = adapting(searches, policy=DataDriven(Interval(batches=1)), remember=1)
    assert observe(looping, 0, streams(0.05, 0.00001)) is None
    held.free.set()
    all_ended(searches)
    assert observe(looping, 1, streams(0.00001, 0.05)) is not None
    assert observe(looping, 2, streams(0.00001, 0.05)) is None
    all_ended(searches)
    again = observe(looping, 3, streams(0.00001, 0.05))
    assert again is not None
    assert "changed by a factor" in again.trigger


def test_a_search_for_a_plan_that_was_changed_meanwhile_is_given_up(held: Held) -> None:
    searches = Searches()
    looping = adapting(searches, gate=Gate(cool_down=Interval(batches=2)))
    assert observe(looping, 0, streams(0.05, 0.00001)) is None
    changing = replace(observed(1, PLAN, streams(0.05, 0.00001), query=LONG), is_migrating=True)
    assert take_in(looping, changing) is None
    held.free.set()
    all_ended(searches)
    assert observe(looping, 2, streams(0.05, 0.00001)) is None
    assert held.calls == 1


def test_a_search_that_fails_is_tried_again_when_the_policy_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no rows")

    monkeypatch.setattr(advisor, "answer_to", fails)
    looping = adapting(Searches(waits=True))
    for batch in range(2):
        with pytest.warns(UserWarning, match="a search for plan failed"):
            assert observe(looping, batch, streams(0.05, 0.00001)) is None
    monkeypatch.setattr(advisor, "answer_to", answer_to)
    assert observe(looping, 2, streams(0.05, 0.00001)) is not None
