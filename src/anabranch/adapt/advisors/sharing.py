"""Decides which joins the running queries of a set share.

Each adapting query has a controller that decides on its plan. A shared join concerns several queries, so it is decided
here, for the queries that adapt. At the end of every cool-down the joint choice (`optimize.joint`) is
repeated with measured statistics, and a change must pass the gate of each query whose plan changes. While a query
shares a join, its history is updated, but its controller decides nothing.

Limit: plans are searched only for queries with few relations; any other query keeps its running plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from anabranch.adapt.controller import Controller
from anabranch.adapt.gate import Gate, judge
from anabranch.adapt.records import SharingDecided
from anabranch.adapt.rules import IN_LINE, LISTED, ChangeRules, Criteria
from anabranch.cost.resources import with_default_orders
from anabranch.cost.shares import Partaker, of_common_join
from anabranch.errors import BundleError
from anabranch.migrate.strategies.strategy import Price
from anabranch.optimize.choice import choose
from anabranch.optimize.hints import Objective
from anabranch.optimize.joint import Contender, choose_together, plans_around, price_together
from anabranch.optimize.problem import resource_model
from anabranch.optimize.proposals import UNLIMITED, Budget
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.physical import PhysicalPlan, Shared, kept, mjoin, shared_parts, unshared
from anabranch.plan.query import titled
from anabranch.plan.query_set import QuerySet
from anabranch.plan.sharing import SHARING, common_join, shared_join
from anabranch.stats.report import QueryReport


@dataclass(frozen=True)
class SharingRules:
    """Whether running queries may share joins without a request of the user, and their joint limits."""

    is_automatic: bool = False
    budget: Budget = UNLIMITED


BY_HAND_ONLY = SharingRules()


@dataclass
class _Counted:
    """Counts since the last decision: batches, their event time, and rows tested by filters of single queries."""

    batches: int = 0
    seconds: float = 0.0
    tested: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)


class SharingLoop:
    """Makes the decisions about shared joins of one set of queries."""

    def __init__(self, queries: QuerySet, rules: Mapping[str, ChangeRules], sharing: SharingRules) -> None:
        self._set = queries
        self._rules = rules
        self._sharing = sharing
        self._adapting = {name for name, each in rules.items() if each.adapt is not None} & set(queries.names)
        self._since = _Counted()
        self._passing: dict[tuple[str, str], float] = {}

    @property
    def is_active(self) -> bool:
        return self._sharing.is_automatic and len(self._adapting) > 1

    def _gates(self, names: Iterable[str]) -> list[Gate]:
        """Returns the gates of some adapting queries; a joint change must pass each of them."""
        return [adapt.gate for name in sorted(names) if (adapt := self._rules[name].adapt) is not None]

    def note(self, seconds: float | None, reports: Iterable[Mapping[str, QueryReport]]) -> None:
        """Adds a batch of all slots in which no query changed its plan."""
        since = self._since
        since.batches += 1
        since.seconds += seconds or 0.0
        for slot in reports:
            for query, report in slot.items():
                for relation, (rows, passed) in report.statistics.tested.items():
                    before = since.tested.get((query, relation), (0, 0))
                    since.tested[query, relation] = before[0] + rows, before[1] + passed

    def restart(self) -> None:
        """Resets the counts, because plans are changing."""
        self._since = _Counted()

    def decide(
        self, batch: int, plans: Mapping[str, Plan], adapting: Mapping[str, Controller]
    ) -> SharingDecided | None:
        """Returns the decision if one is due after a batch; `adapting` has the controllers of the adapting queries."""
        since = self._since
        if not all(gate.cool_down.has_passed(since.batches, since.seconds) for gate in self._gates(self._adapting)):
            return None
        if any(not each.history.statistics.rates for each in adapting.values()):
            return None
        for (query, relation), (rows, passed) in self._since.tested.items():
            if rows:
                # Half a row instead of none: a filter that has passed no row may pass one later.
                self._passing[query, relation] = max(passed, 0.5) / rows
        self.restart()
        return self._decided(batch, plans, adapting)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _decided(
        self, batch: int, plans: Mapping[str, Plan], adapting: Mapping[str, Controller]
    ) -> SharingDecided | None:
        now = {name: mjoin_of(self._graph(name)) if isinstance(plan, Mesh) else plan for name, plan in plans.items()}
        partakers = {member.name: self._partaker(member.name, adapting) for member in self._set.members}
        core_model = partial(of_common_join, partakers=partakers)
        several = [self._contender(name, plans[name], partakers[name], adapting) for name in partakers]
        joint = choose_together(several, core_model, self._sharing.budget)
        try:
            cost, _ = price_together([*partakers.values()], now, core_model)
        except BundleError:  # the running plans share joins that were formed for other queries
            return None
        kept_apart = {part for plan in now.values() for part in shared_parts(plan)}
        wanted = {each.shared for each in joint.shared}
        if {_relations(part) for part in wanted} == {_relations(part) for part in kept_apart} and all(
            bool(shared_parts(now[name])) == bool(shared_parts(joint.plans[name])) for name in now
        ):
            return SharingDecided(
                batch, {}, cost, cost, tuple(map(str, kept_apart)), "what is shared is the best known"
            )
        changed = {
            name: joint.plans[name]
            for name in sorted(adapting)
            if shared_parts(now[name]) != shared_parts(joint.plans[name])
        }
        price = self._price(changed, now, partakers)
        objective = Objective.parse("cpu")
        verdicts = [
            judge(gate, cost, joint.cost, price, objective, self._sharing.budget)
            for gate in self._gates(changed or self._adapting)
        ]
        verdict = next((each for each in verdicts if not each.passed), verdicts[0])
        is_frozen = any(each.is_frozen for each in adapting.values())
        reason = f"frozen; otherwise: {verdict.reason}" if verdict.passed and is_frozen else verdict.reason
        return SharingDecided(
            batch,
            changed if verdict.passed and not is_frozen else {},
            cost,
            joint.cost,
            tuple(str(each.shared) for each in joint.shared),
            reason,
        )

    def _graph(self, query: str) -> JoinGraph:
        return next(member.query.graph for member in self._set.members if member.name == query)

    def _criteria(self, query: str) -> Criteria:
        return self._rules[query].criteria if query in self._rules else Criteria()

    def _partaker(self, query: str, adapting: Mapping[str, Controller]) -> Partaker:
        member = next(member for member in self._set.members if member.name == query)
        own = adapting.get(query)
        view = self._criteria(query).given if own is None else own.view
        batch = 1.0 if own is None else own.history.statistics.batch
        model = resource_model(member.query.graph, view, batch, member.query.grouping)
        passing = {relation: share for (name, relation), share in self._passing.items() if name == query}
        return Partaker(member, model, passing)

    def _contender(self, query: str, plan: Plan, partaker: Partaker, adapting: Mapping[str, Controller]) -> Contender:
        graph, criteria = partaker.member.query.graph, self._criteria(query)
        if isinstance(plan, Mesh):
            return Contender(partaker, (mjoin_of(graph),), may_share=False)
        if query not in adapting:
            return Contender(partaker, (plan,), may_share=False)
        own = [unshared(plan)]
        if len(graph.names) <= IN_LINE:
            answer = choose(
                graph,
                adapting[query].view,
                criteria.budget,
                criteria.objective,
                criteria.hints,
                batch=adapting[query].history.statistics.batch,
                grouping=partaker.member.query.grouping,
            ).answer
            found = [each.plan for each in answer.considered if each.standing != "refused"][:LISTED]
            # The first plan is the one without sharing: the best for a query that shares now, else its running plan.
            own = [*found, *own] if shared_parts(plan) else [*own, *found]
        ordered = (with_default_orders(each, graph) for each in own)
        is_free = criteria.hints.plan is None
        return Contender(partaker, tuple(dict.fromkeys(ordered)), may_share=is_free)

    def _price(
        self, changed: Mapping[str, PhysicalPlan], now: Mapping[str, PhysicalPlan], partakers: Mapping[str, Partaker]
    ) -> Price:
        """Returns the price of computing all states of shared joins, and those of the queries whose plan changes."""
        rows, size, seconds = 0.0, 0.0, 0.0
        after = {**now, **changed}
        new: dict[Shared, list[str]] = {}
        for name, plan in after.items():
            for part in shared_parts(plan):
                new.setdefault(part, []).append(name)
        for part, users in new.items():
            common = of_common_join(common_join(part, [partakers[name].member for name in users]), partakers)
            masks = [common.wide.estimates.mask(inner.relations) for inner in kept(part.join)]
            if any(len(after[name].relations) > len(part.relations) for name in users):
                masks.append(common.wide.estimates.everything)
            for mask in masks:
                rows += common.wide.held(mask)
                size += common.wide.joined_bytes(mask)
        for name, plan in changed.items():
            model = partakers[name].wide
            for inner in kept(plan):
                mask = model.estimates.mask(inner.relations)
                rows += model.held(mask)
                size += model.joined_bytes(mask)
        units = next(iter(partakers.values())).wide.units
        seconds = rows * (units.insert + units.insert_joined + units.link + units.probe + units.match)
        return Price(SHARING, seconds, size, seconds)


def mjoin_of(graph: JoinGraph) -> PhysicalPlan:
    """Returns the plan that represents a mesh when plans are priced: one join of all relations."""
    return with_default_orders(mjoin(graph.names), graph)


def plans_to_share(
    join: str, queries: Iterable[str] | None, plans: Mapping[str, Plan], graphs: Mapping[str, JoinGraph]
) -> dict[str, PhysicalPlan]:
    """Returns plans in which the named queries, or all that can, share a join.

    A plan that has a join of these relations keeps its shape. Otherwise the shared join is an input of one join with
    all other relations.
    """
    shared = shared_join(join)
    inside = set(shared.relations)
    if queries is None:
        named = [name for name, graph in graphs.items() if _can_share(plans[name], graph, inside)]
    else:
        named = list(queries)
    if not named:
        raise BundleError(
            f"no query joins {', '.join(shared.relations)}",
            hint="share a join of relations that some query has, without count windows",
        )
    chosen = {}
    for name in named:
        if missing := sorted(inside - set(graphs[name].names)):
            raise BundleError(
                f"{titled(name)} cannot share '{shared}': it has no relation '{missing[0]}'",
                hint=f"its relations are {', '.join(graphs[name].names)}",
            )
        now = plans[name]
        *_, chosen[name] = plans_around(shared, graphs[name], [] if isinstance(now, Mesh) else [unshared(now)])
    return chosen


def _can_share(plan: Plan, graph: JoinGraph, inside: set[str]) -> bool:
    """Returns whether a query joins the relations, and its plan and their windows let it share the join."""
    return inside <= set(graph.names) and not inside & set(graph.counted) and not isinstance(plan, Mesh)


def _relations(part: Shared) -> frozenset[str]:
    return frozenset(part.relations)
