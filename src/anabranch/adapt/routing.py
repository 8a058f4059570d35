"""Decides whether a mesh that was learnt while a query runs pays, by the gate that every plan passes, and finds back.

The plan that runs is charged what was counted of it (`cost.counted`), whatever it is: an mjoin in any order, a tree, a
mixture or a mesh. The costs of routes were measured row by row on a sample; the lookups and matches of the sample turn
measured seconds into the seconds of the cost model, so that both sides are in the same units. The cost of base states
and results, which every plan has, is computed from the measured rates. A mesh counts by its saving on rows that it was
not learnt from, less the standard error. A change of mesh moves no state, so it costs nothing by itself.

*The way back.* The sample of a look also gives the selectivities of the joins, so where a mesh runs, the optimizer is
asked for the best tree or mixture, and that goes through the gate too.

Limit: a plan that merges inputs is not replaced by a mesh: merging has no counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from anabranch.adapt.decision import Decision
from anabranch.adapt.experience import Experience
from anabranch.adapt.gate import Verdict, judge
from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.rules import Criteria, Staging
from anabranch.adapt.settings import Settings
from anabranch.adapt.ways import way
from anabranch.adapt.weighing import IN_LINE
from anabranch.cost.counted import counted_cpu
from anabranch.cost.resources import ResourceModel, Resources, with_default_orders
from anabranch.cost.units import UnitCosts, unit_costs
from anabranch.migrate.strategies.strategy import Price
from anabranch.optimize.choice import choose
from anabranch.optimize.jtree_finder import Space
from anabranch.optimize.problem import resource_model
from anabranch.optimize.proposals import Proposal
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh, Plan, one_route
from anabranch.plan.physical import JoinNode, Leaf, mjoin, pre_groups
from anabranch.plan.query import Query
from anabranch.stats.mesh.learnt import LearntMesh
from anabranch.stats.step import StepStatistics, merge
from anabranch.stats.view import Layered

AT_ONCE = Price("none", 0.0, 0.0, 0.0)
"""The price of changing to a mesh, or of beginning with one."""


@dataclass(frozen=True)
class Flow:
    """The rates of some slots, per second of event time, and the size of their state."""

    rates: Mapping[str, float]
    """Rows, by relation."""
    results: float
    state_bytes: float
    batch: float
    """Seconds between batches."""
    step: StepStatistics = field(default_factory=StepStatistics, compare=False)
    """What the slots counted in the batches."""
    batches: int = field(default=1, compare=False)

    @property
    def seconds(self) -> float:
        return self.batch * self.batches

    def held(self, relation: str) -> float:
        """Rows of a relation's state, on average over the batches."""
        return sum(state.rows for state in self.step.states if state.state == relation) / self.batches


def together(flows: Iterable[Flow]) -> Flow:
    """The flow of several slots."""
    several = list(flows)
    if len(several) == 1:
        return several[0]
    rates: dict[str, float] = {}
    for flow in several:
        for name, rate in flow.rates.items():
            rates[name] = rates.get(name, 0.0) + rate
    return Flow(
        rates,
        sum(flow.results for flow in several),
        sum(flow.state_bytes for flow in several),
        several[0].batch,
        merge(flow.step for flow in several),
        several[0].batches,
    )


def running_cpu(plan: Plan, flow: Flow, query: Query, criteria: Criteria) -> float | None:
    """Cores that the running plan takes by its counts; None where these say too little."""
    if not flow.step.probes or (not isinstance(plan, Mesh) and any(pre_groups(plan))):
        return None
    model = _model(query, flow, criteria)
    ordered = plan if isinstance(plan, Mesh) else with_default_orders(plan, query.graph)
    return counted_cpu(ordered, flow.step, flow.batches, flow.seconds, model, query.graph)


def price_of_search(staging: Staging, query: Query, fruitless: int) -> Price:
    """The price of a search for routes; each search that led to nothing makes the next one as much dearer."""
    return replace(AT_ONCE, cpu=staging.search * len(query.graph.names) * (1 + fruitless))


def could_pay(
    plan: Plan, flow: Flow, query: Query, settings: Settings, criteria: Criteria, price: Price = AT_ONCE
) -> bool:
    """Whether any mesh could pass the gate: even if every row met nothing at its first lookup."""
    running = running_cpu(plan, flow, query, criteria)
    if running is None:
        return not isinstance(plan, Mesh) and not any(pre_groups(plan))
    units, relations = unit_costs(criteria.given)[0], len(query.graph.names)
    calls = units.call * relations * relations / flow.batch
    least = _beside(flow, units) + sum(flow.rates.values()) * (units.link + units.probe) + calls
    now = Resources(running, flow.state_bytes, flow.results)
    budget = replace(criteria.budget, slots=criteria.budget.slots)
    return judge(settings.gate, now, replace(now, cpu=least), price, criteria.objective, budget).passed


