"""Chooses the plans of a set of queries together: which joins they share, and which plans keep a joint budget.

1. Every query begins with the best of its own plans.
2. *Sharing.* For each set of relations that several queries join, the saving of computing the join once is compared
   with the work that sharing adds: a shared join has the longest windows and the weakest filters of its users, and
   each user tests all its combinations. Queries that make the sum worse are excluded. The join that saves most is
   taken, then the next among the remaining queries, until none saves anything.
3. *Budget.* While the set exceeds the joint limits, one query's plan is changed at a time: the change with the lowest
   cost for its gain, in CPU for each byte saved, or the reverse.

Fairness: the budget step first uses only plans that need at most `FAIR` times the CPU of the query's own best plan.
Other plans are used only if the limits cannot be kept otherwise, again the cheapest first; the result names the queries
that pay. A query's CPU is its own work; a shared join belongs to the set. Plans around a shared join are not changed in
this step, so a query that shares pays for no other. Sharing itself is never unfair: the results of a query come from
the same rows in the same batch either way.

(Zhu, Raghavan and Rundensteiner 2010, Section 8, name the joint choice for several queries as an open problem.)

Limit: a query takes part in one shared join. The search is greedy; it tries every set of relations up to `MOST_COMMON`,
beyond that only the largest common ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from anabranch.cost.resources import ResourceModel, Resources, with_default_orders
from anabranch.cost.shares import MemberModel, base_cost, join_cost, query_cost
from anabranch.errors import BundleError
from anabranch.optimize.jtree_finder import LARGEST, QUICK, Space
from anabranch.optimize.proposals import UNLIMITED, Budget, pareto
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import (
    JoinNode,
    Leaf,
    PhysicalPlan,
    Shared,
    mjoin,
    pre_groups,
    shared_parts,
    subplans,
    unshared,
)
from anabranch.plan.query_set import Member
from anabranch.plan.sharing import CommonJoin, common_join

FAIR = 2.0
"""The multiple of the CPU of its own best plan that a query's plan may need before fairness is given up."""
MOST_CORE_PLANS = 4
"""The maximum number of priced plans of a shared join."""
MOST_COMMON = 6
"""The number of common relations up to which all subsets are considered."""
LEAST_SAVING = 0.02
"""The minimum saving of a shared join, as a fraction of its users' CPU: estimates are not more accurate than that."""


@dataclass(frozen=True)
class Contender:
    """A query of a set with its possible plans, best first; a query that may not share keeps its own joins."""

    member_model: MemberModel
    plans: tuple[PhysicalPlan, ...]
    may_share: bool = True


@dataclass(frozen=True)
class SharedChoice:
    """A join that queries share, its cost, and its saving for the set."""

    shared: Shared
    users: tuple[str, ...]
    cost: Resources
    saved_cpu: float
    saved_memory: float


@dataclass(frozen=True)
class JointChoice:
    """The plans of a set, chosen together."""

    plans: Mapping[str, PhysicalPlan]
    shared: tuple[SharedChoice, ...]
    cost: Resources
    """The cost of the whole set; base states and shared joins are counted once."""
    costs: Mapping[str, Resources]
    """The cost of each query beyond base states and shared joins."""
    budget: Budget = UNLIMITED
    unfair: tuple[str, ...] = ()
    """Queries whose plan needs more than `FAIR` times the CPU of their best one, because the budget requires it."""
    considered: int = 0
    """The number of priced ways of sharing."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Joins that could have been shared but are not, with the reason."""

    @property
    def fits(self) -> bool:
        return self.budget.allows(self.cost)


CoreModel = Callable[[CommonJoin], MemberModel]
"""The model of a shared join."""


def choose_together(
    contenders: Sequence[Contender],
    core_model: CoreModel,
    budget: Budget = UNLIMITED,
) -> JointChoice:
    """Returns the plans of a set of queries; they may exceed the budget if no plan keeps it (`fits`)."""
    return _Search(contenders, core_model, budget).run()


