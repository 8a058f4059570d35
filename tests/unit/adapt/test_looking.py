"""Looks for routes have a budget: more for the first one of a query that nothing was known of before its start."""

from __future__ import annotations

import pytest

from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.gate import Gate
from anabranch.adapt.looking import FIRST, ON_EVIDENCE, Looking
from anabranch.adapt.loop import Loop
from anabranch.adapt.observation import Batch
from anabranch.adapt.rules import Criteria, Staging
from anabranch.adapt.searches import Searches
from anabranch.adapt.settings import Settings
from anabranch.cost.steps import price_of_step
from anabranch.cost.units import ENGINE
from anabranch.plan.slots import SlotPlan
from anabranch.plan.text import parse
from anabranch.stats.report import QueryReport
from anabranch.stats.view import NOTHING_KNOWN, StatisticsView
from tests.unit.adapt.simulated import QUERY, pricing, steady_step, truth

PLAN = parse("(a b c)")
STREAMS = truth(0.01, 0.01)
STEP = steady_step(QUERY, PLAN, STREAMS)
DUE = 12


def looks(given: StatisticsView, share: float, *, has_news: bool) -> bool:
    """Whether slot 0 is asked to look when a look is due by schedule and takes this share of the work so far."""
    look = share * DUE * price_of_step(STEP, ENGINE) / len(QUERY.graph.names)
    criteria, settings = Criteria(given, pricing=pricing()), Settings(gate=Gate(cores=0.0))
    loops = [((0,), Loop(QUERY, settings, criteria))]
    looking = Looking(QUERY, Staging(first=DUE, look=look), settings, criteria, [(0,)], loops, Searches(waits=True))
    report = QueryReport(PLAN, statistics=STEP)
    for number in range(DUE):
        assert not looking.is_asked(0)
        if has_news and number == DUE - 1:
            looking.tell((0,), "statistics changed by a factor of 1.6")
        looking.after(Batch(BatchFacts(number, 1.0), {0: report}, (SlotPlan(PLAN),)), {0: SlotPlan(PLAN)})
    return looking.is_asked(0)


BETWEEN = (FIRST + ON_EVIDENCE) / 2


@pytest.mark.parametrize("has_news", [False, True])
def test_news_do_not_take_the_budget_of_the_first_look_away(has_news: bool) -> None:
    assert looks(NOTHING_KNOWN, BETWEEN, has_news=has_news)
    assert not looks(NOTHING_KNOWN, 1.1 * FIRST, has_news=has_news)


@pytest.mark.parametrize("has_news", [False, True])
def test_where_streams_were_sampled_the_first_look_is_one_like_any_other(has_news: bool) -> None:
    assert not looks(STREAMS, BETWEEN, has_news=has_news)
    assert looks(STREAMS, 0.9 * ON_EVIDENCE, has_news=True)
