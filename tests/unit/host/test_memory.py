"""What a query has learnt outlives it, and never stops it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anabranch.adapt.gate import Gate
from anabranch.adapt.policy import Interval, Periodic
from anabranch.adapt.rules import ChangeRules, Criteria
from anabranch.adapt.settings import Settings
from anabranch.host.local import LocalHost
from anabranch.optimize import Budget
from anabranch.plan.physical import PhysicalPlan
from tests.unit.adapt.test_steering import LEFT, QUERY, RIGHT, drifting

ADAPT = Settings(
    policy=Periodic(Interval(batches=3)), gate=Gate(cores=0.0, horizon=1e9, cool_down=Interval(batches=2)), remember=4
)


def started(folder: Path, criteria: Criteria | None = None, plan: PhysicalPlan = LEFT) -> LocalHost:
    return LocalHost(QUERY, plan, checkpoint=str(folder), rules=ChangeRules(ADAPT, criteria or Criteria()))


def origins(host: LocalHost) -> list[str]:
    return [record["origin"] for record in host.history if record["kind"] == "decision"]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a query that has changed its plan and then come to rest."""
    folder = tmp_path_factory.mktemp("learnt")
    host = started(folder, plan=RIGHT)
    drifting(host, 16, matching="bc")
    assert origins(host) == ["optimizer", "optimizer"]
    assert host.plan == LEFT
    return folder


def copied(folder: Path, target: Path) -> Path:
    for file in folder.rglob("*"):
        if file.is_file():
            place = target / file.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read_bytes())
    return target


def test_a_restarted_query_tries_the_plans_it_knows_first(learnt: Path, tmp_path: Path) -> None:
    host = started(copied(learnt, tmp_path), plan=RIGHT)
    drifting(host, 8, matching="bc")
    assert origins(host)[:1] == ["library"]
    assert [record for record in host.history if record["kind"] == "warning"] == []


def test_a_plan_written_by_hand_into_the_memory_needs_no_orders(learnt: Path, tmp_path: Path) -> None:
    """It was taken, and ended the query when it was first priced."""
    file = copied(learnt, tmp_path) / "anabranch" / "memory.json"
    memory = json.loads(file.read_text())
    for entry in memory["all"]["library"]:
        entry["plan"] = "(c b a)"
    file.write_text(json.dumps(memory))
    host = started(tmp_path, plan=RIGHT)
    drifting(host, 8, matching="bc")
    assert origins(host)[:1] == ["library"]


def test_what_was_learnt_for_other_limits_is_not_used(learnt: Path, tmp_path: Path) -> None:
    host = started(copied(learnt, tmp_path), Criteria(budget=Budget(memory=1e9)))
    drifting(host, 8, matching="bc")
    assert origins(host)[:1] == ["optimizer"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"all": 3}', '{"all": {"wishes": null}}', "PLAN", "RATE"],
)
def test_a_damaged_memory_is_told_and_passed_over(learnt: Path, tmp_path: Path, content: str) -> None:
    file = copied(learnt, tmp_path) / "anabranch" / "memory.json"
    kept = json.loads(file.read_text())
    if content == "PLAN":
        kept["all"]["library"][0]["plan"] = "(a b)"
        content = json.dumps(kept)
    elif content == "RATE":
        kept["all"]["known"]["rates"]["a"] = -1.0
        content = json.dumps(kept)
    file.write_text(content)
    host = started(tmp_path)
    if content != '{"all": {"wishes": null}}':
        assert [record["kind"] for record in host.history] == ["warning"]
        assert host.history[0]["reason"].startswith("what earlier runs have learnt is not used: ")
    drifting(host, 8, matching="bc")
    assert origins(host)[:1] == ["optimizer"]
    assert "all" in json.loads(file.read_text())


def test_a_memory_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    host = started(tmp_path)
    (tmp_path / "anabranch" / "memory.json").mkdir()
    drifting(host, 6, matching="bc")
    assert [record["kind"] for record in host.history if record["kind"] == "warning"] == ["warning"]
