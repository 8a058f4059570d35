"""The planner protocol, and committing a planner's choice within the limits of sites and links.

A planner chooses a plan for a `Problem`; `decide` turns the choice into operators and flows and computes its cost. A
join is never offered at a site where it alone does not fit. If the planner sees real sites, neither is a flow on links
where it alone does not fit. Several choices together may overload a site or a link. Committing detects that, and the
planner chooses again with one of the causes banned, cheapest alternatives first. With a planner that sees every plan,
this branch-and-bound finds the optimum within the limits. Other planners may run out of choices; then all sites are
searched, so that a query is refused only if that search also finds nothing.

A planner that sees the network through a hierarchy misjudges the price of reuse: widened flows and new flows have
different errors. So a query whose plan reuses operators is also planned with new operators only, and the plan that
costs less at real sites is taken; on a tie, reuse, because it needs fewer operators.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol, TypeAlias

import numpy as np

from anabranch.errors import NoFeasiblePlan
from anabranch.lang.sizes import counted
from anabranch.place.deployment import Deployment, Flow, PlacedOperator, Relaxation
from anabranch.place.landscape import SLACK, Input, Landscape, Operator, SinkQuery, view_bytes
from anabranch.place.problem import Bans, Problem
from anabranch.place.search import Found, JoinAt, Mask, Placed, Take, search, split_of
from anabranch.place.view import View
from anabranch.place.whole import whole_view

MOST_ATTEMPTS = 500
"""The maximum number of choices tried for one query before it is refused."""

MOST_SITES_SEARCHED = 2000
"""The largest network in which all sites are searched when a planner has run out of choices."""


class Planner(Protocol):
    """Chooses a plan and its sites for one more query, given the running operators."""

    @property
    def name(self) -> str: ...

    def plan(self, landscape: Landscape, query: SinkQuery) -> Placement: ...


@dataclass(frozen=True)
class Placement:
    """The placement of one query: its deployment, the resulting landscape, and the plan as a value.

    A query that runs at one site has no plan of joins.
    """

    deployment: Deployment
    landscape: Landscape
    plan: Placed | None


Choose: TypeAlias = Callable[[Problem], Found | None]


def decide(problem: Problem, planner: str, choose: Choose) -> Placement:
    """Commits the cheaper of two choices within all limits, with and without reuse; the landscape does not change."""
    if problem.query.is_whole:
        return _whole(problem, planner)
    obstacles: dict[str, None] = {}
    decision = _within_limits(problem, planner, choose, obstacles)
    if decision is None and len(problem.landscape.topology.sites) <= MOST_SITES_SEARCHED:
        decision = _within_limits(problem, planner, everything, obstacles)
    if decision is None:
        raise _infeasible(problem, tuple(obstacles))
    if not decision.deployment.reused:
        return decision
    return cheapest([decision, _within_limits(problem.without_reuse(), planner, choose, {})])


def _whole(problem: Problem, planner: str) -> Placement:
    """Places a query that runs at the site of its sink; there is one such plan."""
    before, query = problem.landscape, problem.query
    view = whole_view(query.query)
    inputs = []
    for number, slot in enumerate(view.slots):
        taken = View((slot,), frozenset())
        inputs.append(Input(f"@{slot.stream}", taken, (number,), view_bytes(taken, before.statistics)))
    delivery = Operator(query.name, problem.sink, view, tuple(inputs), is_whole=True)
    after = before.with_operators([delivery], query)
    sites, links = after.topology.sites, list(after.topology.pairs.values())
    obstacles = [f"site '{sites[site].name}'" for site in after.overloaded_sites]
    obstacles += [f"link '{links[link].left}'-'{links[link].right}'" for link in after.overloaded_links]
    if after.is_slow(query):
        obstacles.append(f"its limit of {query.max_latency:g} ms of latency")
    if obstacles:
        raise _infeasible(problem, tuple(obstacles))
    cost = after.cost_into([query.name])
    deployment = Deployment(
        query=query.name,
        sink=query.sink,
        planner=planner,
        plan=f"({' '.join(query.query.whole.names)}) at {query.sink}",
        operators=(),
        flows=tuple(flows_into(after, delivery)),
        reused=(),
        relaxed=(),
        cost=cost,
        cost_by_reuse=None,
        cost_by_new=cost,
        considered=1,
        evaluated=1,
        searches=1,
        reason="has outer joins or tables, so it runs at its sink",
    )
    return Placement(deployment, after, None)


def cheapest(placements: Sequence[Placement | None]) -> Placement:
    """Returns the cheapest of several placements of a query; on a tie the first. The counts are those of all."""
    found = [one for one in placements if one is not None]
    best = found[0]
    for other in found[1:]:
        if other.deployment.cost < best.deployment.cost * (1 - SLACK):
            best = other
    several = [one.deployment for one in found]
    by_reuse = [one.cost_by_reuse for one in several if one.cost_by_reuse is not None]
    by_new = [one.cost_by_new for one in several if one.cost_by_new is not None]
    deployment = replace(
        best.deployment,
        cost_by_reuse=min(by_reuse, default=None),
        cost_by_new=min(by_new, default=None),
        considered=sum(one.considered for one in several),
        evaluated=sum(one.evaluated for one in several),
        searches=sum(one.searches for one in several),
    )
    return replace(best, deployment=deployment)


def everything(problem: Problem) -> Found | None:
    """Returns the best of all plans at all sites."""
    sites = np.arange(len(problem.landscape.topology.sites))
    return search(problem.space(problem.units, problem.producers, sites, problem.sink))


def _within_limits(problem: Problem, planner: str, choose: Choose, obstacles: dict[str, None]) -> Placement | None:
    """Tries choices, cheapest first, until one is within all limits; adds overloaded sites and links to `obstacles`."""
    order = count()
    first = choose(problem)
    if first is None:
        return None
    queue = [(first.cost, next(order), problem, first)]
    seen = {problem.bans}
    considered = evaluated = searches = 0
    while queue:
        _, _, tried, found = heapq.heappop(queue)
        considered += found.considered
        evaluated += found.evaluated
        searches += 1
        decision = _commit(tried, planner, replace(found, considered=considered, evaluated=evaluated), searches)
        after = decision.landscape
        if after.overloaded_sites:
            site = after.overloaded_sites[0]
            obstacles[f"site '{after.topology.sites[site].name}'"] = None
            remedies = _relieving_site(tried, found.plan, site)
        elif after.overloaded_links:
            link = list(after.topology.pairs.values())[after.overloaded_links[0]]
            obstacles[f"link '{link.left}'-'{link.right}'"] = None
            remedies = _relieving_link(tried, found.plan, after.overloaded_links[0])
        elif after.is_slow(tried.query):
            obstacles[f"its limit of {tried.query.max_latency:g} ms of latency"] = None
            remedies = _hastening(tried, found.plan)
        else:
            return decision
        for bans in remedies:
            if bans not in seen and len(seen) < MOST_ATTEMPTS:
                seen.add(bans)
                again = replace(tried, bans=bans)
                other = choose(again)
                if other is not None:
                    heapq.heappush(queue, (other.cost, next(order), again, other))
    if len(seen) >= MOST_ATTEMPTS:
        obstacles[f"(no more than the {MOST_ATTEMPTS} cheapest plans were tried)"] = None
    return None


def _relieving_site(problem: Problem, plan: Placed, site: int) -> list[Bans]:
    """Returns bans that each remove one cause of a site's overload: a new join there, or a use that relaxed it."""
    found = [_without_join(problem, join) for join in joins_of(plan) if join.site == site]
    for leaf in leaves_of(plan):
        wider = problem.landscape.relaxed(leaf.producer.operator, problem.needs[leaf.mask].view)
        if wider is not None and any(operator.site == site for operator in wider.operators.values()):
            found.append(_without_use(problem, leaf))
    return found


