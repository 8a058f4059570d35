"""Prices the plans of a set of queries: base states once, shared joins once, and the remaining work of each query.

A query of a set probes base states that hold the rows of all queries, so its joins cost as much as with the longest
windows. Its own filter keeps new rows from probing, and its windows and filters discard combinations at the end. A
query that uses a shared join pays for checking the combinations of the join, and for the joins above.

Limit: an index of a base state that several queries use is counted as one index in all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.cost.estimates import Estimates
from anabranch.cost.resources import ResourceModel, Resources, explicit_orders, with_default_orders
from anabranch.plan.cost_rank import ASSUMED_COMPARISON
from anabranch.plan.physical import PhysicalPlan, Shared, kept, nodes, pre_groups, shared_parts
from anabranch.plan.query_set import Member
from anabranch.plan.sharing import CommonJoin

HORIZON = 3600.0
"""The seconds that an unbounded window counts for."""


@dataclass(frozen=True)
class MemberModel:
    """A query of a set, or a shared join, with the models that price its plans."""

    member: Member
    wide: ResourceModel
    """The model with the relations as the set keeps them: longest windows, common filters."""
    passing: Mapping[str, float]
    """For each relation, the fraction of its rows that pass the query's own filter."""

    @property
    def name(self) -> str:
        return self.member.name

    @property
    def narrow(self) -> ResourceModel:
        """The model of the query alone, with its own windows and filters."""
        estimates = self.wide.estimates
        own = {residual.relation: residual for residual in self.member.residuals}
        rates, windows = [], []
        for name, rate, window in zip(estimates.names, estimates.rates, estimates.windows, strict=True):
            rates.append(rate * self.passing.get(name, 1.0))
            windows.append(min(window, max(own[name].range / 1e6, 1e-6)) if name in own else window)
        return replace(self.wide, estimates=replace(estimates, rates=tuple(rates), windows=tuple(windows)))

    def fraction(self, mask: int) -> float:
        """Returns the fraction of a set's new combinations in the wide model whose newest row passes its filter."""
        estimates = self.wide.estimates
        members = [i for i in range(len(estimates.names)) if mask >> i & 1]
        turnover = sum(1 / estimates.windows[i] for i in members)
        passed = sum(self.passing.get(estimates.names[i], 1.0) / estimates.windows[i] for i in members)
        return passed / turnover


def from_own_model(member: Member, own: ResourceModel) -> MemberModel:
    """Returns the model of a query in its set from that of the query alone, before the set has run."""
    estimates, graph = own.estimates, member.query.graph
    known = {used.what: used.value for used in estimates.used}
    residuals = {each.relation: each for each in member.residuals}
    passing, rates, windows = {}, [], []
    for name, rate, window in zip(estimates.names, estimates.rates, estimates.windows, strict=True):
        shared, mine = graph.relation(name), residuals.get(name)
        if mine is not None and mine.filter is not None:
            # The filter of the query alone also has the common conjuncts, whose selectivity is already in the rate.
            passing[name] = next((known[text] for text in known if text.endswith(str(mine.filter))), ASSUMED_COMPARISON)
        rates.append(rate / passing.get(name, 1.0) if passing.get(name, 1.0) else rate)
        reach = shared.window.range
        windows.append(max(window, reach / 1e6) if reach is not None else max(window, HORIZON))
    wide = replace(estimates, rates=tuple(rates), windows=tuple(windows))
    return MemberModel(member, replace(own, estimates=wide), passing)


def in_agreement(member_models: Sequence[MemberModel]) -> tuple[MemberModel, ...]:
    """Equalises the distinct keys of several models: unknown numbers were estimated from the windows of one query."""
    most: dict[tuple[str, str], float] = {}
    for each in member_models:
        estimates = each.wide.estimates
        for key, distinct in zip(each.member.query.graph.keys, estimates.keys, strict=True):
            for name, values in zip(estimates.names, distinct, strict=True):
                most[key.name, name] = max(most.get((key.name, name), 0.0), values)
    agreed = []
    for each in member_models:
        estimates = each.wide.estimates
        keys = tuple(
            tuple(most[key.name, name] if values else 0.0 for name, values in zip(estimates.names, old, strict=True))
            for key, old in zip(each.member.query.graph.keys, estimates.keys, strict=True)
        )
        agreed.append(replace(each, wide=replace(each.wide, estimates=replace(estimates, keys=keys))))
    return tuple(agreed)


def of_common_join(common: CommonJoin, member_models: Mapping[str, MemberModel]) -> MemberModel:
    """Returns the model of a shared join, from the models of its users."""
    users = [member_models[name] for name in common.rests]
    graph, first = common.member.query.graph, users[0]
    estimates = first.wide.estimates
    place = [estimates.positions[name] for name in graph.names]
    own = {key.name: distinct for key, distinct in zip(first.member.query.graph.keys, estimates.keys, strict=True)}
    keys = tuple(
        tuple(own[key.name][at] if name in key.relations else 0.0 for name, at in zip(graph.names, place, strict=True))
        for key in graph.keys
    )
    by_theta = dict(zip(first.member.query.graph.thetas, estimates.thetas, strict=True))
    thetas = tuple(
        replace(by_theta[theta], relations=sum(1 << graph.names.index(name) for name in theta.relations))
        for theta in graph.thetas
    )
    picked = Estimates(
        names=graph.names,
        rates=tuple(estimates.rates[at] for at in place),
        windows=tuple(estimates.windows[at] for at in place),
        row_bytes=tuple(estimates.row_bytes[at] for at in place),
        keys=keys,
        thetas=thetas,
    )
    filtered = {residual.relation for residual in common.member.residuals if residual.filter is not None}
    passing = {name: max(user.passing.get(name, 1.0) for user in users) for name in filtered}
    return MemberModel(common.member, replace(first.wide, estimates=picked, deferred=(), shares=()), passing)


