"""Keys are shed while a run is in trouble, and admitted again once it has been out of it for a while."""

from __future__ import annotations

from anabranch.adapt.facts import TEN_BATCHES, BatchFacts
from anabranch.adapt.keeping_up import LEAST, KeepingUp, Shedding, Trouble
from anabranch.adapt.rules import ChangeRules, Criteria
from anabranch.optimize.proposals import Budget
from anabranch.plan.query_set import ALONE
from anabranch.plan.text import parse
from anabranch.stats.report import QueryReport, SlotReport
from anabranch.stats.step import StateStatistics, StepStatistics


def shares(troubles: list[Trouble]) -> list[float]:
    shedding, found = Shedding(), []
    for batch, trouble in enumerate(troubles):
        shedding, _ = shedding.after(batch, trouble)
        found.append(shedding.share)
    return found


def test_the_share_is_halved_in_trouble_and_raised_after_it() -> None:
    bad, waiting, good = Trouble("full", is_over=False), Trouble(None, is_over=False), Trouble()
    found = shares([good, bad, *[bad] * (TEN_BATCHES.batches + 1), *[waiting] * 20, *[good] * 100])
    assert found[:3] == [1.0, 0.5, 0.5]
    # Not before what was shed has had time to help; and not back while rows still wait.
    assert found[TEN_BATCHES.batches + 1 : TEN_BATCHES.batches + 3] == [0.5, 0.25]
    assert set(found[TEN_BATCHES.batches + 2 : TEN_BATCHES.batches + 22]) == {0.25}
    assert found[-1] == 1.0
    assert min(shares([bad] * 500)) == LEAST


def test_the_record_names_the_bound() -> None:
    _, record = Shedding().after(7, Trouble("the fullest slot has 9.5 MB of 10.0 MB", is_over=False))
    assert record is not None
    told = record.to_json()
    assert (told["kind"], told["action"], told["kept"]) == ("overload", "shed", 0.5)
    assert "9.5 MB of 10.0 MB" in told["reason"]


def reports(state: int) -> dict[int, SlotReport]:
    step = StepStatistics({}, 0, (), (StateStatistics("a", 1, state, 1, 0),))
    return {0: SlotReport({ALONE: QueryReport(parse("(a b)"), statistics=step)}, step)}


def test_a_slot_that_comes_near_its_memory_limit_is_trouble_before_it_breaks_the_limit() -> None:
    rules = {ALONE: ChangeRules(criteria=Criteria(budget=Budget(memory=1000.0)))}
    keeping = KeepingUp(rules, sheds=True)
    assert keeping.after(BatchFacts(0, 1.0), reports(850)) == []
    assert keeping.trouble == Trouble()
    assert keeping.after(BatchFacts(1, 1.0), reports(950)) == []
    assert keeping.trouble.reason is not None
    keeping.after(BatchFacts(2, 1.0), reports(100))
    assert keeping.trouble == Trouble()


def test_a_backlog_is_trouble_while_it_grows_and_is_not_over_before_it_has_shrunk() -> None:
    keeping = KeepingUp({}, sheds=True)
    found = []
    for number, waiting in enumerate([0, 50, 100, 150, 200, 250, 190, 20]):
        keeping.after(BatchFacts(number, 1.0, waiting=100, period=1.5, backlog=float(waiting)), reports(1))
        found.append((keeping.trouble.reason is not None, keeping.trouble.is_over))
    assert found[:5] == [(False, True)] * 4 + [(True, False)]
    assert found[5:] == [(True, False), (False, False), (False, True)]