def _relieving_link(problem: Problem, plan: Placed, link: int) -> list[Bans]:
    """Returns bans that each remove one cause of a link's overload: an end of a flow across it."""
    crossed = problem.landscape.topology.crossed
    found = []
    for part, reader in _flows_of(plan, None):
        end = problem.sink if reader is None else reader.site
        if link in crossed(part.producer.site if isinstance(part, Take) else part.site, end):
            found.append(_without_use(problem, part) if isinstance(part, Take) else _without_join(problem, part))
            if reader is not None:
                found.append(_without_join(problem, reader))
        if isinstance(part, Take) and any(link in crossed(a, b) for extra, a, b in part.producer.widened if extra):
            found.append(_without_use(problem, part))
    return found


def _hastening(problem: Problem, plan: Placed) -> list[Bans]:
    """Returns bans that each remove a part of a path with too high a latency."""
    landscape = problem.landscape
    found: dict[Bans, None] = {}

    def follow(part: Placed, end: int, above: float, joins: tuple[JoinAt, ...]) -> None:
        site = part.producer.site if isinstance(part, Take) else part.site
        latency = above + landscape.topology.latency(site, end)
        if isinstance(part, JoinAt):
            for below in (part.left, part.right):
                follow(below, site, latency, (*joins, part))
        elif latency + landscape.latency(part.producer.operator) > problem.query.max_latency:
            found.update(dict.fromkeys(_without_join(problem, join) for join in joins))
            if not landscape.operators[part.producer.operator].is_base:
                found[_without_use(problem, part)] = None

    follow(plan, problem.sink, 0.0, ())
    return list(found)


