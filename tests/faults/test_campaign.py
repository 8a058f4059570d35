"""The campaign of faults: a hand passes, what is broken on purpose is found, a journal is taken up again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anabranch.run.manifest import Manifest
from anabranch.run.store import Store
from tests.faults import campaign
from tests.faults.campaign import HAND, Campaign, Outcome, play, run


def test_a_hand_of_schedules_has_no_wrong_row() -> None:
    outcome = play(0, 0, 6)
    assert outcome.failure is None, outcome.failure
    assert outcome.schedules > 0


def test_a_store_that_forgets_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: the manifest forgets the rows of the last batch."""
    real = Store.commit

    def forgetful(self: Store, manifest: Manifest) -> None:
        files = [file for file in manifest.files if file.batch < manifest.batch]
        real(self, Manifest(**{**vars(manifest), "files": tuple(files)}))

    monkeypatch.setattr(Store, "commit", forgetful)
    found = (outcome.failure for hand in range(20) if (outcome := play(0, hand, 4, shrinks=False)).failure)
    failure = next(found, None)
    assert failure, "rows are lost at every restart, and no schedule shows it"
    assert "Draw 1 (kind)" in failure, failure


def test_a_journal_is_taken_up_and_failures_are_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "ProcessPoolExecutor", _Here)
    said: list[str] = []
    first = Campaign(4 * HAND, 7, 1, tmp_path / "journal.jsonl")
    assert run(first, said.append, _hand_two_fails) == 1
    assert any("--seed 7 --hand 2" in line for line in said)
    assert sorted(first.played()) == [0, 1, 3]
    with first.journal.open("a") as journal:
        journal.write('{"hand": 9, "sched')
    assert run(first, said.append, _passes) == 0
    assert sorted(first.played()) == [0, 1, 2, 3]
    assert Campaign(4 * HAND, 8, 1, first.journal).played() == {}
    title = json.loads(first.journal.read_text().splitlines()[0])
    assert title == {"seed": 7, "hand": HAND, "sources": campaign._digest()}


def _passes(seed: int, hand: int) -> Outcome:
    return Outcome(hand, HAND, 0.1)


def _hand_two_fails(seed: int, hand: int) -> Outcome:
    return Outcome(hand, HAND, 0.1, "AssertionError: one row is missing" if hand == 2 else None)


class _Here:
    """Has the interface of a pool of processes, in this process."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        return

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *arguments: Any) -> None:
        return

    def submit(self, function: Any, *arguments: Any) -> Any:
        from concurrent.futures import Future

        done: Any = Future()
        done.set_result(function(*arguments))
        return done
