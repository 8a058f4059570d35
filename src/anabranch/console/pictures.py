"""The picture of a running plan: the one that `explain` draws, annotated with figures of the latest batch.

The colour of a join is its share of the batch's lookups: probing rows plus visited rows. The engine does not time
individual joins, so this share approximates time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.console.picture import OUTPUT, RouteNote, mesh_svg, plan_svg
from anabranch.errors import PlanError
from anabranch.lang.sizes import size_text
from anabranch.plan.mesh import Mesh, Plan, parse_plan
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, shape, subplans
from anabranch.plan.query import Query
from anabranch.plan.query_set import QuerySet
from anabranch.stats.mesh.routes import merge_routes
from anabranch.stats.step import StepStatistics


def live_picture(queries: QuerySet, name: str, progress: Mapping[str, Any]) -> str:
    """Draws the plan of a query in the latest batch; if slots differ, the plan of most slots."""
    member = next((member for member in queries.members if member.name == name), queries.members[0])
    ours = progress["adaptive"]
    entry = ours.get("queries", {}).get(member.name, ours)
    plans = entry["plans"]
    plan = parse_plan(max(set(plans), key=plans.count))
    step = StepStatistics.from_json(entry["statistics"])
    if isinstance(plan, Mesh):
        return mesh_svg(member.query, plan, routes=_route_notes(step), notes={OUTPUT: f"{entry['rowsOut']:,} results"})
    streams = {each.name: each.stream for each in member.query.graph.streamed if each.stream in ours["rowsIn"]}
    rows_in = {**step.rows_in, **{name: ours["rowsIn"][stream] for name, stream in streams.items()}}
    notes = {OUTPUT: f"{entry['rowsOut']:,} results in the latest batch", **_notes(member.query, plan, step, rows_in)}
    return plan_svg(member.query, plan, notes=notes, heat=_heat(plan, step))


def plan_picture(queries: QuerySet, name: str, text: str) -> str:
    """Draws any plan of a query, without figures."""
    member = next((member for member in queries.members if member.name == name), queries.members[0])
    plan: Plan = parse_plan(text)
    if set(plan.relations) != set(member.query.graph.names):
        raise PlanError(f"'{text}' is not a plan of this query", hint="name each relation of the query once")
    return _plain_picture(member.query, plan)


def _plain_picture(query: Query, plan: Plan) -> str:
    return mesh_svg(query, plan) if isinstance(plan, Mesh) else plan_svg(query, plan)


def _notes(query: Query, plan: PhysicalPlan, step: StepStatistics, rows_in: Mapping[str, int]) -> dict[str, str]:
    """Returns the figures of each part of a plan; `rows_in` is keyed by relation."""
    states = {state.state: state for state in step.states}
    notes = {}
    beside = [Leaf(name) for side in query.sides for name in side.names]
    for part in [*subplans(plan), *beside]:
        name, lines = shape(part), []
        if name in rows_in:
            lines.append(f"{rows_in[name]:,} rows in")
        if isinstance(part, JoinNode):
            probes = [probe for probe in step.probes if probe.join == name]
            looked, kept = sum(probe.probes for probe in probes), sum(probe.kept for probe in probes)
            pairs = sum(probe.state_rows for probe in probes)
            lines.append(f"{looked:,} lookups, {kept:,} kept")
            if pairs:
                lines.append(f"selectivity {kept / pairs:.2g}")
        if name in states:
            lines.append(f"state {states[name].rows:,} rows, {size_text(states[name].bytes)}")
        if lines:
            notes[name] = "\n".join(lines)
    return notes


def _heat(plan: PhysicalPlan, step: StepStatistics) -> dict[str, float]:
    """Returns the share of each join in the lookups of the batch."""
    joins = {shape(part) for part in subplans(plan) if isinstance(part, JoinNode)}
    work = dict.fromkeys(joins, 0)
    for probe in step.probes:
        if probe.join in work:
            work[probe.join] += probe.probes + probe.visited
    total = sum(work.values())
    return {name: share / total for name, share in work.items()} if total else {}


def _route_notes(step: StepStatistics) -> dict[tuple[str, int], RouteNote]:
    routes = merge_routes(step.routes)
    rows = {each.relation: 0 for each in routes}
    for each in routes:
        rows[each.relation] += each.rows
    return {
        (each.relation, each.route): RouteNote(
            each.rows / rows[each.relation] if rows[each.relation] else 0.0,
            f"{each.rows:,} rows, {each.results:,} results",
        )
        for each in routes
    }