def price_together(
    member_models: Sequence[MemberModel], plans: Mapping[str, PhysicalPlan], core_model: CoreModel
) -> tuple[Resources, dict[str, Resources]]:
    """Returns the cost of a set with these plans, and of each query beyond base states and shared joins."""
    parts: dict[Shared, list[MemberModel]] = {}
    for each in member_models:
        for part in shared_parts(plans[each.name]):
            parts.setdefault(part, []).append(each)
    joins = {part: common_join(part, [user.member for user in users]) for part, users in parts.items()}
    commons = {part: core_model(join) for part, join in joins.items()}
    own = {each.name: query_cost(each, _ordered(plans[each.name], each), commons) for each in member_models}
    several = [base_cost({each.name: each for each in member_models}), *own.values()]
    several += [join_cost(commons[part], join) for part, join in joins.items()]
    return _sum(several), own


class _Search:
    def __init__(
        self,
        contenders: Sequence[Contender],
        core_model: CoreModel,
        budget: Budget,
    ) -> None:
        self.contenders = {each.member_model.name: each for each in contenders}
        self.core_model = core_model
        self.budget = budget
        self.considered = 0
        self.refused: dict[str, str] = {}
        self.given = self._given()
        """Shared joins of explicit plans, with their models."""
        commons = {part: model for part, (_, model) in self.given.items()}
        self.own = {
            name: [(plan, query_cost(each.member_model, plan, commons)) for plan in _all_ordered(each)]
            for name, each in self.contenders.items()
        }
        self.best = {name: min(cost.cpu for _, cost in priced) for name, priced in self.own.items()}

    def run(self) -> JointChoice:
        plans = {name: priced[0][0] for name, priced in self.own.items()}
        costs = {name: priced[0][1] for name, priced in self.own.items()}
        shared = [self._given_choice(join, model, costs) for join, model in self.given.values()]
        free = {name for name, each in self.contenders.items() if each.may_share}
        while len(free) > 1 and (found := self._best_share(free, costs)) is not None:
            choice, chosen = found
            shared.append(choice)
            for name, (plan, cost) in chosen.items():
                plans[name], costs[name] = plan, cost
                free.discard(name)
        base = base_cost({name: each.member_model for name, each in self.contenders.items()})
        unfair = self._within_budget(plans, costs, shared, base)
        total = _sum([base, *costs.values(), *(each.cost for each in shared)])
        return JointChoice(plans, tuple(shared), total, costs, self.budget, unfair, self.considered, dict(self.refused))

    def _given(self) -> dict[Shared, tuple[CommonJoin, MemberModel]]:
        users: dict[Shared, list[Member]] = {}
        for each in self.contenders.values():
            for part in shared_parts(each.plans[0]):
                users.setdefault(part, []).append(each.member_model.member)
        joins = {part: common_join(part, members) for part, members in users.items()}
        return {part: (join, self.core_model(join)) for part, join in joins.items()}

    def _given_choice(self, join: CommonJoin, model: MemberModel, costs: Mapping[str, Resources]) -> SharedChoice:
        """Returns a shared join of explicit plans, compared with the same plans without sharing."""
        core = join_cost(model, join)
        apart = []
        for name in join.rests:
            contender = self.contenders[name]
            apart.append(
                query_cost(contender.member_model, _ordered(unshared(contender.plans[0]), contender.member_model), {})
            )
        before, after = _sum(apart), _sum([core, *(costs[name] for name in join.rests)])
        saved = before.cpu - after.cpu, before.memory - after.memory
        return SharedChoice(join.shared, tuple(join.rests), core, *saved)

    # --- sharing ------------------------------------------------------------------------------------------------------

    def _best_share(
        self, free: set[str], costs: Mapping[str, Resources]
    ) -> tuple[SharedChoice, dict[str, tuple[PhysicalPlan, Resources]]] | None:
        best = None
        for relations in self._common_relations(free):
            users = [name for name in sorted(free) if relations <= self._names(name)]
            if len(users) < 2:
                continue
            found = self._share(relations, users, costs)
            if found is not None and (best is None or found[0].saved_cpu > best[0].saved_cpu):
                best = found
        return best

    def _names(self, query: str) -> frozenset[str]:
        """Returns the relations that the query may share: those whose combinations may be kept."""
        graph = self.contenders[query].member_model.member.query.graph
        return frozenset(graph.names) - frozenset(graph.counted)

    def _common_relations(self, free: set[str]) -> list[frozenset[str]]:
        found: dict[frozenset[str], None] = {}
        for one, other in combinations(sorted(free), 2):
            common = self._names(one) & self._names(other)
            if len(common) < 2:
                continue
            found[common] = None
            if len(common) <= MOST_COMMON:
                for size in range(2, len(common)):
                    found |= dict.fromkeys(frozenset(part) for part in combinations(sorted(common), size))
        return list(found)

    def _share(
        self, relations: frozenset[str], users: list[str], costs: Mapping[str, Resources]
    ) -> tuple[SharedChoice, dict[str, tuple[PhysicalPlan, Resources]]] | None:
        """Returns the best way to share a join among some of the users; None if it saves too little."""
        best = self._priced(relations, users, costs)
        while best is not None and len(users) > 2:
            # Exclude the query without which the others save most.
            fewer = [[name for name in users if name != other] for other in users]
            priced = [(each, self._priced(relations, each, costs)) for each in fewer]
            kept = [(each, found) for each, found in priced if found is not None]
            if not kept:
                break
            least, found = max(kept, key=lambda pair: pair[1][0].saved_cpu)
            if found[0].saved_cpu <= best[0].saved_cpu:
                break
            users, best = least, found
        if best is None:
            return None
        spent = sum(costs[name].cpu for name in best[0].users)
        if best[0].saved_cpu <= LEAST_SAVING * spent:
            text = str(best[0].shared)
            self.refused[text] = (
                f"among {', '.join(best[0].users)}, it would cost {-best[0].saved_cpu:.3g} cores more"
                if best[0].saved_cpu <= 0
                else f"it would save {best[0].saved_cpu / spent:.1%} of the CPU, less than the accuracy of estimates"
            )
            return None
        return best

    def _priced(
        self, relations: frozenset[str], users: Sequence[str], costs: Mapping[str, Resources]
    ) -> tuple[SharedChoice, dict[str, tuple[PhysicalPlan, Resources]]] | None:
        members = [self.contenders[name].member_model.member for name in users]
        order = tuple(name for name in members[0].query.graph.names if name in relations)
        try:
            probe = common_join(Shared(JoinNode(tuple(Leaf(name) for name in order))), members)
        except BundleError as error:
            self.refused.setdefault(f"{{{' '.join(order)}}}", error.detail or error.message)
            return None
        if not probe.member.query.graph.is_connected:
            return None
        model = self.core_model(probe)
        best = None
        for plan in _plans_of_join(probe.member.query.graph, model.wide):
            if not isinstance(plan, JoinNode):
                continue
            self.considered += 1
            join = common_join(Shared(plan), members)
            core = join_cost(model, join)
            chosen = {name: self._around(name, join.shared, model) for name in users}
            before = _sum([costs[name] for name in users])
            after = _sum([core, *(cost for _, cost in chosen.values())])
            choice = SharedChoice(join.shared, tuple(users), core, before.cpu - after.cpu, before.memory - after.memory)
            if best is None or choice.saved_cpu > best[0].saved_cpu:
                best = choice, chosen
        return best

    def _around(self, query: str, shared: Shared, common: MemberModel) -> tuple[PhysicalPlan, Resources]:
        """Returns the cheapest plan of a query around a shared join."""
        contender = self.contenders[query]
        graph = contender.member_model.member.query.graph
        options = [
            _ordered(plan, contender.member_model)
            for plan in plans_around(shared, graph, [plan for plan, _ in self.own[query]])
        ]
        priced = [(plan, query_cost(contender.member_model, plan, {shared: common})) for plan in options]
        return min(priced, key=lambda pair: (pair[1].cpu, pair[1].memory))

    # --- budget -------------------------------------------------------------------------------------------------------

    def _within_budget(
        self,
        plans: dict[str, PhysicalPlan],
        costs: dict[str, Resources],
        shared: Sequence[SharedChoice],
        base: Resources,
    ) -> tuple[str, ...]:
        """Changes plans of single queries until the set keeps the budget; returns those that pay beyond fairness."""

        def total() -> Resources:
            return _sum([base, *costs.values(), *(each.cost for each in shared)])

        for factor in (FAIR, float("inf")):
            while not self.budget.allows(now := total()):
                move = self._move(plans, costs, now, factor)
                if move is None:
                    break
                name, plan, cost = move
                plans[name], costs[name] = plan, cost
        return tuple(name for name, cost in costs.items() if cost.cpu > FAIR * self.best[name] and not _is_tiny(cost))

    def _move(
        self,
        plans: Mapping[str, PhysicalPlan],
        costs: Mapping[str, Resources],
        now: Resources,
        factor: float,
    ) -> tuple[str, PhysicalPlan, Resources] | None:
        """Returns the plan change that saves most of the exceeded resource for what it costs of the other."""
        over_memory = now.memory > self.budget.total_memory
        best, worth = None, 0.0
        for name, priced in self.own.items():
            if shared_parts(plans[name]):
                continue
            for plan, cost in priced:
                gained = (costs[name].memory - cost.memory) if over_memory else (costs[name].cpu - cost.cpu)
                lost = (cost.cpu - costs[name].cpu) if over_memory else (cost.memory - costs[name].memory)
                if gained <= 0 or cost.cpu > factor * self.best[name]:
                    continue
                value = gained / max(lost, 1e-12)
                if value > worth:
                    best, worth = (name, plan, cost), value
        return best


