"""Settings of the Spark session: defaults of runs, with errors for those that nobody knows."""

from __future__ import annotations

import pytest

from anabranch.api.session_settings import with_session_settings
from anabranch.api.settings import RunSettings
from anabranch.errors import AnabranchError, SpecError
from anabranch.plan.execution import execution_model
from anabranch.plan.slots import SlotRange
from anabranch.run.evolving import Evolve

GIVEN = {
    "spark.anabranch.slots": "3",
    "spark.anabranch.execution": "semi-synchronised",
    "spark.anabranch.idleTimeout": "5 minutes",
    "spark.anabranch.evolve": "allow",
    "spark.anabranch.jvmPatches": "true",
    "spark.sql.shuffle.partitions": "7",
}


def test_the_session_has_defaults_of_a_run() -> None:
    found = with_session_settings(RunSettings(), GIVEN)
    assert found.slots == SlotRange.fixed(3)
    assert found.execution == execution_model("semi-synchronised")
    assert (found.idle_timeout, found.evolve) == ("5 minutes", Evolve.ALLOW)


def test_the_run_takes_precedence() -> None:
    own = RunSettings(slots=SlotRange.fixed(2), idle_timeout="none")
    found = with_session_settings(own, GIVEN)
    assert (found.slots, found.idle_timeout) == (own.slots, "none")


@pytest.mark.parametrize("name", ["spark.anabranch.slot", "spark.anabranch.anything"])
def test_an_unknown_setting_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=f"unknown setting '{name}'"):
        with_session_settings(RunSettings(), {name: "3"})


@pytest.mark.parametrize("name", ["slots", "execution", "idleTimeout", "evolve"])
def test_a_wrong_value_is_refused(name: str) -> None:
    with pytest.raises(AnabranchError):
        with_session_settings(RunSettings(), {f"spark.anabranch.{name}": "many"})
