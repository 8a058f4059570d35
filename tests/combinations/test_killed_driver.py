"""Drawn schedules of the table, on a driver in a process of its own that is killed by SIGKILL and starts again.

Every second schedule dies at an announced crash point, the others at a drawn moment of a drawn batch. The number of a
schedule is its seed: `-k "loses_nothing and [7]"` plays number 7 again. What was drawn is the same each time; how far
the driver gets until a drawn moment is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from anabranch.run.round import PHASES
from tests.combinations.killed_host import Drivers, KilledHost
from tests.combinations.play import Played, play
from tests.combinations.test_combinations import COVER, not_the_simplest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("drivers of their own")]

SCHEDULES = 20
IN_THIS_PROCESS = frozenset({"failing write", "failing sink"})
"""Faults that are injected by objects of the process that plays."""


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    several = Drivers()
    yield several
    several.end()


@pytest.mark.parametrize("number", range(SCHEDULES))
def test_a_killed_driver_loses_nothing(number: int, drivers: Drivers) -> None:
    features, listed = COVER[number * len(COVER) // SCHEDULES]
    events = [name for name in listed if name not in IN_THIS_PROCESS and not name.startswith("crash")]
    chance = Random(number)
    if number % 2:
        drivers.moments = {chance.randrange(1, 3): chance.uniform(0, 1.5)}
    else:
        drivers.moments = {}
        events.insert(chance.randrange(len(events) + 1), f"crash at {PHASES[number // 2 % len(PHASES)]}")
    drivers.kills = []
    found: list[Played] = []

    @seed(number)
    @settings(
        max_examples=1,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def drawn(data: st.DataObject) -> None:
        not_the_simplest(data)
        found.append(play(data, features, events, partial(KilledHost, drivers)))

    print(f"seed {number}: {sorted(features)}, {events}, killed at moments {drivers.moments}")  # noqa: T201
    drawn()
    print(f"{found[0].results} results; killed {'; '.join(drivers.kills)}")  # noqa: T201
    assert len(found) == 1
    assert drivers.kills, "no driver was killed"
