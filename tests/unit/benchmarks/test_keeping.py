"""What an invocation of the benchmarks keeps, and when."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import report
from benchmarks.against import Scenario
from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.job import FailedRun


def _fine(_bench: Bench) -> list[Figure]:
    return [Figure("rows", "x", (2.0,))]


def _fails(_bench: Bench) -> list[Figure]:
    raise FailedRun("no luck")


def _is_stopped(_bench: Bench) -> list[Figure]:
    raise KeyboardInterrupt


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where results go; the pages of the documentation stay as they are."""
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "renew_pages", lambda results: None)
    several = [("first", _fine), ("second", _fails), ("third", _is_stopped)]
    monkeypatch.setattr(command, "SCENARIOS", [Scenario(name, "a try", each) for name, each in several])
    return tmp_path


def test_an_invocation_that_is_stopped_keeps_the_scenarios_before(results: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        command.main([])
    (kept,) = (json.loads(path.read_text()) for path in results.iterdir())
    assert (list(kept["scenarios"]), kept["failed"]) == (["first"], {"second": "no luck"})


def test_a_quick_invocation_keeps_nothing(results: Path) -> None:
    assert command.main(["first", "--quick"]) == 0
    assert not list(results.iterdir())


def test_a_scenario_that_fails_is_the_exit_code(results: Path) -> None:
    assert command.main(["first", "second"]) == 1
