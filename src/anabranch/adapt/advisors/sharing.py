"""Decides which joins the running queries of a set share.

Each adapting query has a controller that decides on its plan. A shared join concerns several queries, so it is decided
here, for the queries that adapt. At the end of every cool-down the joint choice (`optimize.joint`) is
repeated with measured statistics, and a change must pass the gate of each query whose plan changes. While a query
shares a join, its history is updated, but its controller decides nothing.

Limit: plans are searched only for queries with few relations; any other query keeps its running plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from anabranch.adapt.controller import Controller
from anabranch.adapt.facts import Since
from anabranch.adapt.gate import judge
from anabranch.adapt.history import Flow
from anabranch.adapt.records import SharingDecided
from anabranch.adapt.rules import IN_LINE, LISTED
from anabranch.cost.resources import with_default_orders
from anabranch.cost.shares import MemberModel, of_common_join
from anabranch.errors import BundleError
from anabranch.migrate.strategies.strategy import Price
from anabranch.optimize.choice import answer_to
from anabranch.optimize.hints import Objective
from anabranch.optimize.joint import Contender, choose_together, plans_around, price_together
from anabranch.optimize.problem import resource_model
from anabranch.optimize.proposals import UNLIMITED, Budget
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.physical import PhysicalPlan, Shared, kept, mjoin, shared_parts, unshared
from anabranch.plan.query import titled
from anabranch.plan.query_set import Member, QuerySet
from anabranch.plan.sharing import SHARING, common_join, shared_join


@dataclass(frozen=True)
class SharingRules:
    """Whether running queries may share joins without a request of the user, and their joint limits."""

    is_automatic: bool = False
    budget: Budget = UNLIMITED


BY_HAND_ONLY = SharingRules()


@dataclass(frozen=True)
class SharingAdvisor:
    """Proposes which joins the queries of one set share."""

    queries: QuerySet
    sharing: SharingRules

    def decide(
        self, batch: int, since: Since, plans: Mapping[str, Plan], controllers: Mapping[str, Controller]
    ) -> SharingDecided | None:
        """Returns the decision if one is due after a batch.

        `since` counts the batches since the last decision in which no query changed its plan.
        """
        adapting = {name: each for name, each in controllers.items() if each.adapts}
        if not self.sharing.is_automatic or len(adapting) < 2:
            return None
        if not all(since.has_passed(each.settings.gate.cool_down) for each in adapting.values()):
            return None
        if any(not each.history.statistics.rates for each in adapting.values()):
            return None
        now = {
            name: mjoin_of(self.queries.member(name).query.graph) if isinstance(plan, Mesh) else plan
            for name, plan in plans.items()
        }
        member_models = {
            member.name: _member_model(member, controllers[member.name]) for member in self.queries.members
        }
        core_model = partial(of_common_join, member_models=member_models)
        several = [self._contender(plans[name], each, controllers[name]) for name, each in member_models.items()]
        joint = choose_together(several, core_model, self.sharing.budget)
        try:
            cost, _ = price_together([*member_models.values()], now, core_model)
        except BundleError:  # the running plans share joins that were formed for other queries
            return None
        running = {part for plan in now.values() for part in shared_parts(plan)}
        wanted = {frozenset(each.shared.relations) for each in joint.shared}
        if wanted == {frozenset(part.relations) for part in running} and all(
            bool(shared_parts(now[name])) == bool(shared_parts(joint.plans[name])) for name in now
        ):
            same = "what is shared is the best known"
            return SharingDecided(batch, {}, cost, cost, tuple(map(str, running)), same)
        changed = {
            name: joint.plans[name]
            for name in sorted(adapting)
            if shared_parts(now[name]) != shared_parts(joint.plans[name])
        }
        price, objective = self._price(changed, now, member_models), Objective.parse("cpu")
        # A joint change must pass the gate of each query whose plan changes.
        verdicts = [
            judge(adapting[name].gate, cost, joint.cost, price, objective, self.sharing.budget)
            for name in sorted(changed or adapting)
        ]
        verdict = next((each for each in verdicts if not each.passed), verdicts[0])
        is_frozen = any(each.is_frozen for each in adapting.values())
        reason = f"frozen; otherwise: {verdict.reason}" if verdict.passed and is_frozen else verdict.reason
        taken = changed if verdict.passed and not is_frozen else {}
        return SharingDecided(batch, taken, cost, joint.cost, tuple(str(each.shared) for each in joint.shared), reason)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _contender(self, plan: Plan, member_model: MemberModel, own: Controller) -> Contender:
        query = member_model.member.query
        if isinstance(plan, Mesh):
            return Contender(member_model, (mjoin_of(query.graph),), may_share=False)
        if not own.adapts:
            return Contender(member_model, (plan,), may_share=False)
        plans, criteria = [unshared(plan)], own.criteria
        if len(query.graph.names) <= IN_LINE:
            answer = answer_to(criteria.problem(query, own.history.statistics))
            found = [each.plan for each in answer.considered if each.standing != "refused"][:LISTED]
            # The first plan is the one without sharing: the best for a query that shares now, else its running plan.
            plans = [*found, *plans] if shared_parts(plan) else [*plans, *found]
        ordered = (with_default_orders(each, query.graph) for each in plans)
        return Contender(member_model, tuple(dict.fromkeys(ordered)), may_share=criteria.hints.plan is None)

    def _price(
        self,
        changed: Mapping[str, PhysicalPlan],
        now: Mapping[str, PhysicalPlan],
        member_models: Mapping[str, MemberModel],
    ) -> Price:
        """Returns the price of computing all states of shared joins, and those of the queries whose plan changes."""
        after = {**now, **changed}
        users: dict[Shared, list[str]] = {}
        for name, plan in after.items():
            for part in shared_parts(plan):
                users.setdefault(part, []).append(name)
        states = [(member_models[name].wide, [*kept(plan)]) for name, plan in changed.items()]
        rows, size = 0.0, 0.0
        for part, names in users.items():
            wide = of_common_join(common_join(part, [member_models[name].member for name in names]), member_models).wide
            states.append((wide, [*kept(part.join)]))
            if any(len(after[name].relations) > len(part.relations) for name in names):
                rows += wide.held(wide.estimates.everything)
                size += wide.joined_bytes(wide.estimates.everything)
        for model, joins in states:
            for mask in (model.estimates.mask(inner.relations) for inner in joins):
                rows += model.held(mask)
                size += model.joined_bytes(mask)
        units = next(iter(member_models.values())).wide.units
        seconds = rows * (units.insert + units.insert_joined + units.link + units.probe + units.match)
        return Price(SHARING, seconds, size, seconds)


def _member_model(member: Member, own: Controller) -> MemberModel:
    query, known = member.query, own.history.statistics
    model = resource_model(query.graph, own.criteria.view(known), known.batch, query.grouping)
    return MemberModel(member, model, _passing(own.history.flow))


def _passing(flow: Flow | None) -> dict[str, float]:
    """Returns the measured share of rows that pass the query's own filter of each relation.

    A filter that has passed no row may pass one later, so half a row counts.
    """
    tested = {} if flow is None else flow.step.tested
    return {relation: max(passed, 0.5) / rows for relation, (rows, passed) in tested.items() if rows}


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