def is_worth_searching(
    ideal: LearntMesh,
    plan: Plan,
    flow: Flow,
    query: Query,
    settings: Settings,
    criteria: Criteria,
    price: Price,
    slots: int = 1,
    factor: float = 1.0,
) -> bool:
    """Whether a search can end in a change: whether a mesh that takes the least that any could take passes the gate."""
    running = running_cpu(plan, flow, query, criteria)
    if running is None or ideal.profiled is None or flow.step.checks:
        return True
    units = unit_costs(criteria.given)[0]
    least = _beside(flow, units) + _routing(ideal, flow, units) * factor
    now = Resources(running, flow.state_bytes, flow.results)
    budget = replace(criteria.budget, slots=slots)
    return judge(settings.gate, now, replace(now, cpu=least), price, criteria.objective, budget).passed


def decide_mesh(
    batch: int,
    trigger: str,
    plan: Plan,
    learnt: LearntMesh,
    flow: Flow,
    settings: Settings,
    criteria: Criteria,
    query: Query | None = None,
    slots: int = 1,
    *,
    is_free: bool = False,
    factor: float = 1.0,
) -> Decision:
    """Decides whether some slots change to the mesh that was learnt from their rows.

    Where the plan is free, a mesh of one route for each relation is the mjoin that it amounts to. `factor` is how many
    times what was promised of it the last mesh took: samples do not show every correlation.
    """
    units, _ = unit_costs(criteria.given)
    beside = _beside(flow, units)
    now, proposed = beside + learnt.running_load(flow.rates), beside + learnt.load(flow.rates)
    is_counted = query is not None and learnt.profiled is not None and not flow.step.checks
    counted = running_cpu(plan, flow, query, criteria) if is_counted and query is not None else None
    if counted is not None:
        now, proposed = counted, beside + _routing(learnt, flow, units) * factor
    best = as_mjoin(learnt.mesh) if is_free and not learnt.is_mesh else learnt.mesh
    decision = Decision(
        batch=batch,
        action="keep",
        policy="mesh",
        trigger=trigger,
        plan=plan,
        cost=Resources(now, flow.state_bytes, flow.results),
        proposed=best,
        proposed_cost=Resources(proposed, flow.state_bytes, flow.results),
        origin="search",
        price=AT_ONCE,
        reason="the routes at work are the best that are known",
        statistics=Knowledge(rates=flow.rates, batch=flow.batch),
    )
    if str(plan) == str(best):
        return replace(decision, price=None)
    budget = replace(criteria.budget, slots=slots)
    verdict = judge(settings.gate, decision.cost, decision.proposed_cost, AT_ONCE, criteria.objective, budget)
    if verdict.passed and settings.freeze:
        verdict = Verdict(False, f"frozen; otherwise: {verdict.reason}")
    return replace(decision, action="migrate" if verdict.passed else "keep", reason=verdict.reason)


def decide_tree(
    decision: Decision,
    learnt: LearntMesh,
    flow: Flow,
    settings: Settings,
    criteria: Criteria,
    query: Query,
    experience: Experience,
) -> Decision:
    """Decides whether slots that run a mesh go back to a plan without routes: the better of both decisions.

    `decision` is the one about another mesh.
    """
    if learnt.profiled is None or not isinstance(decision.plan, Mesh) or criteria.partitioning is not None:
        return decision
    graph = query.graph
    pairs = _selectivities(learnt.profiled.fan_outs, flow)
    # Profiled matches have passed the predicates of their pair, which must not count again.
    passed = {str(theta): 1.0 for theta in graph.thetas if " ".join(sorted(theta.relations)) in pairs}
    known = _known(query, flow, pairs | passed)
    view = Layered((known.view, criteria.given))
    answer = choose(
        graph,
        view,
        criteria.budget,
        criteria.objective,
        criteria.hints,
        batch=flow.batch,
        grouping=query.merging,
        around=criteria.around(query, view),
    ).answer
    if not isinstance(answer, Proposal) or any(pre_groups(answer.plan)):
        return decision
    model = resource_model(graph, view, flow.batch, query.merging)
    cost = experience.price(answer.plan, model, answer.plan)
    joins = max(0.0, cost.cpu - model.base.cpu)
    cost = replace(cost, cpu=model.base.cpu + joins * _unseen(learnt, flow, model, graph))
    mjoined = with_default_orders(mjoin(graph.names), graph)
    price = way(graph, mjoined, answer.plan, model, criteria.pricing, "auto", decision.cost, criteria.budget)
    if price is None:
        return decision
    verdict = judge(settings.gate, decision.cost, cost, price, criteria.objective, criteria.budget)
    beats = decision.action == "keep" or cost.cpu < decision.proposed_cost.cpu
    if not verdict.passed or not beats:
        return decision
    frozen = f"frozen; otherwise: {verdict.reason}" if settings.freeze else ""
    return replace(
        decision,
        action="keep" if frozen else "migrate",
        proposed=answer.plan,
        proposed_cost=cost,
        origin="optimizer",
        price=price,
        reason=frozen or verdict.reason,
        statistics=known,
    )


