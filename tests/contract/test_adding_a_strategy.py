"""A migration strategy from outside the product: one object that is registered checks, prices, begins and is exact."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.adapt.rules import ChangeRules, Switch
from anabranch.errors import MigrationError
from anabranch.migrate.strategies.pricing import Difference, prices
from anabranch.migrate.strategies.registry import forget, register, strategy_named
from anabranch.migrate.strategies.strategy import Change, Price, Strategy, Track
from anabranch.optimize.problem import resource_model
from anabranch.plan.difference import StateMatching
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import PhysicalPlan, kept
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from tests.support.contracts import workloads
from tests.support.migrations import MIGRATION_CHECKS, MigrationCheck
from tests.unit.adapt.simulated import QUERY, truth

WORKLOADS = {workload.name: workload for workload in workloads()}


class FromBaseRows:
    """Moves no state at all: every state of the new plan is computed from base rows."""

    name = "from-base-rows"

    def check(self, old: PhysicalPlan, new: PhysicalPlan, graph: JoinGraph) -> None:
        if not any(kept(new)):
            raise MigrationError(f"strategy 'from-base-rows' has nothing to compute for '{new}'", hint="use 'none'")

    def price(self, difference: Difference) -> Price | None:
        return Price(self.name, 0.0, difference.memory, 0.0)

    def begin(self, change: Change[Track]) -> Track:
        everything = tuple(state.shape for state in kept(change.plan))
        return change.moved(StateMatching((), everything, ()))


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    strategy: Strategy = FromBaseRows()
    register(strategy)
    yield
    forget(strategy.name)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("check", MIGRATION_CHECKS, ids=lambda check: check.__name__)
def test_it_keeps_the_contract_of_changes(check: MigrationCheck, name: str) -> None:
    def make(query: Query, plan: PhysicalPlan) -> LocalHost:
        return LocalHost(query, plan, slots=1 if name == "groups" else 2)

    check(make, WORKLOADS[name], FromBaseRows.name)


def test_auto_takes_it_where_its_price_is_the_lowest_and_where_it_serves() -> None:
    model = resource_model(QUERY.graph, truth(0.001, 0.001))
    assert prices(QUERY.graph, parse("((a b) c)"), parse("(a (b c))"), model)[0].strategy == FromBaseRows.name
    ways = prices(QUERY.graph, parse("((a b) c)"), parse("(a b c)"), model)
    assert FromBaseRows.name not in [way.strategy for way in ways]


def test_a_schedule_may_name_it_until_it_is_forgotten() -> None:
    host = LocalHost(
        QUERY, parse("((a b) c)"), rules=ChangeRules(switches=(Switch(0, parse("(a (b c))"), FromBaseRows.name),))
    )
    host.step({})
    assert host.history[0]["strategy"] == FromBaseRows.name
    forget(FromBaseRows.name)
    with pytest.raises(MigrationError, match="no migration strategy 'from-base-rows'"):
        strategy_named(FromBaseRows.name)
    register(FromBaseRows())
