"""Proposes meshes, and changes from a mesh back to a plan without routes.

Slots profile their operators on their youngest rows after a step, and `mesh.profiled` searches the best mesh for the
profiles. The running plan is priced by its counts (`cost.counted`). The costs of routes are measured on the sample, and
its lookups and matches convert them to units of the cost model. The gain of a mesh is that on held-out rows, less its
standard error. The sample also provides selectivities of the joins, so while a mesh runs, the optimizer can propose a
plan without routes.

A mesh is compared with its expected cost once, after its cool-down: if its rows cost more than under the plan that it
replaced, the query goes back to that plan. Limit: a plan that merges inputs is not replaced by a mesh, because the work
of merging is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from anabranch.adapt.advisors.advisor import Suggestion, Wanted
from anabranch.adapt.advisors.ways import way
from anabranch.adapt.facts import RATIO, REMEMBERED
from anabranch.adapt.gate import judge
from anabranch.adapt.history import Flow, History, Promise
from anabranch.adapt.policy import Reason
from anabranch.adapt.records import Decision
from anabranch.adapt.rules import IN_LINE, Criteria
from anabranch.adapt.settings import Settings
from anabranch.cost.counted import counted_cpu
from anabranch.cost.resources import ResourceModel, Resources, with_default_orders
from anabranch.cost.units import UnitCosts
from anabranch.mesh.profiled import learn_mesh
from anabranch.migrate.strategies.strategy import Price
from anabranch.optimize.choice import answer_to
from anabranch.optimize.jtree_finder import Space
from anabranch.optimize.proposals import Proposal
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh, Plan, one_route
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, kept, mjoin, pre_groups
from anabranch.stats.mesh.learnt import LearntMesh

AT_ONCE = Price("none", 0.0, 0.0, 0.0)
"""The price of changing to a mesh or starting with one: it keeps no intermediate state."""

SEARCH_CPU = 0.02
"""The assumed cost of a search in seconds of one core per relation; the gain of a mesh must repay it."""


@dataclass(frozen=True)
class Broken:
    """Takes the place of a search result when a mesh costs more than expected."""

    promise: Promise
    each: float
    """The counted cost of a row."""

    @property
    def loses(self) -> bool:
        """True if the mesh costs more than the plan that it replaced."""
        return self.promise.left is not None and self.each > self.promise.before


@dataclass(frozen=True)
class RouteAdvisor:
    """Proposes meshes.

    If any plan is allowed (`is_free`), it also proposes plans without routes, and searches only if that can pay.
    """

    settings: Settings
    criteria: Criteria
    first_search: int = REMEMBERED
    """The batches before the first search of the schedule."""
    is_free: bool = True
    name: ClassVar[str] = "routes"

    # --- when ---------------------------------------------------------------------------------------------------------

    def occasion(self, history: History) -> Reason | None:
        """Returns a reason of its own: the schedule, drift of the routes, or a mesh that costs more than expected."""
        if isinstance(history.plan, Mesh):
            if broken_promise(history) is not None:
                return Reason("routes", "the mesh costs more than expected")
            drift = history.routes.drift(history.plan, history.patience)
            if drift is not None and not (self.is_free and history.trend.is_mixed):
                return Reason("routes", drift)
        is_scheduled = is_due(history.batch + 1, self.first_search)
        return Reason("schedule", f"batch {history.batch} has passed") if is_scheduled else None

    def wants(self, history: History, reason: Reason) -> Wanted:
        """Requests profiles if some mesh could repay its search; a search if a mesh is to be replaced without one."""
        if not (reason.is_change or reason.cause == "schedule"):
            return "nothing"
        flow, plan, broken = history.flow, history.plan, broken_promise(history)
        if broken is not None:
            return "search" if broken.loses else "profile"
        if not self.is_free or flow is None:
            return "profile"
        # While windows hold rows from before and after a change, a mesh may look better or worse than it will be.
        if isinstance(plan, Mesh) and history.trend.is_mixed:
            return "nothing"
        # The counts of a tree whose predicate checks are counted separately cannot be compared with those of a sample.
        if flow.step.checks and not isinstance(plan, Mesh) and any(kept(plan)):
            return "nothing"
        return "profile" if self._could_pay(history, flow) else "nothing"

    # --- what ---------------------------------------------------------------------------------------------------------

    def search(self, history: History) -> tuple[Callable[[], LearntMesh | Broken], bool]:
        broken = broken_promise(history)
        if broken is not None and broken.loses:
            return lambda: broken, False
        latest = history.recent[-1]
        assert latest.profiles is not None
        return partial(learn_mesh, history.query.graph, latest.profiles, latest.batch, latest.plan), True

    def propose(self, history: History, reason: Reason, found: LearntMesh | Broken) -> Suggestion:
        flow, plan = history.flow, history.plan
        assert flow is not None
        broken = found if isinstance(found, Broken) else broken_promise(history)
        correction = history.correction if broken is None else max(1.0, broken.each / broken.promise.each)
        now = replace(history, retry=None, promise=None, correction=correction)
        if isinstance(found, Broken):
            return Suggestion(self._left(history, flow, reason, found), now)
        decision = self._mesh(history, flow, reason, found)
        if self.is_free and isinstance(plan, Mesh):
            decision = self._tree(decision, found, flow, history)
        if decision.action == "migrate" and isinstance(decision.proposed, Mesh):
            left, before = None if isinstance(plan, Mesh) else plan, history.trend.mean
            each = before * decision.proposed_cost.cpu / decision.cost.cpu
            now = replace(now, promise=Promise(decision.proposed, each, left, before) if before else None)
        return Suggestion(replace(decision, mesh=found), now)

    # --- judging ------------------------------------------------------------------------------------------------------

    def _left(self, history: History, flow: Flow, reason: Reason, found: Broken) -> Decision:
        """Returns the decision to go back to the plan before the mesh, or to keep the mesh if that is impossible."""
        rows, promise = sum(flow.rates.values()), found.promise
        left = promise.left
        assert left is not None
        assert not isinstance(left, Mesh)
        ratio, promised = found.each / promise.before, promise.each / promise.before
        why = f"a row costs {ratio:.2f} times what it cost before the mesh; {promised:.2f} times was promised"
        kept = _keeping(history, flow, reason, found.each * rows, left, promise.before * rows, why)
        price = self._way_back(
            history.query.graph, left, kept.cost, self.criteria.model(history.query, history.statistics)
        )
        return replace(kept, action="keep" if price is None else "migrate", origin="promise", price=price)

    def _mesh(self, history: History, flow: Flow, reason: Reason, learnt: LearntMesh) -> Decision:
        """Decides whether the slots change to a mesh; a mesh of single routes is converted to the equivalent mjoin."""
        beside = _beside(flow, history.units)
        now, proposed = beside + learnt.running_load(flow.rates), beside + learnt.load(flow.rates)
        is_counted = learnt.profiled is not None and not flow.step.checks
        counted = running_cpu(history, self.criteria) if is_counted else None
        if counted is not None:
            now, proposed = counted, beside + _routing(learnt, flow, history.units) * history.correction
        best = as_mjoin(learnt.mesh) if self.is_free and not learnt.is_mesh else learnt.mesh
        decision = _keeping(history, flow, reason, now, best, proposed, "the running routes are the best ones known")
        return decision if str(history.plan) == str(best) else self._judged(decision, history, AT_ONCE)

    def _tree(self, decision: Decision, learnt: LearntMesh, flow: Flow, history: History) -> Decision:
        """Returns the decision to go back to a plan without routes if that is better than the given decision."""
        criteria, query, graph = self.criteria, history.query, history.query.graph
        if learnt.profiled is None or criteria.partitioning is not None:
            return decision
        pairs = _selectivities(learnt.profiled.fan_outs, flow)
        # Profiled matches have passed the predicates of their pair, so these must not count twice.
        passed = {str(theta): 1.0 for theta in graph.thetas if " ".join(sorted(theta.relations)) in pairs}
        measured = history.statistics
        known = replace(measured, selectivities={**measured.selectivities, **pairs, **passed})
        answer = answer_to(criteria.problem(query, known))
        if not isinstance(answer, Proposal) or any(pre_groups(answer.plan)):
            return decision
        model = criteria.model(query, known)
        cost = history.experience.price(answer.plan, model, answer.plan)
        joins = max(0.0, cost.cpu - model.base.cpu)
        cost = replace(cost, cpu=model.base.cpu + joins * _unseen(learnt, flow, model, graph))
        price = self._way_back(graph, answer.plan, decision.cost, model)
        if price is None or (decision.action == "migrate" and cost.cpu >= decision.proposed_cost.cpu):
            return decision
        tree = replace(decision, proposed=answer.plan, proposed_cost=cost, origin="optimizer", statistics=known)
        judged = self._judged(replace(tree, action="keep"), history, price)
        return judged if judged.action == "migrate" else decision

    def _way_back(self, graph: JoinGraph, plan: PhysicalPlan, cost: Resources, model: ResourceModel) -> Price | None:
        return way(self.criteria, graph, with_default_orders(mjoin(graph.names), graph), plan, model, cost)

    def _judged(self, decision: Decision, history: History, price: Price) -> Decision:
        gate, criteria = history.in_triggers(self.settings.gate, self.criteria.budget.slots), self.criteria
        verdict = judge(gate, decision.cost, decision.proposed_cost, price, criteria.objective, criteria.budget)
        return replace(decision, action=verdict.action, price=price, reason=verdict.reason)

    # --- whether a search can pay -------------------------------------------------------------------------------------

    def _could_pay(self, history: History, flow: Flow) -> bool:
        """Returns True if some mesh could repay its search within the time that the query has run so far.

        Assumes that every row finds no match at its first lookup. The price of a search grows with each consecutive
        search that led to no change.
        """
        plan, running = history.plan, running_cpu(history, self.criteria)
        if running is None:
            return not isinstance(plan, Mesh) and not any(pre_groups(plan))
        units, relations = history.units, len(history.query.graph.names)
        calls = units.call * relations * relations / flow.batch
        least = _beside(flow, units) + sum(flow.rates.values()) * (units.link + units.probe) + calls
        gate = history.in_triggers(self.settings.gate, self.criteria.budget.slots)
        gate = replace(gate, horizon=min(gate.horizon, history.passed))
        now = Resources(running, flow.state_bytes, flow.results)
        price = replace(AT_ONCE, cpu=SEARCH_CPU * relations * (1 + history.fruitless.get(self.name, 0)))
        return judge(gate, now, replace(now, cpu=least), price, self.criteria.objective, self.criteria.budget).passed


def is_due(batches: int, first: int) -> bool:
    """Returns True if a search is scheduled after this number of batches: the first, and at doubling distances.

    >>> [batches for batches in range(99) if is_due(batches, first=8)]
    [8, 16, 32, 64]
    """
    times = batches // first
    return batches == times * first and times.bit_count() == 1


def broken_promise(history: History) -> Broken | None:
    """Returns the cost of a row in the first batch of the running mesh over full windows if it was promised less.

    A later batch does not count: if its rows cost more, the streams have changed, and the mesh is not to blame.
    """
    promise, each = history.promise, history.trend.first
    if promise is None or str(history.plan) != str(promise.mesh):
        return None
    return Broken(promise, each) if each > RATIO * promise.each else None


def running_cpu(history: History, criteria: Criteria) -> float | None:
    """Returns the cores that the running plan uses, by its counts; None if the counts do not determine them."""
    flow, plan, query = history.flow, history.plan, history.query
    if flow is None or not flow.step.probes or (not isinstance(plan, Mesh) and any(pre_groups(plan))):
        return None
    model = criteria.model(query, history.statistics)
    ordered = plan if isinstance(plan, Mesh) else with_default_orders(plan, query.graph)
    return counted_cpu(ordered, flow.step, flow.batches, flow.seconds, model, query.graph)


def as_mjoin(mesh: Mesh) -> JoinNode:
    """Returns the mjoin in which rows take the first route of their relation."""
    names = mesh.relations
    orders = [tuple(names.index(other) for other in mesh.of(name).routes[0].operators) for name in names]
    return JoinNode(tuple(Leaf(name) for name in names), tuple(orders) if len(names) > 2 else ())


def _keeping(
    history: History, flow: Flow, reason: Reason, current: float, proposed: Plan, after: float, why: str
) -> Decision:
    """Returns the decision to keep the running plan, with the cores that it and the proposed plan need."""
    cost = Resources(current, flow.state_bytes, flow.results)
    return Decision(
        batch=history.batch,
        action="keep",
        policy="mesh",
        trigger=reason.text,
        plan=history.plan,
        cost=cost,
        proposed=proposed,
        proposed_cost=replace(cost, cpu=after),
        origin="search",
        price=None,
        reason=why,
        statistics=history.statistics,
    )


def _beside(flow: Flow, units: UnitCosts) -> float:
    """Returns the cores for the work of every plan: base states and results."""
    return sum(flow.rates.values()) * (units.insert + units.delete) + flow.results * units.emit


def _routing(learnt: LearntMesh, flow: Flow, units: UnitCosts) -> float:
    """Returns the cores for the routes of a mesh, in units of the cost model."""
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
    """Returns the factor by which the model underestimates the joins of plans without routes, at least 1.

    The model multiplies average selectivities. If different classes of rows match in different relations, the product
    is too small. The factor is measured on the mjoin: the cost of the sampled rows on the best single routes over the
    model's price. It is applied to every plan without routes, because the model makes the same error for all of them.
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
    """Returns the selectivity of each pair, from the matches of the rows of each side in the state of the other."""
    found: dict[str, list[float]] = {}
    for pair, matches in fan_outs.items():
        origin, target = pair.split(" ")
        if (held := flow.held(target)) > 0:
            found.setdefault(" ".join(sorted((origin, target))), []).append(max(matches, 0.5 / held) / held)
    return {pair: min(1.0, sum(values) / len(values)) for pair, values in found.items()}
