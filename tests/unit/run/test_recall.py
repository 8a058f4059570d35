"""A restart begins with the statistics that earlier runs measured, and knows the plans that ran."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anabranch.adapt.facts import Interval
from anabranch.adapt.gate import Gate
from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.policy import Periodic
from anabranch.adapt.rules import ChangeRules
from anabranch.adapt.settings import Settings
from anabranch.plan.physical import PhysicalPlan
from anabranch.run.local import LocalHost
from tests.unit.adapt.test_steering import LEFT, QUERY, RIGHT, drifting

GATE = Gate(cores=0.0, horizon=1e9, cool_down=Interval(batches=2))


def started(folder: Path, plan: PhysicalPlan = LEFT, slots: int = 1) -> LocalHost:
    adapt = Settings(policy=Periodic(Interval(batches=3)), gate=GATE, remember=4)
    return LocalHost(QUERY, plan, slots=slots, checkpoint=str(folder), rules=ChangeRules(adapt))


def known(host: LocalHost) -> Knowledge:
    controller = host.steering.of_query(None).controller
    assert controller is not None
    return controller.history.statistics


def decisions(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "anabranch" / "history.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == "decision"]


def test_a_restart_begins_with_the_statistics_of_the_last_decision(tmp_path: Path) -> None:
    """Plan RIGHT looks up other pairs than LEFT: what it measured stays known."""
    host = started(tmp_path, RIGHT)
    drifting(host, 16, matching="bc")
    assert host.plan == LEFT
    before = known(started(tmp_path))
    assert before.to_json() == decisions(tmp_path)[-1]["statistics"]
    assert set(before.selectivities) == set(known(host).selectivities)


def test_a_query_with_another_number_of_slots_measures_anew(tmp_path: Path) -> None:
    drifting(started(tmp_path), 8, matching="bc")
    assert known(started(tmp_path, slots=2)).rates == {}


@pytest.mark.parametrize(
    "damage",
    [
        {"statistics": None},
        {"statistics": []},
        {"statistics": {"rates": {}}},
        {"statistics": {"rates": 3}},
        {"plan": "(a b)"},
        {"plan": 7},
        {"plan": "(("},
    ],
)
def test_a_record_that_cannot_be_read_is_skipped(damage: dict[str, object], tmp_path: Path) -> None:
    drifting(started(tmp_path), 8, matching="bc")
    history = tmp_path / "anabranch" / "history.jsonl"
    *_, last = decisions(tmp_path)
    history.write_text(f"{json.dumps(last | damage)}\n")
    host = started(tmp_path)
    assert known(host).rates == {}
    history.write_text("".join(f"{json.dumps(record)}\n" for record in (last, last | damage)))
    host = started(tmp_path)
    assert known(host).to_json() == last["statistics"]
    drifting(host, 8, matching="bc")
    assert {record["kind"] for record in host.history} <= {"decision", "migration"}
