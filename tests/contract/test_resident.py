"""Resident slots keep the contract of hosts; here they are threads, with real connections, engines and files."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.errors import HostError
from anabranch.plan.mesh import parse_plan
from anabranch.plan.physical import PhysicalPlan, mjoin
from anabranch.plan.query import Query
from anabranch.run.round import PHASES
from anabranch.spark.resident.slot import Address
from anabranch.spark.resident.slots import Slots, SlotsLost
from tests.support.contracts import (
    DURABLE_HOST_CHECKS,
    HOST_CHECKS,
    HostCheck,
    HostMaker,
    workloads,
)
from tests.support.oracle import Answer, describe_difference, rows_as_multiset
from tests.support.resident import ResidentRun

WORKLOADS = {workload.name: workload for workload in workloads()}


class Runs:
    """Makes runs, each after the end of the one before it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count()
        self._last: ResidentRun | None = None

    def maker(self, slots: int, *, is_direct: bool = False, is_lasting: bool = False) -> HostMaker:
        def make(query: Query, plan: PhysicalPlan) -> ResidentRun:
            self.close()
            folder = self._folder / ("0" if is_lasting else str(next(self._numbers)))
            self._last = ResidentRun(query, plan, folder, slots=slots, is_direct=is_direct)
            return self._last

        return make

    def close(self) -> None:
        if self._last is not None:
            self._last.close()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    found = Runs(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("name", ["a chain on two keys", "groups"])
@pytest.mark.parametrize("check", HOST_CHECKS, ids=lambda check: check.__name__)
def test_resident_slots(check: HostCheck, name: str, slots: int, runs: Runs) -> None:
    check(runs.maker(slots), WORKLOADS[name])


@pytest.mark.slow
@pytest.mark.parametrize("is_direct", [True, False], ids=["read all", "read shares"])
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("check", HOST_CHECKS, ids=lambda check: check.__name__)
def test_resident_slots_on_any_workload(check: HostCheck, name: str, is_direct: bool, runs: Runs) -> None:
    check(runs.maker(2, is_direct=is_direct), WORKLOADS[name])


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("check", DURABLE_HOST_CHECKS, ids=lambda check: check.__name__)
def test_resident_slots_with_a_checkpoint(check: HostCheck, name: str, runs: Runs) -> None:
    check(runs.maker(2, is_direct=True, is_lasting=True), WORKLOADS[name])


@pytest.mark.parametrize("phase", ["begin", "written", "committed"])
@pytest.mark.parametrize("name", ["a chain on two keys", "groups"])
def test_a_batch_that_loses_a_slot_is_repeated(name: str, phase: str, tmp_path: Path) -> None:
    workload, losses = WORKLOADS[name], [(phase, 2)]

    def announce(*point: object) -> None:
        if point in losses:
            losses.clear()
            run.lose(1)

    names = workload.query.graph.names
    run = ResidentRun(workload.query, mjoin(names), tmp_path, slots=2, announce=announce)
    answers, lost = [], 0
    for number, batch in enumerate(workload.batches(5)):
        if number == 2:
            # Changes that begin with the batch that is lost.
            run.move(range(8), to=1)
            run.migrate(parse_plan(f"({' '.join(reversed(names))})"))
        while True:
            try:
                answers.append(run.step(batch))
                break
            except SlotsLost:
                lost += 1
    run.close()
    assert lost == 1
    found = rows_as_multiset(pa.concat_tables(answers))
    assert found == workload.answer, describe_difference(found, workload.answer)


class Died(BaseException):
    """The driver ended at a crash point."""


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", ["a chain on two keys", "groups"])
def test_a_death_of_the_driver_at_any_crash_point_changes_no_answer(name: str, phase: str, tmp_path: Path) -> None:
    workload = WORKLOADS[name]
    deaths = [(phase, 1)]

    def announce(*point: object) -> None:
        if point in deaths:
            deaths.clear()
            raise Died

    def start() -> ResidentRun:
        plan = mjoin(workload.query.graph.names)
        return ResidentRun(workload.query, plan, tmp_path, slots=2, announce=announce)

    sink: dict[int, pa.Table] = {}
    batches, run = workload.batches(6), start()
    while run.round.batch < len(batches):
        number = run.round.batch
        try:
            sink[number] = run.step(batches[number])
        except Died:
            sink[number] = run.answer if phase != "begin" else pa.table({})
            run.close()
            run = start()
    run.close()
    found = sum((rows_as_multiset(table) for table in sink.values() if table.num_rows), Answer())
    assert found == workload.answer, describe_difference(found, workload.answer)


def test_slots_that_never_connect_do_not_block_stopping(tmp_path: Path) -> None:
    class Nothing:
        """A job that waits for cores until it is cancelled."""

        def __init__(self) -> None:
            self.is_over = threading.Event()

        def run(self, address: Address, number: int) -> None:
            self.is_over.wait()

        def cancel(self) -> None:
            self.is_over.set()

    slots = Slots(1, "127.0.0.1", str(tmp_path), Nothing(), patience=0.01)
    ending = threading.Thread(target=slots.wait_no_more)
    ending.start()
    with pytest.raises(SlotsLost):
        slots.require()
    ending.join()
    slots.close()


def test_slots_that_die_again_and_again_end_the_run_by_name(tmp_path: Path) -> None:
    class Dying:
        def run(self, address: Address, number: int) -> None:
            raise RuntimeError("exit code 137")

        def cancel(self) -> None: ...

    slots = Slots(1, "127.0.0.1", str(tmp_path), Dying())
    with pytest.raises(HostError, match="have ended before they finished a batch\nRuntimeError: exit code 137"):
        slots.require()
    slots.close()
