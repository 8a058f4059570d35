"""Explains a query: from its text to a physical plan, stage by stage, without Spark.

The command line and the public API both use this module, and both choose plans through `choosing`, so an explanation
shows the plan that would run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import inf
from types import MappingProxyType
from typing import TypeAlias

from anabranch import cql
from anabranch.balance.describe import describe_grid
from anabranch.balance.first import FirstTable, first_table
from anabranch.console.picture import OUTPUT, Dot, RouteNote, ShownPlan, mesh_svg, plan_svg, plane, set_svg
from anabranch.cost.estimates import EVER
from anabranch.cost.resources import Resources
from anabranch.errors import SpecError
from anabranch.lang.catalog import Catalog
from anabranch.lang.sizes import size_text
from anabranch.optimize import Candidate, Choice, Infeasible, MeshOffer, Proposal
from anabranch.optimize.explain import explanation
from anabranch.optimize.joint import FAIR, JointChoice
from anabranch.optimize.validity import validity
from anabranch.plan import logical
from anabranch.plan.describe import describe, describe_mesh, describe_routes
from anabranch.plan.mesh import Mesh, Plan, RelationRoutes
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import PhysicalPlan, mjoin, shape, shared_parts, subplans, unshared
from anabranch.plan.query import Query, is_subquery, render_query
from anabranch.plan.query_set import ALONE, QuerySet, partitioning_of, set_of
from anabranch.plan.query_set import describe as describe_set
from anabranch.planning.choosing import first_plan
from anabranch.planning.together import RunChoice, shared_lines, shared_traffic
from anabranch.rewrite.pipeline import rewrite
from anabranch.stats.mesh.learnt import LearntMesh

STAGES = ("logical", "rewritten", "graph", "physical", "choice")


PLACED = ("auto",)
"""The value of `late_filters` for placing filters by cost."""


class Explanation:
    """A query text over a catalog, compiled on demand."""

    def __init__(
        self,
        text: str,
        catalog: Catalog,
        *,
        allow_unbounded: bool = False,
        late_filters: Sequence[str] = (),
        query: Query | None = None,
    ) -> None:
        """Creates the explanation; `query` is the compiled query if it is already known, as for a query that another
        one reads.
        """
        self._text = text
        self._compiled = query
        self._catalog = catalog
        self._allow_unbounded = allow_unbounded
        self.places_filters = tuple(late_filters) == PLACED
        """True if filters are placed by cost; until then, none is late."""
        self._late_filters = () if self.places_filters else tuple(late_filters)

    @cached_property
    def query(self) -> Query:
        if self._compiled is not None:
            return self._compiled
        return cql.compile_query(
            self._text, self._catalog, allow_unbounded=self._allow_unbounded, late_filters=self._late_filters
        )

    def with_late_filters(self, late_filters: Sequence[str]) -> Explanation:
        """Returns the same query with other late filters."""
        return Explanation(self._text, self._catalog, allow_unbounded=self._allow_unbounded, late_filters=late_filters)

    @property
    def inputs(self) -> dict[str, Explanation]:
        """The queries that this one reads, by name."""
        return {
            name: Explanation(query.text, self._catalog, allow_unbounded=self._allow_unbounded, query=query)
            for name, query in self.query.inputs
        }

    def text(self, stage: str, choose: Callable[[], Choice]) -> str:
        """Returns one stage as text; `choose` is called only for stages that need a plan."""
        match stage:
            case "logical":
                return logical.render(self._bound())
            case "rewritten":
                return logical.render(rewrite(self._bound()))
            case "graph":
                return render_query(self.query)
            case "physical":
                plan, graph = first_plan(choose()), self.query.graph
                return describe_mesh(plan, graph) if isinstance(plan, Mesh) else describe(plan, graph)
            case "choice":
                choice = choose()
                return "\n\n".join(
                    [render_query(self.query), explanation(choice), *_bounds(choice), *self._mesh(choice)]
                )
        raise SpecError(f"unknown stage '{stage}'", hint=f"use one of {', '.join(STAGES)}")

    def _mesh(self, choice: Choice) -> list[str]:
        """Describes the mesh that was considered, if any."""
        offer = choice.mesh
        if offer is None:
            return []
        lines = [f"mesh {'taken' if offer.is_taken else 'not taken'}: {offer.reason}"]
        if offer.learnt is not None:
            rates = dict(zip(choice.estimates.names, choice.estimates.rates, strict=True))
            if offer.learnt.is_mesh:
                lines.append(f"  {offer.learnt.gain(rates):+.1%} over the best single routes, by the sample")
            lines += [line for way in offer.learnt.mesh.ways for line in self._routes(way, offer.learnt)]
        return ["\n".join(lines)]

    def _routes(self, way: RelationRoutes, learnt: LearntMesh) -> list[str]:
        seen = learnt.relations.get(way.relation)
        if seen is None:
            return describe_routes(way, self.query.graph)
        each = zip(seen.shares, seen.route_seconds, strict=True)
        notes = [f"{share:.0%} of the rows, {_micros(seconds)} each" for share, seconds in each]
        priced = f"{_micros(seen.seconds)} a row, with one route {_micros(seen.single_seconds)}"
        return [*describe_routes(way, self.query.graph, notes), f"    {priced}; {seen.reason}"]

    def _bound(self) -> logical.LogicalPlan:
        return cql.bind(self._text, self._catalog, allow_unbounded=self._allow_unbounded)


def _bounds(choice: Choice) -> list[str]:
    """Describes the bounds of rates and selectivities between which the plan stays the best, if it is the best."""
    plan = first_plan(choice) if isinstance(choice.answer, Proposal) else None
    bounds = () if plan is None or isinstance(plan, Mesh) else validity(choice.problem, unshared(plan))
    return ["\n  ".join(["best while", *map(str, bounds)])] if bounds else []


FillSlots: TypeAlias = Callable[[Partitioning], FirstTable]
"""Assigns the groups of a grid to slots."""


def explain_queries(
    queries: Mapping[str, Explanation],
    stage: str,
    chosen: Callable[[], RunChoice],
    fill: FillSlots = first_table,
) -> str:
    """Returns one stage of each query and of those that they read; several queries begin with what they share.

    `chosen` returns the plans and is called only for stages that need them; `fill` assigns partition groups to slots.
    """
    every = with_inputs(queries)
    texts = {name: each.text(stage, partial(_choice_of, chosen, name)) for name, each in every.items()}
    whole = set_of({name: each.query for name, each in queries.items()})
    spread = _spread(whole, [chosen().as_run[name] for name in every], fill) if stage == "choice" else []
    if [*texts] == [ALONE]:
        parts = [texts[ALONE], *spread]
    else:
        titled = (f"{_head(name, every[name])}\n{text}" for name, text in texts.items())
        parts = [describe_set(whole), *spread, *titled]
    if stage == "choice" and (allocation := chosen().allocation) is not None:
        parts.append(str(allocation))
    if stage == "choice" and (joint := chosen().joint) is not None:
        parts.append(explain_joint(joint))
    return "\n\n".join(parts)


def _choice_of(chosen: Callable[[], RunChoice], name: str) -> Choice:
    return chosen().as_run[name]


def _head(name: str, query: Explanation) -> str:
    """Returns the headline of a query; a subquery, whose name the user did not write, has its text below."""
    head = f"== {name or 'the query'} =="
    return f"{head}\n{' '.join(query.query.text.split())}" if is_subquery(name) else head


def with_inputs(queries: Mapping[str, Explanation]) -> dict[str, Explanation]:
    """Returns the queries and all that they read, in the order of their names."""
    found = dict(queries)
    waiting = list(queries.values())
    while waiting:
        for name, each in waiting.pop().inputs.items():
            if name not in found:
                found[name] = each
                waiting.append(each)
    return dict(sorted(found.items()))


def _spread(queries: QuerySet, choices: Sequence[Choice], fill: FillSlots) -> list[str]:
    """Describes how rows are spread over slots, if there are several."""
    slots = choices[0].budget.slots
    if slots == 1:
        return []
    rates: dict[str, float] = {}
    for choice in choices:
        for name, rate in zip(choice.estimates.names, choice.estimates.rates, strict=True):
            rates[name] = max(rate, rates.get(name, 0.0))
    return [describe_grid(fill(partitioning_of(queries, slots, shared_traffic(choices))), queries.graph, rates)]


def explain_joint(joint: JointChoice) -> str:
    """Returns the joint choice of a set of queries as text: shared joins, their savings, and the set's resources."""
    lines = ["== together ==", *shared_lines(joint)]
    if not joint.shared:
        lines.append("no join is shared")
    lines += [f"  not shared {text}: {reason}" for text, reason in joint.refused.items()]
    for name, plan in sorted(joint.plans.items()):
        cost = joint.costs[name]
        lines.append(f"plan of {name}: {plan}, {cost.cpu:.3g} cores and {size_text(cost.memory)} for itself")
    cpu, memory = joint.budget.total_cpu, joint.budget.total_memory
    limits = [f"{cpu:.3g} cores"] if cpu < inf else []
    limits += [size_text(memory)] if memory < inf else []
    allowed = f", of {' and '.join(limits)} allowed" if limits else ""
    lines.append(f"all queries need {joint.cost.cpu:.3g} cores, {size_text(joint.cost.memory)}{allowed}")
    for name in joint.unfair:
        lines.append(f"the limits leave '{name}' a plan of more than {FAIR:g} times the CPU of its best one")
    return "\n".join(lines)


