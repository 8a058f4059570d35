"""Branches: what is refused, and that a take-over which was interrupted is finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.checkpoint.copying import copy
from anabranch.cql import compile_query
from anabranch.errors import CheckpointError, ForeignCheckpoint
from anabranch.plan.query_set import ALONE, Plans, QuerySet, partitioning_of, together
from anabranch.plan.text import parse
from anabranch.run.branching import branch_of, earliest, finish, pairs, split, take_over
from anabranch.run.evolving import Evolve
from anabranch.run.local import LocalHost
from anabranch.run.store import Store
from tests.unit.run.test_evolving import FILTERED, JOIN, catalog, evolved, queries, ran, rows

OLD, NEW = {ALONE: JOIN}, {ALONE: FILTERED}


def branched(folder: Path) -> tuple[Store, QuerySet]:
    """A branch of three batches."""
    ran(folder / "old", OLD, range(3))
    copy(str(folder / "old"), str(folder / "new"))
    store = Store(str(folder / "new"))
    both = together({"before": compile_query(JOIN, catalog()), "after": compile_query(FILTERED, catalog())})
    split(store, queries(OLD), both, pairs(OLD, NEW), lambda: partitioning_of(both, 1), "old")
    return store, both


@pytest.mark.parametrize("evolve", [Evolve.ASK, Evolve.ALLOW])
def test_a_branch_is_no_checkpoint_of_the_new_query_alone(tmp_path: Path, evolve: Evolve) -> None:
    branched(tmp_path)
    with pytest.raises(ForeignCheckpoint, match="is that of a branch"):
        evolved(tmp_path / "new", NEW, evolve)


def test_a_take_over_is_finished_by_the_same_steps(tmp_path: Path) -> None:
    store, both = branched(tmp_path)
    old, wanted = Store(str(tmp_path / "old")), queries(NEW)
    times = [finish(old, queries(OLD), earliest(store.latest(), since=0)) for _ in range(2)]
    assert times == [2_000_001, 2_000_001]
    with pytest.raises(ForeignCheckpoint, match="cannot be taken over") as caught:
        evolved(tmp_path / "old", NEW)
    assert "a branch takes over from these queries" in (caught.value.detail or "")
    for _ in range(2):
        entry = branch_of(store)
        assert entry is not None
        take_over(store, both, wanted, lambda: partitioning_of(wanted, 1), times[0])
        store.note_metadata(branch=entry)  # as if the driver had died before it removed the entry
    store.note_metadata(branch=None)
    assert len(ran(tmp_path / "new", NEW, range(3, 4))) == 5
    assert ran(tmp_path / "old", OLD, range(3, 4)) == []


def test_a_running_host_ends_its_answers_without_rebuilding(tmp_path: Path) -> None:
    several = queries(OLD)
    host = LocalHost(several, Plans({ALONE: parse("(a b)")}), checkpoint=str(tmp_path))
    for second in range(3):
        host.step(rows(second))
    engine = host.engines[0]
    time = finish(host.store, several, 0) if host.store is not None else 0
    host.round.manifest = Store(str(tmp_path)).latest()
    assert time == 2_000_001
    assert host.step(rows(3)).num_rows == 0
    assert host.engines[0] is engine


def test_a_checkpoint_without_a_batch_cannot_be_finished(tmp_path: Path) -> None:
    ran(tmp_path, OLD, range(0))
    with pytest.raises(CheckpointError, match="has no batch yet"):
        finish(Store(str(tmp_path)), queries(OLD), 0)
