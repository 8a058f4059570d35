"""Batches as a running plan would report them, worked out from rates and selectivities instead of run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from anabranch.adapt.controller import Controller
from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.history import Observation
from anabranch.adapt.records import Decision
from anabranch.adapt.rules import ChangeRules, Criteria, Pricing
from anabranch.adapt.searches import Searches
from anabranch.adapt.settings import Settings
from anabranch.cost.resources import ResourceModel
from anabranch.cql import compile_query
from anabranch.migrate.strategies.strategy import Price
from anabranch.optimize.problem import resource_model
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh
from anabranch.plan.physical import PhysicalPlan, nodes, probe_order, shape
from anabranch.plan.query import Query
from anabranch.stats.step import ProbeStatistics, StateStatistics, StepStatistics
from anabranch.stats.view import FixedStatistics
from tests.support.scripted import read_script

SECONDS = 1.0
"""Event time of a simulated batch."""


def chain(names: str = "abc", window: int = 10) -> Query:
    """a - b - c …, each pair with a key of its own."""
    streams = read_script("\n".join(f"stream {name} (l bigint, r bigint)" for name in names)).catalog
    tables = ", ".join(f"{name} [RANGE {window} SECONDS]" for name in names)
    keys = " AND ".join(f"{left}.r = {right}.l" for left, right in pairwise(names))
    return compile_query(f"SELECT {names[0]}.l AS l FROM {tables} WHERE {keys}", streams)


QUERY = chain()


def truth(ab: float, bc: float, rate: float = 1000.0) -> FixedStatistics:
    """Three streams of one rate, and how selective their two joins are."""
    return FixedStatistics(rates=dict.fromkeys("abc", rate), selectivities={"a b": ab, "b c": bc})


def observed(
    batch: int,
    plan: PhysicalPlan,
    statistics: FixedStatistics,
    *,
    query: Query = QUERY,
    waiting: int | None = None,
    behind: float | None = None,
) -> Observation:
    """The batch of a plan in its steady state."""
    facts = BatchFacts(batch, SECONDS, waiting, behind)
    return Observation(facts, plan, lambda: steady_step(query, plan, statistics))


def steady_step(query: Query, plan: PhysicalPlan, statistics: FixedStatistics) -> StepStatistics:
    model = resource_model(query.graph, statistics, SECONDS)
    rates = {name: round(statistics.rates[name] * SECONDS) for name in query.graph.names}
    states = {name: _state(model, name, (name,)) for name in query.graph.names}
    probes = []
    for node in nodes(plan):
        if node is not plan:
            states[node.shape] = _state(model, node.shape, node.relations)
        for start, child in enumerate(node.inputs):
            bound = model.estimates.mask(child.relations)
            births = model.turnover(bound) * SECONDS
            for position in probe_order(node, start, query.graph):
                block = model.estimates.mask(node.inputs[position].relations)
                rows = births * model.rows(bound)
                matches = round(rows * model.rows(block) * model.key_selectivity(bound, block))
                target = shape(node.inputs[position])
                probes.append(
                    ProbeStatistics(node.shape, shape(child), target, round(rows), 0, matches, matches, matches)
                )
                bound |= block
    results = round(model.births(model.estimates.everything) * SECONDS)
    return StepStatistics(rates, results, tuple(probes), tuple(states.values()))


def _state(model: ResourceModel, name: str, relations: tuple[str, ...]) -> StateStatistics:
    mask = model.estimates.mask(relations)
    rows = round(model.held(mask))
    return StateStatistics(name, rows, 100 * rows, round(model.births(mask) * SECONDS))


def pricing(cpu: float = 0.01, *strategies: str) -> Pricing:
    """Every change costs the same, whichever way it goes."""

    def price(graph: JoinGraph, old: PhysicalPlan, new: PhysicalPlan, model: ResourceModel) -> tuple[Price, ...]:
        names = strategies or ("moving-state", "parallel-track")
        return tuple(Price(name, cpu, 0.0, 1.0) for name in names)

    return price


def controller(query: Query, settings: Settings, criteria: Criteria, searches: Searches | None = None) -> Controller:
    """The controller of a query with one slot that looks for no routes."""
    return Controller(query, ChangeRules(settings, criteria), (0,), searches)


def observe(adapting: Controller, seen: Observation) -> Decision | None:
    """The decision on a batch, if there is one."""
    return adapting.after(seen)


def run(
    adapting: Controller, plan: PhysicalPlan, batches: Iterable[FixedStatistics], first: int = 0
) -> tuple[PhysicalPlan, list[Decision]]:
    """The plan in the end and the decisions, when every change takes one batch and is obeyed."""
    decisions = []
    is_migrating = False
    for batch, statistics in enumerate(batches, first):
        seen = replace(observed(batch, plan, statistics), is_migrating=is_migrating)
        is_migrating = False
        decision = observe(adapting, seen)
        if decision is not None:
            decisions.append(decision)
            if decision.action == "migrate":
                assert not isinstance(decision.proposed, Mesh)
                plan, is_migrating = decision.proposed, True
    return plan, decisions