def plans_around(shared: Shared, graph: JoinGraph, own: Iterable[PhysicalPlan] = ()) -> Iterable[PhysicalPlan]:
    """Yields plans of a query in which a shared join replaces its relations.

    Made from each of the query's own plans with a join of these relations, and one join of the shared join with all
    others.
    """
    inside = frozenset(shared.relations)
    others = tuple(Leaf(name) for name in graph.names if name not in inside)
    if not others:
        yield shared
        return
    yield JoinNode((shared, *others))
    for plan in own:
        if any(frozenset(part.relations) == inside for part in subplans(plan)) and not any(pre_groups(plan)):
            yield _replaced(plan, shared)


def _plans_of_join(graph: JoinGraph, model: ResourceModel) -> list[PhysicalPlan]:
    """Returns the plans to try for a shared join: the undominated ones, cheapest first."""
    if len(graph.names) > LARGEST:
        return [with_default_orders(mjoin(graph.names), graph)]
    found = pareto(Space(model).undominated(effort=QUICK).plans)
    return [candidate.plan for candidate in found[:MOST_CORE_PLANS]]


def _replaced(plan: PhysicalPlan, shared: Shared) -> PhysicalPlan:
    if frozenset(plan.relations) == frozenset(shared.relations):
        return shared
    return plan.with_inputs(tuple(_replaced(child, shared) for child in plan.inputs))


def _ordered(plan: PhysicalPlan, member_model: MemberModel) -> PhysicalPlan:
    return with_default_orders(plan, member_model.member.query.graph)


def _all_ordered(contender: Contender) -> list[PhysicalPlan]:
    return [_ordered(plan, contender.member_model) for plan in contender.plans]


def _is_tiny(cost: Resources) -> bool:
    return cost.cpu < 1e-6


def _sum(several: Iterable[Resources]) -> Resources:
    listed = list(several)
    return Resources(
        sum(each.cpu for each in listed), sum(each.memory for each in listed), sum(each.rate for each in listed)
    )
