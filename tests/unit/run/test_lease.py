"""One driver at a time commits to a checkpoint; a dead one is followed at once, a silent one after a minute."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from anabranch.errors import CheckpointInUse
from anabranch.plan.query_set import alone
from anabranch.run.lease import EXPIRE_SECONDS, Holder, Lease
from anabranch.run.store import Store
from tests.unit.run.test_store import QUERY

NOW = 1_700_000_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path))
    store.open(alone(QUERY))
    return store


def take(store: Store, now: Callable[[], int] = lambda: NOW) -> Lease:
    return Lease(store, now)


def held_by(store: Store, **other: object) -> None:
    """Lets another driver have the lease."""
    store.keep_lease(asdict(replace(Holder.me(NOW), owner="another", **other)))  # type: ignore[arg-type]


def test_a_lease_is_taken_kept_and_given_back(store: Store) -> None:
    lease = take(store)
    lease.require()
    assert store.lease() is not None
    lease.close()
    assert store.lease() is None


def test_a_second_driver_is_refused_and_the_first_continues(store: Store) -> None:
    # This very process, as another driver of it would look: alive.
    held_by(store)
    with pytest.raises(CheckpointInUse, match="is in use"):
        take(store)
    found = store.lease()
    assert found is not None
    assert found["owner"] == "another"


def test_a_driver_that_died_on_this_machine_is_followed_at_once(store: Store) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    held_by(store, process=ended.pid)
    take(store).require()


def test_a_process_that_has_the_number_of_a_dead_driver_is_not_that_driver(store: Store) -> None:
    held_by(store, began="long ago")
    take(store).require()


def test_a_driver_on_another_machine_is_followed_when_it_has_been_silent_for_long(store: Store) -> None:
    silence = int(EXPIRE_SECONDS * 1_000_000)
    held_by(store, machine="elsewhere", renewed=NOW - silence + 1)
    with pytest.raises(CheckpointInUse, match="'elsewhere'"):
        take(store)
    held_by(store, machine="elsewhere", renewed=NOW - silence)
    take(store).require()


def test_a_driver_that_lost_its_lease_commits_nothing_and_leaves_the_lease_alone(store: Store) -> None:
    lease = take(store)
    held_by(store)
    with pytest.raises(CheckpointInUse, match="lost checkpoint"):
        lease.require()
    lease.renew()
    lease.close()
    found = store.lease()
    assert found is not None
    assert found["owner"] == "another"


def test_a_lease_that_was_removed_is_lost(store: Store) -> None:
    lease = take(store)
    store.drop_lease()
    with pytest.raises(CheckpointInUse, match="it was removed"):
        lease.require()


def test_renewing_shows_that_a_driver_lives(store: Store) -> None:
    clock = iter([NOW, NOW + 5])
    lease = take(store, clock.__next__)
    lease.renew()
    found = store.lease()
    assert found is not None
    assert found["renewed"] == NOW + 5


def test_runs_of_one_process_follow_each_other(store: Store) -> None:
    earlier, later = take(store), take(store)
    earlier.require()
    later.require()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_an_unreadable_lease_is_taken_over(store: Store, tmp_path: Path, text: str) -> None:
    (tmp_path / "anabranch" / "lease.json").write_text(text)
    take(store).require()