def choice_svg(
    query: Query,
    choice: Choice,
    routes: Mapping[tuple[str, int], RouteNote] = MappingProxyType({}),
) -> str:
    """Draws the plan with its rates and state sizes, and below it all candidates by CPU and memory.

    `routes` replace the sample's figures of a mesh's routes, by relation and number.
    """
    plan = first_plan(choice) if isinstance(choice.answer, Proposal) else choice.answer.best
    dots = [_dot(candidate) for candidate in choice.answer.considered]
    if choice.mesh is not None and choice.mesh.cost is not None:
        dots = _with_mesh(dots, choice.mesh, choice.mesh.cost)
    limits = choice.budget.total_cpu, choice.budget.total_memory
    below = plane(dots, cpu_limit=limits[0], memory_limit=limits[1], memory_text=size_text)
    if isinstance(plan, Mesh):
        learnt = choice.mesh.learnt if choice.mesh is not None else None
        return mesh_svg(query, plan, routes=routes or _route_notes(learnt), below=[below])
    return plan_svg(query, plan, notes=plan_notes(choice), below=[below])


def run_svg(queries: Mapping[str, Query], chosen: RunChoice) -> str:
    """Draws the plan of a single query with all plans by CPU and memory, or the plans of several queries."""
    if ALONE in queries:
        return choice_svg(queries[ALONE], chosen.as_run[ALONE])
    return queries_svg(queries, chosen.plans, chosen.joint)


