"""Every migration strategy keeps the contract of changes, on the in-process host with one and several slots."""

from __future__ import annotations

import pytest

from anabranch.migrate.strategies.registry import strategy_names
from anabranch.plan.mesh import Plan
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Query
from anabranch.run.local import LocalHost
from tests.support.contracts import workloads
from tests.support.migrations import (
    MIGRATION_CHECKS,
    MigratingHostMaker,
    MigrationCheck,
    a_change_is_not_seen_in_any_batch,
)

WORKLOADS = {workload.name: workload for workload in workloads()}


@pytest.mark.parametrize("strategy", strategy_names())
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("check", MIGRATION_CHECKS, ids=lambda check: check.__name__)
def test_strategy(check: MigrationCheck, name: str, strategy: str) -> None:
    def make(query: Query, plan: PhysicalPlan) -> LocalHost:
        return LocalHost(query, plan, slots=1 if name == "groups" else 2)

    check(make, WORKLOADS[name], strategy)


def test_a_host_that_forgets_its_state_is_found_out() -> None:
    """One that starts anew at every change: what waited for partners is lost."""

    class Forgetful(LocalHost):
        def migrate(self, plan: Plan, *_: object, **__: object) -> None:
            self.__init__(self.queries, plan)  # type: ignore[misc]

    broken = [check for check in MIGRATION_CHECKS if _fails(check, lambda query, plan: Forgetful(query, plan))]
    assert a_change_is_not_seen_in_any_batch in broken


def _fails(check: MigrationCheck, make: MigratingHostMaker) -> bool:
    try:
        check(make, WORKLOADS["a chain on two keys"], "moving-state")
    except AssertionError:
        return True
    return False