def _flows_of(plan: Placed, reader: JoinAt | None) -> list[tuple[Placed, JoinAt | None]]:
    """Returns every part of a plan with the join that reads it; the sink reads the whole."""
    match plan:
        case Take():
            return [(plan, reader)]
        case JoinAt(left=left, right=right):
            return [(plan, reader), *_flows_of(left, plan), *_flows_of(right, plan)]


def _without_join(problem: Problem, join: JoinAt) -> Bans:
    return replace(problem.bans, joins=problem.bans.joins | {(join.split, join.site)})


def _without_use(problem: Problem, leaf: Take) -> Bans:
    return replace(problem.bans, uses=problem.bans.uses | {(leaf.producer.operator, leaf.mask)})


def _infeasible(problem: Problem, obstacles: tuple[str, ...]) -> NoFeasiblePlan:
    first = problem.units[0]
    detail = f"its results are {problem.bytes[problem.full]:,.0f} bytes a second"
    if problem.full != first:
        last = problem.load(split_of(first, problem.full ^ first))
        detail += (
            f"; a join of '{problem.query.query.graph.names[0]}' with the rest alone needs {last.memory:,.0f} bytes "
            f"of state and {last.cpu:.3g} seconds of work a second"
        )
    if obstacles:
        detail += f"; plans that come near it exceed {', '.join(obstacles[:4] + obstacles[4:][-1:])}"
    return NoFeasiblePlan(
        f"query '{problem.query.name}' fits no placement within the limits of the sites and links",
        detail=detail,
        hint="raise cpu, memory, bandwidth or max_latency, shorten the windows, or remove a query",
    )


def joins_of(plan: Placed | None) -> list[JoinAt]:
    """Returns the new joins of a plan, inputs first."""
    match plan:
        case Take() | None:
            return []
        case JoinAt(left=left, right=right):
            return [*joins_of(left), *joins_of(right), plan]


def leaves_of(plan: Placed | None) -> list[Take]:
    match plan:
        case None:
            return []
        case Take():
            return [plan]
        case JoinAt(left=left, right=right):
            return [*leaves_of(left), *leaves_of(right)]


def cost_of(problem: Problem, plan: Placed) -> float:
    """Returns the cost of a plan at real sites, including relaxed operators."""
    topology = problem.landscape.topology

    def cost(part: Placed, end: int) -> float:
        if isinstance(part, Take):
            return part.producer.price + problem.bytes[part.mask] * topology.distance(part.producer.site, end)
        below = cost(part.left, part.site) + cost(part.right, part.site)
        return below + problem.bytes[part.mask] * topology.distance(part.site, end)

    return cost(plan, problem.sink)


