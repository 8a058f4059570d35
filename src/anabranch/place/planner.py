"""What all planners share: the problem they are given, the protocol they answer by, and how an answer is committed.

A planner chooses a plan from a `Problem`; `decide` turns the choice into operators and flows, charges it, and respects
what sites and links can take. A join that alone does not fit a site is never offered there, nor a flow that alone does
not fit through its links where a planner sees real sites. What only together overloads a site or a link is found on
committing; then the choice is made again with one of the causes banned, cheapest alternatives first. With a planner
that sees every plan this branch-and-bound ends at the optimum under the limits. A planner that sees less may run out
of choices; then all sites are searched for it, so that a query is refused only if nothing was found at all.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from anabranch.errors import NoFeasiblePlan, TopologyError
from anabranch.place.deployment import Deployment, Flow, PlacedOperator, Relaxation
from anabranch.place.landscape import Input, Landscape, Operator, SinkQuery, view_bytes
from anabranch.place.load import Load, join_load
from anabranch.place.search import Found, JoinAt, Mask, Placed, Producer, Space, Split, Take, search, split_of
from anabranch.place.topology import Floats, Indices
from anabranch.place.view import Need, needs

MOST_ATTEMPTS = 500
"""Choices tried for one query before its limits are called impossible to meet."""

MOST_SITES_SEARCHED = 2000
"""On larger networks all sites are not searched for a planner that has run out of choices."""


@dataclass(frozen=True)
class Bans:
    """Joins that may not be put at a site, and running operators that may not be used for a set of relations."""

    joins: frozenset[tuple[Split, int]] = frozenset()
    uses: frozenset[tuple[str, Mask]] = frozenset()


@dataclass(frozen=True)
class Problem:
    """A query to be placed: what each subset of its relations needs and weighs, and the streams there are to use."""

    landscape: Landscape
    query: SinkQuery
    needs: tuple[Need, ...]
    bytes: tuple[float, ...]
    offered: tuple[Producer, ...]
    sink: int
    bans: Bans = Bans()

    @property
    def units(self) -> tuple[Mask, ...]:
        return tuple(1 << index for index in range(len(self.query.query.graph.relations)))

    @property
    def full(self) -> Mask:
        return len(self.needs) - 1

    @cached_property
    def producers(self) -> tuple[Producer, ...]:
        return tuple(one for one in self.offered if (one.operator, one.mask) not in self.bans.uses)

    @cached_property
    def _is_limited(self) -> bool:
        return bool(self.bans.joins) or self.landscape.topology.has_limited_sites

    @cached_property
    def _barred(self) -> dict[Split, npt.NDArray[np.bool_]]:
        """For every join, the sites that cannot take it."""
        if not self._is_limited:
            return {}
        found = {}
        for left in range(1, self.full + 1):
            rest = self.full ^ left
            right = rest
            while right:
                split = split_of(left, right)
                if split not in found:
                    found[split] = self._closed_to(split)
                right = (right - 1) & rest
        return found

    def _closed_to(self, split: Split) -> npt.NDArray[np.bool_]:
        closed = ~self.landscape.sites_for(self.load(split))
        closed[[site for banned, site in self.bans.joins if banned == split]] = True
        return closed

    def open_sites(self, split: Split) -> Indices:
        """The sites that can take a join."""
        if split in self._barred:
            return np.flatnonzero(~self._barred[split])
        return np.arange(len(self.landscape.topology.sites))

    def load(self, split: Split) -> Load:
        """What the join of two subsets needs of its site."""
        into = split[0] | split[1]
        left, right = ((self.needs[mask].view, self.slots(mask, into)) for mask in split)
        return join_load(left, right, self.needs[into].view, self.landscape.statistics)

    def slots(self, mask: Mask, into: Mask) -> tuple[int, ...]:
        """The slots of a union's view that those of a part's view become."""
        return tuple(self.needs[into].relations.index(relation) for relation in self.needs[mask].relations)

    @cached_property
    def room(self) -> Callable[[Sequence[int] | Indices], Floats] | None:
        """What still fits on the way from every site to some ends; None when no link has a limit."""
        return self.landscape.room if self.landscape.topology.has_limited_links else None

    def space(
        self,
        units: Sequence[Mask],
        producers: Sequence[Producer],
        sites: Indices,
        destination: int,
        representatives: Indices | None = None,
        splits: frozenset[Split] | None = None,
    ) -> Space:
        """A search over some sites; where a site stands for several, it can take a join if one of them can.

        Links are known only between real sites, so a coarse search does not look at them.
        """
        barred = {}
        for split, closed in self._barred.items():
            if representatives is None:
                barred[split] = closed[sites]
            else:
                barred[split] = ~np.isin(sites, representatives[~closed])
        return Space(
            tuple(units),
            tuple(producers),
            sites,
            destination,
            self.bytes,
            self.landscape.topology,
            splits=splits,
            barred=barred,
            room=self.room if representatives is None else None,
        )


class Planner(Protocol):
    """Chooses a plan and its places for one more query, given all that runs already."""

    @property
    def name(self) -> str: ...

    def plan(self, landscape: Landscape, query: SinkQuery) -> Decision: ...


@dataclass(frozen=True)
class Decision:
    """A deployment, the landscape with it in place, and the plan as a value."""

    deployment: Deployment
    landscape: Landscape
    plan: Placed


Choose: TypeAlias = Callable[[Problem], Found | None]


def problem_of(landscape: Landscape, query: SinkQuery, relaxing: bool = True, reusing: bool = True) -> Problem:
    """The problem of placing a query; without `relaxing`, running operators are used only as they are."""
    if query.name in landscape.queries:
        raise TopologyError(f"query '{query.name}' is already deployed", hint="give the new one another name")
    if query.sink not in landscape.topology.positions:
        raise TopologyError(f"query '{query.name}' has its sink at unknown site '{query.sink}'")
    for relation in query.query.graph.relations:
        if f"@{relation.stream.lower()}" not in landscape.operators:
            raise TopologyError(
                f"query '{query.name}' reads stream '{relation.stream}', which no site advertises",
                hint="give its site and rate under 'streams' of the network file",
            )
        if relation.window.range is None and len(query.query.graph.relations) > 1:
            raise TopologyError(
                f"query '{query.name}' joins relation '{relation.name}' under an unbounded window",
                detail="such a join has no rate to plan with",
                hint="give it a [RANGE ...]",
            )
    needed = needs(query.query)
    volumes = tuple(view_bytes(need.view, landscape.statistics) if need.view.slots else 0.0 for need in needed)
    offered = []
    for mask in range(1, len(needed)):
        wanted = needed[mask].view
        for operator in landscape.offers.get(wanted.signature, ()):
            if operator.is_base or (reusing and (relaxing or operator.view.covers(wanted))):
                wider = landscape.relaxed(operator.name, wanted)
                if wider is not None:
                    price = sum(extra * landscape.topology.distance(a, b) for extra, a, b in wider.flows)
                    offered.append(Producer(mask, operator.name, operator.site, price, widened=wider.flows))
    return Problem(landscape, query, needed, volumes, tuple(offered), landscape.topology.position(query.sink))


def decide(problem: Problem, planner: str, choose: Choose) -> Decision:
    """The cheapest choice that keeps within all limits, committed; the given landscape is left as it was."""
    obstacles: dict[str, None] = {}
    decision = _within_limits(problem, planner, choose, obstacles)
    if decision is None and len(problem.landscape.topology.sites) <= MOST_SITES_SEARCHED:
        decision = _within_limits(problem, planner, everything, obstacles)
    if decision is None:
        raise _infeasible(problem, tuple(obstacles))
    return decision


def everything(problem: Problem) -> Found | None:
    """The best of all plans at all sites."""
    sites = np.arange(len(problem.landscape.topology.sites))
    return search(problem.space(problem.units, problem.producers, sites, problem.sink))


def _within_limits(problem: Problem, planner: str, choose: Choose, obstacles: dict[str, None]) -> Decision | None:
    """Choices, cheapest first, until one keeps within all limits; into `obstacles` goes what was overloaded."""
    order = count()
    first = choose(problem)
    if first is None:
        return None
    queue = [(first.cost, next(order), problem, first)]
    seen = {problem.bans}
    considered = evaluated = 0
    while queue:
        _, _, tried, found = heapq.heappop(queue)
        considered += found.considered
        evaluated += found.evaluated
        decision = _commit(tried, planner, replace(found, considered=considered, evaluated=evaluated))
        after = decision.landscape
        if after.overloaded_sites:
            site = after.overloaded_sites[0]
            obstacles[f"site '{after.topology.sites[site].name}'"] = None
            remedies = _relieving_site(tried, found.plan, site)
        elif after.overloaded_links:
            link = list(after.topology.pairs.values())[after.overloaded_links[0]]
            obstacles[f"link '{link.left}'-'{link.right}'"] = None
            remedies = _relieving_link(tried, found.plan, after.overloaded_links[0])
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
    """The bans that each take one cause of an overload away: a new join at the site, or a use that relaxed it."""
    found = [_without_join(problem, join) for join in joins_of(plan) if join.site == site]
    for leaf in leaves_of(plan):
        wider = problem.landscape.relaxed(leaf.producer.operator, problem.needs[leaf.mask].view)
        if wider is not None and any(operator.site == site for operator in wider.operators.values()):
            found.append(_without_use(problem, leaf))
    return found


def _relieving_link(problem: Problem, plan: Placed, link: int) -> list[Bans]:
    """The same for a link: every plan that keeps both ends of all flows across it keeps the flows as well."""
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


def _flows_of(plan: Placed, reader: JoinAt | None) -> list[tuple[Placed, JoinAt | None]]:
    """Every part of a plan with the join that reads it; the whole is read by the sink."""
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
        detail += f"; plans that come near it overload {', '.join(obstacles[:4] + obstacles[4:][-1:])}"
    return NoFeasiblePlan(
        f"query '{problem.query.name}' fits no placement within the limits of the sites and links",
        detail=detail,
        hint="raise cpu, memory or bandwidth in the network file, shorten the windows, or remove a query",
    )


def joins_of(plan: Placed) -> list[JoinAt]:
    """The new joins of a plan, inputs before the joins that read them."""
    match plan:
        case Take():
            return []
        case JoinAt(left=left, right=right):
            return [*joins_of(left), *joins_of(right), plan]


def leaves_of(plan: Placed) -> list[Take]:
    match plan:
        case Take():
            return [plan]
        case JoinAt(left=left, right=right):
            return [*leaves_of(left), *leaves_of(right)]


def cost_of(problem: Problem, plan: Placed) -> float:
    """What a plan at real sites costs, relaxing included."""
    topology = problem.landscape.topology

    def cost(part: Placed, end: int) -> float:
        if isinstance(part, Take):
            return part.producer.price + problem.bytes[part.mask] * topology.distance(part.producer.site, end)
        below = cost(part.left, part.site) + cost(part.right, part.site)
        return below + problem.bytes[part.mask] * topology.distance(part.site, end)

    return cost(plan, problem.sink)


def plan_text(problem: Problem, plan: Placed) -> str:
    """The plan in the text form of physical plans; relations that come joined already stand in brackets."""
    names = problem.query.query.graph.names
    match plan:
        case Take():
            inside = " ".join(name for index, name in enumerate(names) if plan.mask >> index & 1)
            return inside if plan.mask.bit_count() == 1 else f"[{inside}]"
        case JoinAt(left=left, right=right):
            return f"({plan_text(problem, left)} {plan_text(problem, right)})"


def _commit(problem: Problem, planner: str, found: Found) -> Decision:
    """The landscape with the plan's operators in it, and the deployment that describes the step."""
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
            after = after.with_operators(wider.operators.values())
            return plan.producer.operator
        producers = [(place(child), child.mask) for child in (plan.left, plan.right)]
        name = next(name for n in count(1) if (name := f"{query.name}/{n}") not in after.operators)
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
    widened = [name for name, operator in before.operators.items() if after.operators[name] is not operator]
    changed = [*widened, *(operator.name for operator in started), query.name]
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
        considered=found.considered,
        evaluated=found.evaluated,
        reason=_reason(found, reused, widened, len(started)),
    )
    return Decision(deployment, after, found.plan)


def _input(problem: Problem, producer: str, mask: Mask, into: Mask) -> Input:
    return Input(producer, problem.needs[mask].view, problem.slots(mask, into), problem.bytes[mask])


def flows_into(landscape: Landscape, operator: Operator) -> list[Flow]:
    """The streams an operator takes, with the links they cross."""
    sites = landscape.topology.sites
    flows = []
    for taken in operator.inputs:
        origin = landscape.operators[taken.producer].site
        path = tuple(sites[position].name for position in landscape.topology.path(origin, operator.site))
        flows.append(Flow(taken.producer, operator.name, path, taken.bytes, str(taken.view)))
    return flows


def _reason(found: Found, reused: list[str], widened: list[str], started: int) -> str:
    parts = [f"cheapest of {found.considered:,} plans"]
    if reused:
        parts.append(f"uses {', '.join(reused)}")
    if widened:
        parts.append(f"relaxes {', '.join(widened)}")
    parts.append(f"starts {started} join{'' if started == 1 else 's'}")
    return "; ".join(parts)
