"""Measures the unit costs of the engine on this machine.

Several plans of several small queries run in their steady state. The engine's meter counts the operations, and
non-negative least squares fits the CPU seconds to the counts. CPU time is used instead of wall-clock time, so other
load on the machine has little effect. `lab.cost_model` reports the prediction error.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from time import process_time

import numpy as np
import pyarrow as pa

from anabranch import cql
from anabranch.calibrate.fitting import nonnegative_fit
from anabranch.cost.estimates import from_statistics
from anabranch.cost.resources import ResourceModel
from anabranch.cost.units import ENGINE, ENGINE_SIZES, UnitCosts
from anabranch.engine.batch import RelationBatch
from anabranch.engine.compile import compile_plan
from anabranch.engine.engine import Engine
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.optimize.ranking import ranked_orderer
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import JoinNode, PhysicalPlan, nodes, shape
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.stats.step import StepStatistics
from anabranch.stats.view import FixedStatistics

MOST_BIRTHS = 4e5
"""The maximum number of combinations per second in any part of a workload."""
HOLD = 0.3
"""The weight of the prior (the default share of a unit cost), relative to one run of a plan."""
BATCH = 1.0
"""Seconds of event time in a batch."""
FEATURES = ("insert", "link", "insert_joined", "probe", "compare", "match", "match_relation", "check", "emit", "call")


@dataclass(frozen=True)
class Workload:
    """Streams joined by equalities, with given rates and selectivities and one window for all."""

    rates: Mapping[str, float]
    selectivities: Mapping[tuple[str, str], float]
    window: float
    theta: bool = False
    """True if the join of the first two streams also compares a random column."""

    def query(self) -> Query:
        catalog = Catalog()
        for name in self.rates:
            catalog.register(stream(name, (*("".join(p) for p in self.selectivities if name in p), "weight")))
        windows = ", ".join(f"{name} [RANGE {self.window} SECONDS]" for name in self.rates)
        conditions = [f"{a}.{a}{b} = {b}.{a}{b}" for a, b in self.selectivities]
        first, second, *_ = self.rates
        if self.theta:
            conditions.append(f"{first}.weight < {second}.weight")
        return cql.compile_query(
            f"SELECT {first}.weight AS answer FROM {windows} WHERE {' AND '.join(conditions)}", catalog
        )

    def statistics(self) -> FixedStatistics:
        first, second, *_ = self.rates
        selectivities = {f"{a} {b}": value for (a, b), value in self.selectivities.items()}
        if self.theta:
            selectivities[f"{first}.weight < {second}.weight"] = 0.5
        return FixedStatistics(rates=self.rates, selectivities=selectivities)

    def batches(self, rng: np.random.Generator, count: int, query: Query) -> Iterator[dict[str, RelationBatch]]:
        for number in range(count):
            rows = {}
            for relation in query.graph.relations:
                size = int(rng.poisson(self.rates[relation.name] * BATCH))
                times = np.sort(rng.integers(0, int(BATCH * 1e6), size)) + int(number * BATCH * 1e6)
                codes = {
                    key.name: rng.integers(0, round(1 / self._selectivity(key.relations)), size)
                    for key in query.graph.keys_of([relation.name])
                }
                payload = {
                    field.name: pa.array(times).cast(pa.timestamp("us")).cast(TIMESTAMP)
                    if field.type == TIMESTAMP
                    else pa.array(rng.integers(0, 1_000_000, size))
                    for field in relation.schema
                }
                rows[relation.name] = RelationBatch(times, codes, pa.RecordBatch.from_pydict(payload))
            yield rows

    def _selectivity(self, relations: frozenset[str]) -> float:
        return next(value for pair, value in self.selectivities.items() if frozenset(pair) == relations)


@dataclass(frozen=True)
class Measured:
    """CPU and memory of a plan per second of event time, and the counts of its operations."""

    cpu: float
    memory: float
    counts: Mapping[str, float]


def measure(load: Workload, plan: PhysicalPlan, *, seed: int, seconds: int) -> Measured:
    """Measures a plan in its steady state: fills the windows first, then counts for some seconds."""
    query = load.query()
    engine = Engine.alone(query, plan)
    filling = int(load.window / BATCH) + 2
    floors = dict.fromkeys(query.graph.names, 0)
    spent, counts = [], dict.fromkeys(FEATURES, 0.0)
    for number, rows in enumerate(load.batches(np.random.default_rng(seed), filling + seconds, query)):
        started = process_time()
        for _ in engine.step(rows, floors):
            pass
        took = process_time() - started
        step = engine.statistics().total
        floors = {name: int(batch.times[-1]) if len(batch) else floors[name] for name, batch in rows.items()}
        if number >= filling:
            spent.append(took)
            for feature, value in _counts(step, plan, query).items():
                counts[feature] += value
    return Measured(
        median(spent) / BATCH,  # robust against other load on the machine
        float(step.state_bytes),
        {feature: value / (seconds * BATCH) for feature, value in counts.items()},
    )


def stream(name: str, columns: tuple[str, ...]) -> StreamDeclaration:
    """Returns a stream with an event time `ts` and non-nullable bigint columns."""
    fields = (Field("ts", TIMESTAMP, False), *(Field(column, pa.int64(), False) for column in columns))
    return StreamDeclaration(name, Schema(fields), "ts")


def _counts(step: StepStatistics, plan: PhysicalPlan, query: Query) -> dict[str, float]:
    counts = dict.fromkeys(FEATURES, 0.0)
    counts["insert"] = float(sum(state.inserted for state in step.states))
    counts["insert_joined"] = float(sum(state.inserted for state in step.states if state.state.startswith("(")))
    indexes = compile_plan(plan, query.graph).indexes
    counts["link"] = float(sum(state.inserted * len(indexes[state.state]) for state in step.states))
    counts["emit"] = float(step.rows_out)
    counts["call"] = float(sum(state.inserted > 0 for state in step.states))
    joins = {node.shape: node for node in nodes(plan)}
    for probe in step.probes:
        bound, new = _sides(joins[probe.join], probe.origin, probe.target)
        counts["probe"] += probe.probes
        counts["compare"] += probe.visited
        counts["match"] += probe.matches
        counts["match_relation"] += probe.matches * len(bound | new)
        counts["check"] += probe.matches * len(query.graph.thetas_between(bound, new))
        counts["call"] += 1
    return counts


def _sides(node: JoinNode, origin: str, target: str) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the relations bound before a lookup, and those that it adds."""
    names = [shape(child) for child in node.inputs]
    start, end = names.index(origin), names.index(target)
    order = node.orders[start] or (1 - start,)
    before = (start, *order[: order.index(end)])
    bound = frozenset(name for position in before for name in node.inputs[position].relations)
    return bound, frozenset(node.inputs[end].relations)