def plan_text(problem: Problem, plan: Placed) -> str:
    """Returns the plan as a plan text; relations that arrive already joined are in brackets."""
    names = problem.query.query.graph.names
    match plan:
        case Take():
            inside = " ".join(name for index, name in enumerate(names) if plan.mask >> index & 1)
            return inside if plan.mask.bit_count() == 1 else f"[{inside}]"
        case JoinAt(left=left, right=right):
            return f"({plan_text(problem, left)} {plan_text(problem, right)})"


def _commit(problem: Problem, planner: str, found: Found, searches: int) -> Placement:
    """Returns the landscape with the plan's operators, and the deployment that describes the change."""
    before = problem.landscape
    query = problem.query
    after = before
    started: list[Operator] = []
    texts: dict[str, str] = {}

    def place(plan: Placed) -> str:
        nonlocal after
        if isinstance(plan, Take):
            wider = after.relaxed(plan.producer.operator, problem.needs[plan.mask].view)
            assert wider is not None
            after, producer = after.with_operators(wider.operators.values()).relaying(plan.producer.operator)
            return producer
        producers = [(place(child), child.mask) for child in (plan.left, plan.right)]
        name = after.free_name(query.name)
        inputs = tuple(_input(problem, producer, mask, plan.mask) for producer, mask in producers)
        operator = Operator(name, plan.site, problem.needs[plan.mask].view, inputs)
        texts[name] = plan_text(problem, plan)
        started.append(operator)
        after = after.with_operators([operator])
        return name

    root = place(found.plan)
    full = problem.full
    delivery = Operator(query.name, problem.sink, problem.needs[full].view, (_input(problem, root, full, full),))
    after = after.with_operators([delivery], query)
    sites = after.topology.sites
    reused = [
        leaf.producer.operator for leaf in leaves_of(found.plan) if not before.operators[leaf.producer.operator].is_base
    ]
    changed = [name for name, operator in after.operators.items() if before.operators.get(name) is not operator]
    widened = [name for name in changed if name in before.operators and name not in before.queries]
    cost = after.cost_into(changed) - before.cost_into(changed)
    deployment = Deployment(
        query=query.name,
        sink=query.sink,
        planner=planner,
        plan=plan_text(problem, found.plan),
        operators=tuple(
            PlacedOperator(
                operator.name,
                sites[operator.site].name,
                texts[operator.name],
                str(operator.view),
                tuple(sorted(str(predicate) for predicate in operator.view.predicates)),
                tuple(taken.producer for taken in operator.inputs),
            )
            for operator in started
        ),
        flows=tuple(flow for operator in (*started, delivery) for flow in flows_into(after, operator)),
        reused=tuple(reused),
        relaxed=tuple(
            Relaxation(name, str(before.operators[name].view), str(after.operators[name].view)) for name in widened
        ),
        cost=cost,
        cost_by_reuse=cost if reused else None,
        cost_by_new=None if reused else cost,
        considered=found.considered,
        evaluated=found.evaluated,
        searches=searches,
        reason=_reason(found, reused, widened, len(started)),
    )
    return Placement(deployment, after, found.plan)


def _input(problem: Problem, producer: str, mask: Mask, into: Mask) -> Input:
    return Input(producer, problem.needs[mask].view, problem.slots(mask, into), problem.bytes[mask])


def flows_into(landscape: Landscape, operator: Operator) -> list[Flow]:
    """Returns the flows into an operator, with the links that they cross."""
    sites = landscape.topology.sites
    flows = []
    for taken in operator.inputs:
        origin = landscape.operators[taken.producer].site
        path = tuple(sites[position].name for position in landscape.topology.path(origin, operator.site))
        flows.append(Flow(taken.producer, operator.name, path, taken.bytes, str(taken.view)))
    return flows


def _reason(found: Found, reused: list[str], widened: list[str], started: int) -> str:
    parts = [f"cheapest of {counted(found.considered, 'plan')}"]
    if reused:
        parts.append(f"uses {', '.join(reused)}")
    if widened:
        parts.append(f"relaxes {', '.join(widened)}")
    parts.append(f"starts {counted(started, 'join')}")
    return "; ".join(parts)
