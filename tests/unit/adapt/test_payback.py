"""Weighing with and without foresight: what follows every swing, and what the gate alone asks."""

from __future__ import annotations

import pytest

from anabranch.adapt.facts import Interval
from anabranch.adapt.gate import Gate
from anabranch.adapt.policy import DataDriven
from anabranch.adapt.records import Decision
from anabranch.adapt.rules import Criteria
from anabranch.adapt.settings import Settings
from anabranch.plan.text import parse
from anabranch.stats.view import FixedStatistics
from tests.unit.adapt.simulated import QUERY, controller, pricing, run, truth

LEFT = parse("((a b) c)")
FOR_LEFT, FOR_RIGHT = truth(0.0001, 0.01), truth(0.01, 0.0001)


def changes(statistics: list[FixedStatistics], *, foresight: bool, cpu: float = 0.0, horizon: float = 600.0) -> int:
    gate = Gate(cool_down=Interval(batches=1), horizon=horizon)
    settings = Settings(DataDriven(Interval(batches=1)), gate, foresight=foresight)
    decisions: list[Decision] = run(controller(QUERY, settings, Criteria(pricing=pricing(cpu))), LEFT, statistics)[1]
    return sum(decision.action == "migrate" for decision in decisions)


def test_without_foresight_every_swing_is_followed() -> None:
    swings = [FOR_LEFT if batch // 12 % 2 else FOR_RIGHT for batch in range(240)]
    assert changes(swings, foresight=False) >= 18
    assert changes(swings, foresight=True) <= 4


@pytest.mark.parametrize(("horizon", "followed"), [(600.0, True), (1.0, False)])
def test_without_foresight_the_horizon_is_all_that_a_change_may_count_on(horizon: float, followed: bool) -> None:
    streams = [*[FOR_LEFT] * 30, *[FOR_RIGHT] * 40]
    assert bool(changes(streams, foresight=False, cpu=3.0, horizon=horizon)) == followed
