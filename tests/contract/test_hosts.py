"""The in-process host keeps the contract of hosts, with one and several slots, with and without a checkpoint."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Query
from anabranch.run.local import LocalHost
from tests.support.contracts import (
    DURABLE_HOST_CHECKS,
    HOST_CHECKS,
    HostCheck,
    HostMaker,
    Workload,
    a_late_row_is_counted_once,
    all_shapes,
    the_cut_does_not_matter,
    the_plan_does_not_matter,
    workloads,
)

WORKLOADS = {workload.name: workload for workload in workloads()}


def in_memory(slots: int) -> HostMaker:
    def make(query: Query, plan: PhysicalPlan) -> LocalHost:
        return LocalHost(query, plan, slots=slots)

    return make


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_has_an_answer(name: str) -> None:
    assert WORKLOADS[name].answer.total() > 5


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("check", HOST_CHECKS, ids=lambda check: check.__name__)
def test_local_host(check: HostCheck, name: str, slots: int) -> None:
    check(in_memory(slots), WORKLOADS[name])


@pytest.mark.parametrize("slots", [(1,), (3,), (1, 4, 2)], ids=str)
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("check", DURABLE_HOST_CHECKS, ids=lambda check: check.__name__)
def test_local_host_with_a_checkpoint(check: HostCheck, name: str, slots: tuple[int, ...], tmp_path: Path) -> None:
    counts = itertools.cycle(slots)

    def make(query: Query, plan: PhysicalPlan) -> LocalHost:
        return LocalHost(query, plan, slots=next(counts), checkpoint=str(tmp_path))

    check(make, WORKLOADS[name])


@pytest.mark.parametrize("check", HOST_CHECKS, ids=lambda check: check.__name__)
def test_each_host_with_a_checkpoint_of_its_own(check: HostCheck, tmp_path: Path) -> None:
    numbers = itertools.count()

    def make(query: Query, plan: PhysicalPlan) -> LocalHost:
        return LocalHost(query, plan, slots=2, checkpoint=str(tmp_path / str(next(numbers))))

    check(make, WORKLOADS["a chain on two keys"])


def test_a_host_that_loses_rows_is_found_out() -> None:
    class Forgetful(LocalHost):
        def step(self, rows: Mapping[str, pa.Table], *more: Any, **options: Any) -> pa.Table:
            return super().step({name: table.slice(1) for name, table in rows.items()}, *more, **options)

    broken = {check for check in HOST_CHECKS if _fails(check, lambda q, plan: Forgetful(q, plan), "no equality")}
    assert {the_cut_does_not_matter, the_plan_does_not_matter, a_late_row_is_counted_once} <= broken


def test_there_are_as_many_shapes_as_there_should_be() -> None:
    counts = [len({str(plan) for plan in all_shapes("abcde"[:size])}) for size in range(1, 6)]
    assert counts == [1, 1, 4, 26, 236]  # Schroeder's fourth problem


def _fails(check: HostCheck, make: HostMaker, name: str) -> bool:
    workload: Workload = WORKLOADS[name]
    try:
        check(make, workload)
    except AssertionError:
        return True
    return False
