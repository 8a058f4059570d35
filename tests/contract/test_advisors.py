"""The contract of advisors: asking changes nothing, the same history gives the same answer, and a change has a price.

A toy shows that an advisor is one class: the controller needs no other change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from anabranch.adapt.advisors.advisor import Advisor, Suggestion, Wanted
from anabranch.adapt.advisors.plan import PlanAdvisor
from anabranch.adapt.advisors.routes import RouteAdvisor
from anabranch.adapt.controller import Controller
from anabranch.adapt.history import History
from anabranch.adapt.policy import Reason
from anabranch.adapt.records import Decision
from anabranch.adapt.rules import Criteria
from anabranch.adapt.settings import Settings
from anabranch.cost.resources import Resources
from anabranch.cost.units import ENGINE
from anabranch.migrate.strategies.strategy import Price
from anabranch.plan.mesh import Plan
from anabranch.plan.text import parse
from tests.unit.adapt.simulated import QUERY, controller, observe, observed, pricing, truth

LEFT, RIGHT = parse("((a b) c)"), parse("(a (b c))")
STREAMS = truth(0.01, 0.0001)
CHANGED = Reason("statistics", "statistics changed by a factor of 2")
CRITERIA = Criteria(pricing=pricing())
ADVISORS: list[Advisor] = [
    PlanAdvisor(Settings(), CRITERIA),
    RouteAdvisor(Settings(), CRITERIA),
]


def history() -> History:
    now = History.empty(QUERY, None, ENGINE)
    for batch in range(12):
        now = now.after(observed(batch, LEFT, STREAMS))
    return now


@pytest.mark.parametrize("advisor", ADVISORS, ids=lambda each: each.name)
def test_asking_changes_nothing_and_gives_the_same_answer_again(advisor: Advisor) -> None:
    seen = history()
    before = replace(seen)
    for _ in range(2):
        assert advisor.occasion(seen) == advisor.occasion(history())
        assert advisor.wants(seen, CHANGED) == advisor.wants(history(), CHANGED)
    assert replace(seen) == before


def test_a_plan_that_pays_is_proposed_with_its_price_and_judged_alike_each_time() -> None:
    advisor, seen = ADVISORS[0], history().decided(history().statistics)
    search, is_long = advisor.search(seen)
    assert not is_long
    found = [advisor.propose(seen, CHANGED, search()).decision for _ in range(2)]
    assert found[0] == found[1]
    assert found[0].action == "migrate"
    assert found[0].price is not None
    assert found[0].cost.cpu > found[0].proposed_cost.cpu


@dataclass(frozen=True)
class Stubborn:
    """Always proposes one plan."""

    plan: Plan
    name: ClassVar[str] = "stubborn"

    def occasion(self, history: History) -> Reason | None:
        return None if history.plan == self.plan else Reason("interval", "it is not the plan that I like")

    def wants(self, history: History, reason: Reason) -> Wanted:
        return "search"

    def search(self, history: History) -> tuple[Callable[[], Plan], bool]:
        return lambda: self.plan, False

    def propose(self, history: History, reason: Reason, found: Plan) -> Suggestion:
        cost, price = Resources(1.0, 1.0, 1.0), Price("moving-state", 0.0, 0.0, 0.0)
        decision = Decision(
            history.batch,
            "migrate",
            "toy",
            reason.text,
            history.plan,
            cost,
            found,
            cost,
            "optimizer",
            price,
            "toy",
            history.statistics,
        )
        return Suggestion(decision, history)


def test_an_advisor_is_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    toy: tuple[Advisor, ...] = (Stubborn(RIGHT),)
    monkeypatch.setattr(Controller, "_advisors", property(lambda _: toy))
    adapting = controller(QUERY, Settings(), CRITERIA)
    decision = observe(adapting, observed(0, LEFT, STREAMS))
    assert decision is not None
    assert (decision.action, decision.proposed) == ("migrate", RIGHT)
    adapting.is_frozen = True
    frozen = observe(adapting, observed(1, LEFT, STREAMS))
    assert frozen is not None
    assert (frozen.action, frozen.reason) == ("keep", "frozen; otherwise: toy")