def as_mjoin(mesh: Mesh) -> JoinNode:
    """The mjoin in which rows take the first route of their relation."""
    names = mesh.relations
    orders = [tuple(names.index(other) for other in mesh.of(name).routes[0].operators) for name in names]
    return JoinNode(tuple(Leaf(name) for name in names), tuple(orders) if len(names) > 2 else ())


def _beside(flow: Flow, units: UnitCosts) -> float:
    """Cores for what every plan does: base states and results."""
    return sum(flow.rates.values()) * (units.insert + units.delete) + flow.results * units.emit


def _routing(learnt: LearntMesh, flow: Flow, units: UnitCosts) -> float:
    """Cores for the routes of a mesh, in the units of the cost model."""
    profiled, relations = learnt.profiled, len(learnt.mesh.ways)
    assert profiled is not None
    match = units.compare + units.match + units.match_relation * (relations + 2) / 2
    modelled = profiled.lookups * units.probe + profiled.matches * match
    scale = modelled / profiled.seconds if profiled.seconds > 0 else 1.0
    rows = sum(
        flow.rates.get(name, 0.0) * max(0.0, each.certain_seconds - each.overhead)
        for name, each in learnt.relations.items()
    )
    calls = sum(len(route.operators) for way in learnt.mesh.ways for route in way.routes) + relations
    return rows * scale + sum(flow.rates.values()) * units.link + calls * units.call / flow.batch


def _unseen(learnt: LearntMesh, flow: Flow, model: ResourceModel, graph: JoinGraph) -> float:
    """How many times the model's price plans without routes take, by what sampled rows paid on the best single routes.

    Where rows of one class meet little here and those of another little there, the model multiplies averages that hide
    both. It does so for every plan without routes, so what it does not see of the mjoin is charged to all of them.
    """
    if len(graph.names) > IN_LINE:
        return 1.0
    orderer = Space(model).orderer
    modelled = orderer.price(orderer.mjoin()).cpu - model.base.cpu
    single = {
        name: replace(each, seconds=each.single_seconds, certain_gain=0.0, overhead=each.overhead / len(each.shares))
        for name, each in learnt.relations.items()
    }
    paid = _routing(replace(learnt, mesh=one_route(graph), relations=single), flow, model.units)
    return max(1.0, paid / modelled) if modelled > 0 else 1.0


def _selectivities(fan_outs: Mapping[str, float], flow: Flow) -> dict[str, float]:
    """The selectivity of each pair, from the matches of rows of either side in the state of the other."""
    found: dict[str, list[float]] = {}
    for pair, matches in fan_outs.items():
        origin, target = pair.split(" ")
        if (held := flow.held(target)) > 0:
            found.setdefault(" ".join(sorted((origin, target))), []).append(max(matches, 0.5 / held) / held)
    return {pair: min(1.0, sum(values) / len(values)) for pair, values in found.items()}


def _known(query: Query, flow: Flow, selectivities: Mapping[str, float]) -> Knowledge:
    """What a flow tells: rates and rows of tables, both behind the filters."""
    relations = query.graph.relations
    tables = {each.name: flow.held(each.name) for each in relations if each.is_table}
    filters = {each.name: 1.0 for each in relations if each.filter is not None}
    return Knowledge(flow.rates, selectivities, filters, flow.batch, rows=tables)


def _model(query: Query, flow: Flow, criteria: Criteria) -> ResourceModel:
    view = Layered((_known(query, flow, {}).view, criteria.given))
    return resource_model(query.graph, view, flow.batch, query.merging, criteria.partitioning)