def queries_svg(queries: Mapping[str, Query], plans: Mapping[str, Plan], joint: JointChoice | None = None) -> str:
    """Draws the plans of queries that run together, one below the other; shared joins name their users.

    A mesh is drawn as the joins of all its relations; `choice_svg` draws its routes.
    """
    shown = []
    users = {} if joint is None else {each.shared: each for each in joint.shared}
    for name, query in queries.items():
        plan = plans[name]
        drawn = mjoin(query.graph.names) if isinstance(plan, Mesh) else plan
        notes = {} if joint is None or name not in joint.costs else {OUTPUT: _cost_text(joint.costs[name])}
        for part in shared_parts(drawn):
            if part in users:
                saved = f"saves {users[part].saved_cpu:.3g} cores"
                notes[part.join.shape] = f"once for {', '.join(users[part].users)}; {saved}"
        heading = f"{name}: a mesh over these relations" if isinstance(plan, Mesh) else f"{name}: plan {plan}"
        shown.append((query, ShownPlan(drawn, heading, notes)))
    return set_svg(shown)


def _cost_text(cost: Resources) -> str:
    return f"{cost.cpu:.2g} cores and {size_text(cost.memory)} of its own"


def plan_notes(choice: Choice) -> dict[str, str]:
    """Returns the model's estimates for each part of the chosen plan: rows per second, rows and bytes of its state."""
    plan, cost = _plan(choice), choice.answer.cost
    model = choice.model.of_plan(plan)
    sizes = model.state_sizes(plan)
    notes = {OUTPUT: f"{_count(cost.rate)} rows/s; {cost.cpu:.2g} cores, {size_text(cost.memory)}"}
    for part in subplans(plan):
        mask = model.estimates.mask(part.relations)
        if part != plan:
            kept = f"state {_count(model.held(mask))} rows, {size_text(sizes[mask])}"
            # Rows of tables are loaded, they do not arrive.
            is_still = all(window >= EVER for window in model.estimates.windows_of(mask))
            notes[shape(part)] = kept if is_still else f"{_count(model.births(mask))} rows/s\n{kept}"
    return notes


def _plan(choice: Choice) -> PhysicalPlan:
    match choice.answer:
        case Proposal(plan=plan):
            return plan
        case Infeasible(best=best):
            return best


def _route_notes(learnt: LearntMesh | None) -> dict[tuple[str, int], RouteNote]:
    """Returns the sample's figures of routes: the fraction of rows on each, and the cost per row."""
    if learnt is None:
        return {}
    return {
        (name, number): RouteNote(share, f"{_micros(seconds)} a row")
        for name, seen in learnt.relations.items()
        for number, (share, seconds) in enumerate(zip(seen.shares, seen.route_seconds, strict=True))
    }


def _with_mesh(dots: Sequence[Dot], offer: MeshOffer, cost: Resources) -> list[Dot]:
    """Adds the dot of a mesh; if the mesh is taken, it is the chosen one."""
    text = f"{offer.mesh}: {cost.cpu:.3g} cores, {size_text(cost.memory)}; {offer.reason}"
    mesh = Dot(cost.cpu, cost.memory, "mesh", "chosen" if offer.is_taken else "lost", text)
    rivals = [replace(dot, standing="lost") if offer.is_taken and dot.standing == "chosen" else dot for dot in dots]
    return [mesh, *rivals]


def _dot(candidate: Candidate) -> Dot:
    plan, cost = candidate.plan, candidate.cost
    text = f"{plan}: {cost.cpu:.3g} cores, {size_text(cost.memory)}; {candidate.reason}"
    return Dot(cost.cpu, cost.memory, shape(plan), candidate.standing, text)


def _micros(seconds: float) -> str:
    return f"{1e6 * seconds:.3g} µs"


def _count(rows: float) -> str:
    """Formats a number of rows.

    >>> _count(12_345.6), _count(0.25)
    ('12,346', '0.25')
    """
    return f"{rows:,.0f}" if rows >= 10 else f"{rows:.2g}"
