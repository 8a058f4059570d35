"""An input operator from outside the product: a plan node and an operator of the engine run, migrate and are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pytest

from anabranch.console.picture.plan import plan_svg
from anabranch.engine.batch import Combinations
from anabranch.engine.operators.inputs import InputWork, make_work
from anabranch.engine.ownership import Ownership
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.errors import MigrationError
from anabranch.migrate.strategies.pricing import prices
from anabranch.migrate.strategies.registry import strategy_names
from anabranch.optimize.problem import resource_model
from anabranch.plan.describe import describe
from anabranch.plan.difference import match_states
from anabranch.plan.physical import InputOperator, JoinNode, Leaf, PhysicalPlan
from anabranch.plan.query import Query
from anabranch.run.local import LocalHost
from tests.support.contracts import workloads
from tests.support.oracle import describe_difference, rows_as_multiset
from tests.unit.adapt.simulated import QUERY, truth

WORKLOADS = {
    workload.name: workload
    for workload in workloads()
    if workload.query.grouping is None and len(workload.query.graph.names) > 1
}


@dataclass(frozen=True)
class Counted(InputOperator):
    """Counts the rows of an input on their way into its state: `<a>`."""

    kind: ClassVar[str] = "count"

    @property
    def shape(self) -> str:
        return f"<{self.input.shape}>"

    def __str__(self) -> str:
        return f"<{self.input}>"


class Counter:
    """The operator of the engine."""

    rows = 0

    def work(self, found: Combinations) -> Combinations:
        Counter.rows += len(found)
        return found

    def compact(self, state: IntermediateState, low: int) -> None: ...

    def tell_apart(self, marks: Mapping[str, int]) -> None: ...


@make_work.register
def _(node: Counted, query: Query, bases: Mapping[str, BaseState], owns: Ownership | None) -> InputWork:
    return Counter()


def counted(query: Query) -> PhysicalPlan:
    """The mjoin with the first relation counted."""
    first, *others = query.graph.names
    return JoinNode((Counted(Leaf(first)), *(Leaf(name) for name in others)))


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("name", WORKLOADS)
def test_it_changes_no_answer(name: str, slots: int) -> None:
    workload, Counter.rows = WORKLOADS[name], 0
    host = LocalHost(workload.query, counted(workload.query), slots=slots)
    found = [host.step(batch) for batch in workload.batches(4)]
    assert not describe_difference(workload.answer, rows_as_multiset(pa.concat_tables(found)))
    assert Counter.rows > 0
    assert f"<{workload.query.graph.names[0]}>" in {state.state for state in host.statistics.states}


@pytest.mark.parametrize("strategy", [name for name in strategy_names() if name not in ("none", "spread")])
@pytest.mark.parametrize("name", WORKLOADS)
def test_plans_change_to_it_and_back(name: str, strategy: str) -> None:
    workload = WORKLOADS[name]
    plain: PhysicalPlan = JoinNode(tuple(Leaf(name) for name in workload.query.graph.names))
    host, found = LocalHost(workload.query, plain), []
    for number, batch in enumerate(workload.batches(6)):
        if number == 1:
            host.migrate(counted(workload.query), strategy)
        if number == 4:
            with suppress(MigrationError):  # the first change may still be under way
                host.migrate(plain, "moving-state")
        found.append(host.step(batch))
    assert not describe_difference(workload.answer, rows_as_multiset(pa.concat_tables(found)))


def test_its_state_is_its_own_and_every_room_can_speak_of_it() -> None:
    plan, plain = counted(QUERY), JoinNode((Leaf("a"), Leaf("b"), Leaf("c")))
    assert match_states(plain, plan).recomputed == ("<a>",)
    assert "count <a> kept as state" in describe(plan, QUERY.graph)
    assert "&lt;a&gt;" in plan_svg(QUERY, plan)
    ways = prices(QUERY.graph, plain, plan, resource_model(QUERY.graph, truth(0.001, 0.001)))
    assert {way.strategy for way in ways} == {"moving-state", "parallel-track"}