def base_cost(member_models: Mapping[str, MemberModel]) -> Resources:
    """Returns the cost of the base states of a set, each counted once."""
    found: dict[str, tuple[float, float]] = {}
    for each in member_models.values():
        model = each.wide
        for name in model.estimates.names:
            single = model.estimates.mask((name,))
            size = model.state_bytes(single) + model.held(single) * model.units.index_bytes
            cpu = model.upkeep(single) + model.births(single) * model.units.link
            known = found.get(name, (0.0, 0.0))
            found[name] = max(known[0], cpu), max(known[1], size)
    return Resources(sum(cpu for cpu, _ in found.values()), sum(size for _, size in found.values()), 0.0)


def query_cost(query: MemberModel, plan: PhysicalPlan, commons: Mapping[Shared, MemberModel]) -> Resources:
    """Returns the cost of one query beyond base states and shared joins; probe orders must be explicit.

    `commons` are the shared joins that the plan uses, with their users.
    """
    joins = work(query, plan)
    narrow, wide = query.narrow, query.wide
    everything = wide.estimates.everything
    rate = narrow.births(everything)
    cpu = joins.cpu + narrow.emitting
    residuals = len(query.member.residuals)
    parts = shared_parts(plan)
    inside = {name for part in parts for name in part.relations}
    for part in parts:
        # Each of the query's own windows and filters is tested on every combination of the join.
        own = sum(1 for each in query.member.residuals if each.relation in part.relations)
        common = commons[part]
        tested = born(common)
        cpu += tested * wide.units.check * max(own, 0.25) + wide.call
    if residuals and plan.relations != tuple(inside):
        finished = wide.births(everything) * query.fraction(everything)
        cpu += finished * wide.units.check * sum(1 for each in query.member.residuals if each.relation not in inside)
    return Resources(cpu, joins.memory, rate)


def join_cost(common: MemberModel, join: CommonJoin) -> Resources:
    """Returns the cost of a shared join: its lookups and states, and a state of its combinations if users need one."""
    made = work(common, with_default_orders(join.shared.join, common.member.query.graph))
    model = common.wide
    everything = model.estimates.everything
    checks = born_wide(common) * model.units.check * len(common.member.residuals)
    if not join.outside:
        return Resources(made.cpu + checks, made.memory, 0.0)
    upkeep = (model.upkeep(everything) + model.births(everything) * model.units.link) * _kept_share(common)
    size = (model.joined_bytes(everything) + model.held(everything) * model.units.index_bytes) * _kept_share(common)
    return Resources(made.cpu + checks + upkeep, made.memory + size, 0.0)


def work(query: MemberModel, plan: PhysicalPlan) -> Resources:
    """Returns the cost of the joins and intermediate states that a plan computes itself, for one query."""
    if any(pre_groups(plan)):
        priced, base = query.wide.price(plan), query.wide.base
        return Resources(max(0.0, priced.cpu - base.cpu), max(0.0, priced.memory - base.memory), 0.0)
    model = query.wide.of_plan(plan)
    parts = {model.estimates.mask(part.relations): part for part in shared_parts(plan)}
    narrow = query.narrow

    def share(mask: int) -> float:
        if mask in parts:
            births = model.births(mask)
            return narrow.births(mask) / births if births else 1.0
        return query.fraction(mask)

    cpu, memory = 0.0, 0.0
    states = {model.estimates.mask(inner.relations) for inner in kept(plan)}
    for node in nodes(plan):
        blocks = [model.estimates.mask(child.relations) for child in node.inputs]
        orders = explicit_orders(node)
        for block, count in zip(blocks, model.index_counts(blocks, orders), strict=True):
            if block in states:
                cpu += model.births(block) * share(block) * count * model.units.link
                memory += model.held(block) * share(block) * count * model.units.index_bytes
        for start, order in enumerate(orders):
            calls = (len(order) + 1) * model.call
            chain = model.chain(blocks[start], [blocks[position] for position in order])
            cpu += (chain - calls) * share(blocks[start]) + calls
    for mask in states:
        cpu += model.upkeep(mask) * share(mask)
        memory += model.joined_bytes(mask) * share(mask)
    return Resources(cpu, memory, 0.0)


def born(common: MemberModel) -> float:
    """Returns the combinations per second that a shared join passes to its users."""
    return common.narrow.births(common.wide.estimates.everything)


def born_wide(common: MemberModel) -> float:
    """Returns the combinations per second of a shared join before its own windows and filters."""
    everything = common.wide.estimates.everything
    return common.wide.births(everything) * common.fraction(everything)


def _kept_share(common: MemberModel) -> float:
    wide = common.wide.births(common.wide.estimates.everything)
    return born(common) / wide if wide else 1.0
