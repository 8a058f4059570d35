"""The contract of a migration strategy, as checks that can be run against any host.

    for check in MIGRATION_CHECKS:
        for workload in workloads():
            check(make_host, workload, "moving-state")

A check passes, or raises an AssertionError that names the rows that differ, the batch and the change of plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol, TypeAlias

import pyarrow as pa

from anabranch.errors import AnabranchError, MigrationError
from anabranch.migrate.strategies.registry import check_migration
from anabranch.plan.mesh import Plan
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, mjoin
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans
from tests.support.contracts import Batch, Workload, all_shapes
from tests.support.oracle import describe_difference, rows_as_multiset


class MigratingHost(Protocol):
    """A running query whose plan may change between two batches; the next batch runs the new plan."""

    @property
    def plan(self) -> Plan | Plans: ...

    def step(self, rows: Batch) -> pa.Table: ...

    def migrate(self, plan: PhysicalPlan, strategy: str) -> None: ...


MigratingHostMaker: TypeAlias = Callable[[Query, PhysicalPlan], MigratingHost]
MigrationCheck: TypeAlias = Callable[[MigratingHostMaker, Workload, str], None]


def a_change_is_not_seen_in_any_batch(make: MigratingHostMaker, workload: Workload, strategy: str) -> None:
    """Every batch gives the rows that it gives without the change: no row later, earlier or twice."""
    names = workload.query.graph.names
    batches = workload.batches(4)
    still = make(workload.query, mjoin(names))
    expected = [rows_as_multiset(still.step(batch)) for batch in batches]
    for old, new in itertools.product(all_shapes(names), repeat=2):
        host = make(workload.query, old)
        for number, batch in enumerate(batches):
            if number == 2:
                _ask(host, old, new, workload, strategy)
            difference = describe_difference(expected[number], rows_as_multiset(host.step(batch)))
            assert not difference, f"{strategy} from {old} to {new}, batch {number}: {difference}"


def a_refused_change_has_no_effect(make: MigratingHostMaker, workload: Workload, strategy: str) -> None:
    """A plan of other relations is refused by name; the plan is unchanged and the answer is the batch answer."""
    plan = mjoin(workload.query.graph.names)
    host = make(workload.query, plan)
    results = []
    for batch in workload.batches(5):
        results.append(host.step(batch))
        refusal = _refusal(host, JoinNode((plan, Leaf("stranger"))), strategy)
        assert refusal is not None, "a plan of another query was accepted"
        assert "stranger" in str(refusal), f"the error does not name the relation: {refusal}"
        assert host.plan == plan
    difference = describe_difference(workload.answer, rows_as_multiset(pa.concat_tables(results)))
    assert not difference, f"after refused changes: {difference}"


def one_change_at_a_time(make: MigratingHostMaker, workload: Workload, strategy: str) -> None:
    """A second change requested before the first has begun is refused, and the first is made."""
    old, *others = all_shapes(workload.query.graph.names)
    if len(others) < 2:
        return
    host = make(workload.query, old)
    results = []
    for number, batch in enumerate(workload.batches(3)):
        if number == 1 and _ask(host, old, others[0], workload, strategy):
            refusal = _refusal(host, others[1], strategy)
            assert isinstance(refusal, MigrationError), "a second change was accepted while the first was in progress"
            assert refusal.hint, f"the error does not say what to do: {refusal}"
        results.append(host.step(batch))
    difference = describe_difference(workload.answer, rows_as_multiset(pa.concat_tables(results)))
    assert not difference, f"two changes by {strategy}: {difference}"


MIGRATION_CHECKS: tuple[MigrationCheck, ...] = (
    a_change_is_not_seen_in_any_batch,
    a_refused_change_has_no_effect,
    one_change_at_a_time,
)


def _ask(host: MigratingHost, old: PhysicalPlan, new: PhysicalPlan, workload: Workload, strategy: str) -> bool:
    """Requests a change; returns False if the strategy does not support it, which must be refused at once."""
    try:
        check_migration(old, new, workload.query.graph, strategy)
    except MigrationError:
        refusal = _refusal(host, new, strategy)
        assert isinstance(refusal, MigrationError), f"{strategy} was accepted for the change from {old} to {new}"
        assert host.plan == old
        return False
    host.migrate(new, strategy)
    return True


def _refusal(host: MigratingHost, plan: PhysicalPlan, strategy: str) -> AnabranchError | None:
    try:
        host.migrate(plan, strategy)
    except AnabranchError as error:
        return error
    return None
