"""Policy, objective and limits change while a query runs, are recorded, and are kept over a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anabranch.adapt.policy import DataDriven, Periodic
from anabranch.adapt.rules import NO_RULES, ChangeRules
from anabranch.adapt.settings import Settings
from anabranch.errors import MigrationError, SpecError
from anabranch.run.local import LocalHost
from tests.unit.adapt.test_steering import LEFT, QUERY, drifting


def started(folder: Path, rules: ChangeRules | None = None) -> LocalHost:
    return LocalHost(QUERY, LEFT, checkpoint=str(folder), rules=rules or ChangeRules(Settings()))


def settings(host: LocalHost) -> ChangeRules:
    return host.steering.of_query(None).rules


def test_changes_apply_at_once_are_recorded_and_survive_a_restart(tmp_path: Path) -> None:
    host = started(tmp_path)
    drifting(host, 1, matching="bc")
    host.reconfigure({"adapt": {"policy": "periodic", "every": 4}})
    host.reconfigure({"objective": "memory"})
    host.reconfigure({"limits": {"cpu": 0.5, "memory": "10 MB"}})
    for again in (host, None):
        now = settings(again or started(tmp_path))
        assert now.adapt is not None
        assert isinstance(now.adapt.policy, Periodic)
        assert now.criteria.objective.kind == "memory"
        assert (now.criteria.budget.cpu, now.criteria.budget.memory) == (0.5, 10_000_000)
        if again is not None:
            drifting(host, 1, matching="bc")
    records = [record for record in host.history if record["kind"] == "settings"]
    assert [record["settings"] for record in records][1:2] == [{"objective": "memory"}]
    assert {record["batch"] for record in records} == {1}


def test_the_controller_decides_by_the_changed_policy(tmp_path: Path) -> None:
    host = started(tmp_path, ChangeRules(Settings(DataDriven(eager=True))))
    host.reconfigure({"adapt": {"policy": "periodic", "every": 1000}})
    drifting(host, 6, matching="bc")
    assert not [record for record in host.history if record["kind"] == "decision"]


@pytest.mark.parametrize(
    "wanted", [{"limits": {"cpu": -1}}, {"objective": "beauty"}, {"adapt": {"policy": "never"}}, {"plan": "tree"}]
)
def test_wrong_settings_are_refused_and_change_nothing(tmp_path: Path, wanted: dict[str, Any]) -> None:
    host = started(tmp_path)
    before = settings(host)
    with pytest.raises(SpecError):
        host.reconfigure(wanted)
    assert settings(host) == before


def test_a_query_that_does_not_adapt_has_no_settings_to_change(tmp_path: Path) -> None:
    with pytest.raises(MigrationError, match="does not adapt"):
        started(tmp_path, NO_RULES).reconfigure({"objective": "cpu"})