def calibrate(seed: int = 1, *, seconds: int = 5) -> UnitCosts:
    """Measures the unit costs of this machine."""
    rng = random.Random(seed)
    measured = [
        measure(load, plan, seed=seed + number, seconds=seconds)
        for number, load in enumerate(workloads(rng, 8))
        for plan in plans_of(load, rng, 3)
    ]
    # All runs have the same weight, however long they took: the fit is of the ratio of predicted to measured. Counts
    # are correlated, so a light prior also pulls each cost towards its default share.
    usual = np.array([getattr(ENGINE, feature) for feature in FEATURES])
    counts = np.array([[run.counts[feature] / run.cpu for feature in FEATURES] for run in measured]) * usual
    speed = 1 / np.median(counts.sum(axis=1))
    held = np.diag(np.full(len(FEATURES), HOLD))
    fitted = nonnegative_fit(
        np.vstack([counts, held]), np.concatenate([np.ones(len(measured)), np.full(len(FEATURES), HOLD * speed)])
    )
    costs = dict(zip(FEATURES, (fitted * usual).tolist(), strict=True))
    return UnitCosts(**costs, delete=0.0, group=ENGINE.group, **ENGINE_SIZES)


def model_of(load: Workload, units: UnitCosts) -> ResourceModel:
    return ResourceModel(from_statistics(load.query().graph, load.statistics()), units, batch=BATCH)


def workloads(rng: random.Random, count: int) -> Iterator[Workload]:
    """Yields chains and stars of three or four streams, from few results to as many as a quick run can process."""
    made = 0
    while made < count:
        names = "abcd"[: rng.choice([3, 4])]
        pace = 2.7 + 1.8 * made / count
        rates = {name: 10 ** (pace + rng.uniform(-0.5, 0.3)) for name in names}
        window = float(rng.choice([1, 2, 3, 4]))
        star = rng.random() < 0.4
        edges = [(names[0] if star else names[i - 1], names[i]) for i in range(1, len(names))]
        # The mean number of matches of a row in each state determines the number of results.
        selectivities = {
            (one, other): min(0.5, 10 ** rng.uniform(-0.5, 0.9) / (max(rates[one], rates[other]) * window))
            for one, other in edges
        }
        load = Workload(rates, selectivities, window, theta=made % 4 == 3)
        model = model_of(load, UnitCosts(0.0, 0.0, 0.0, 0.0, 0.0))
        if max(model.births(mask) for mask in range(1, 1 << len(names)) if _is_joined(mask, model)) < MOST_BIRTHS:
            made += 1
            yield load


def _is_joined(mask: int, model: ResourceModel) -> bool:
    """Returns True when the relations of a set are connected."""
    bound = mask & -mask
    for _ in range(mask.bit_count()):
        for position in range(mask.bit_length()):
            if mask >> position & 1 and model.connected(bound, 1 << position):
                bound |= 1 << position
    return bound == mask


def plans_of(load: Workload, rng: random.Random, count: int) -> list[PhysicalPlan]:
    """Returns some plans of a query without cross products, with probe orders chosen; always includes the mjoin."""
    if len(load.rates) == 3:
        texts = ["(a b c)", "((a b) c)", "(a (b c))", "((a c) b)"]
    else:
        texts = [
            "(a b c d)",
            "((a b) c d)",
            "((a b) (c d))",
            "(((a b) c) d)",
            "(a (b c) d)",
            "((a b c) d)",
            "((a d) b c)",
        ]
    graph = load.query().graph
    mjoin, *others = [text for text in texts if _is_connected(parse(text), graph)]
    orderer = ranked_orderer(model_of(load, UnitCosts(1e-7, 0.0, 1e-7, 1e-8, 1e-7)))
    chosen = [mjoin, *rng.sample(others, min(count - 1, len(others)))]
    return [orderer.complete(parse(text)) for text in chosen]


def _is_connected(plan: PhysicalPlan, graph: JoinGraph) -> bool:
    """Returns True when no join of the plan is a cross product."""
    for node in nodes(plan):
        bound, *others = [set(child.relations) for child in node.inputs]
        while reached := [side for side in others if graph.are_connected(bound, side)]:
            bound |= reached[0]
            others.remove(reached[0])
        if others:
            return False
    return True
