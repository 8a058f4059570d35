"""The one round of a batch: a host that ends at any crash point goes on from its checkpoint with the same answer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.plan.physical import mjoin
from anabranch.run.local import LocalHost
from anabranch.run.round import BEGIN, COLLECTED, COMMITTED, PHASES, WRITTEN
from anabranch.run.slot import SlotTask
from tests.support.contracts import Workload, workloads
from tests.support.oracle import describe_difference, rows_as_multiset

WORKLOADS = {workload.name: workload for workload in workloads()}


class Died(BaseException):
    """The host ended at a crash point."""


def run(workload: Workload, folder: Path, slots: int, phase: str, batch: int) -> Counter[tuple[object, ...]]:
    """Runs a workload with one death; returns the rows of a sink that keeps the last attempt at each batch."""
    sink: dict[int, pa.Table] = {}
    deaths = [(phase, batch)]

    def announce(*point: object) -> None:
        if point in deaths:
            deaths.clear()
            raise Died

    def deliver(task: SlotTask, answer: pa.Table) -> None:
        sink[task.batch] = answer

    def start() -> LocalHost:
        plan = mjoin(workload.query.graph.names)
        return LocalHost(workload.query, plan, slots=slots, checkpoint=str(folder), announce=announce)

    batches, host = workload.batches(3), start()
    while host.batch < len(batches):
        try:
            host.step(batches[host.batch], deliver=deliver)
        except Died:
            host = start()
    assert not deaths, "the host never came to this point"
    total: Counter[tuple[object, ...]] = Counter()
    for table in sink.values():
        total += rows_as_multiset(table)
    return total


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_death_at_any_crash_point_changes_no_answer(name: str, phase: str, slots: int, tmp_path: Path) -> None:
    workload = WORKLOADS[name]
    found = run(workload, tmp_path, slots, phase, batch=1)
    assert found == workload.answer, describe_difference(found, workload.answer)


def test_the_crash_points_come_in_order(tmp_path: Path) -> None:
    workload, seen = WORKLOADS["a chain on two keys"], list[tuple[str, int]]()
    plan = mjoin(workload.query.graph.names)
    host = LocalHost(
        workload.query, plan, checkpoint=str(tmp_path), announce=lambda phase, batch: seen.append((phase, batch))
    )
    for rows in workload.batches(4)[:2]:
        host.step(rows)
    assert seen == [(phase, batch) for batch in range(2) for phase in PHASES]


@pytest.mark.parametrize(("phase", "done"), [(BEGIN, 0), (WRITTEN, 0), (COMMITTED, 1), (COLLECTED, 1)])
def test_a_batch_is_done_when_its_manifest_is_committed(phase: str, done: int, tmp_path: Path) -> None:
    workload = WORKLOADS["a chain on two keys"]
    plan = mjoin(workload.query.graph.names)

    def announce(reached: str, batch: int) -> None:
        if reached == phase:
            raise Died

    host = LocalHost(workload.query, plan, checkpoint=str(tmp_path), announce=announce)
    with pytest.raises(Died):
        host.step(workload.batches(4)[0])
    assert LocalHost(workload.query, plan, checkpoint=str(tmp_path)).batch == done


def test_the_files_of_the_last_two_manifests_stay(tmp_path: Path) -> None:
    """A slot that is one batch behind still reads the files of the manifest before."""
    workload = WORKLOADS["a chain on two keys"]
    host = LocalHost(workload.query, mjoin(workload.query.graph.names), checkpoint=str(tmp_path))
    listed: set[str] = set()
    for number, rows in enumerate(workload.batches(4)):
        host.step(rows)
        assert host.store is not None
        assert host.store.batches() == [number - 1, number][-(number + 1) :]
        for batch in host.store.batches():
            manifest = host.store.manifest(batch)
            assert manifest is not None
            listed |= {file.name for file in manifest.files}
            assert {file.name for file in manifest.files} <= set(host.store.names("rows"))
    assert listed
