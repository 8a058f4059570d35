"""`rate@t` and `first@n` take the best of all candidates by their progress, not of the cheapest at steady state."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.cost.progress import Progress, crossing
from anabranch.optimize.hints import Objective
from anabranch.optimize.problem import Problem
from anabranch.optimize.proposals import Candidate, Proposal
from anabranch.optimize.settle import settle
from anabranch.plan.text import parse
from anabranch.stats.view import FixedStatistics
from tests.unit.adapt.simulated import chain

QUERY = chain("abcd", window=10)
KEYS = {"a b": 3e-5, "b c": 2e-6, "c d": 4e-5}
BUSY = FixedStatistics(rates={"a": 9e4, "b": 3e4, "c": 6e4, "d": 2e4}, selectivities=KEYS)
CALM = FixedStatistics(rates=dict.fromkeys("abcd", 100.0), selectivities=KEYS)
TEXTS = (
    "(a b c d)",
    *("((a b) c d)", "((b c) a d)", "((c d) a b)", "((a b) (c d))", "((a d) (b c))", "((a c) (b d))"),
    *("(((a b) c) d)", "(((b c) a) d)", "(((a c) b) d)", "(a ((b c) d))", "(a ((c d) b))", "(a ((b d) c))"),
    *("((a b c) d)", "(a (b c d))"),
)


def asked(objective: str, statistics: FixedStatistics) -> tuple[Problem, list[Candidate]]:
    problem = Problem(QUERY.graph, statistics, objective=Objective.parse(objective))
    found = [problem.candidate(problem.orderer.complete(parse(text)), "given") for text in TEXTS]
    return problem, sorted(found, key=lambda each: each.cost.cpu)


@pytest.mark.parametrize("objective", ["rate@1 second", "first@1000"])
def test_the_plan_with_the_most_cpu_is_chosen_if_it_is_ahead_at_that_time(objective: str) -> None:
    problem, found = asked(objective, BUSY)
    dearest = found[-1].plan
    assert found[0].cost.cpu > 1, "the plans must fall behind"
    assert len(found) > 12
    problem._progress[str(dearest)] = Progress(np.array([0.0, 1.0]), np.array([0.0, 1e12]), 1e12)
    answer = settle(problem, found)
    assert isinstance(answer, Proposal)
    assert answer.plan == dearest


def test_where_plans_keep_up_the_cheapest_is_taken() -> None:
    problem, found = asked("rate@5 seconds", CALM)
    answer = settle(problem, found)
    assert isinstance(answer, Proposal)
    assert answer.plan == found[0].plan


def straight(*points: tuple[float, float], rate: float) -> Progress:
    seconds, results = zip(*points, strict=True)
    return Progress(np.array(seconds), np.array(results), rate)


def test_plans_that_are_ahead_at_another_time_say_when() -> None:
    best = straight((1.0, 10.0), (10.0, 100.0), rate=10.0)
    early = straight((1.0, 30.0), (4.0, 60.0), (10.0, 70.0), rate=2.0)
    late = straight((1.0, 1.0), (10.0, 50.0), rate=20.0)
    assert crossing(best, best) == (None, None)
    assert crossing(early, best) == (4.0, None)
    until, since = crossing(late, best)
    assert until is None
    assert since == pytest.approx(15.0)
    problem, found = asked("rate@10 seconds", BUSY)
    for candidate, going in zip(found, (best, early, late), strict=False):
        problem._progress[str(candidate.plan)] = going
    answer = settle(problem, found[:3])
    assert isinstance(answer, Proposal)
    assert [each.reason for each in answer.considered[1:]] == [
        "70 results by then, ahead until 4 s",
        "50 results by then, ahead from 15 s on",
    ]
