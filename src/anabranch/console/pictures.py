"""The picture of a running plan: the one that `explain` draws, annotated with figures of the last minute.

The colour of a join is its share of the lookups: probing rows plus visited rows. The engine does not time individual
joins, so this share approximates time. In the page, the picture has the page's colours, light or dark.
"""

from __future__ import annotations

import colorsys
import re
from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.console.picture import OUTPUT, RouteNote, mesh_svg, plan_svg
from anabranch.errors import PlanError
from anabranch.lang.sizes import size_text
from anabranch.plan.mesh import Mesh, Plan, parse_plan
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, shape, subplans
from anabranch.plan.query import Query
from anabranch.plan.query_set import QuerySet
from anabranch.stats.mesh.routes import merge_routes
from anabranch.stats.step import StepStatistics, in_turn

_OF_PAGE = {
    "#fcfbf8": "var(--card)",
    "#ffffff": "var(--card)",
    "#1f2a33": "var(--ink)",
    "#66737d": "var(--soft)",
    "#f2a77c": "var(--hot)",
    "#9a3b1f": "var(--note)",
}
"""The colours that the page has, too."""
_DARKEST, _LIGHTEST = 0.15, 0.93
"""The lightness of a dark page's cards, and of its text."""


def live_picture(queries: QuerySet, name: str, recent: Sequence[Mapping[str, Any]], seconds: float) -> str:
    """Draws the plan that a query has in the latest of some batches; if slots differ, the plan of most slots.

    The figures are those of the batches with these plans, per second of the wall clock; `seconds` is the time of all.
    """
    member = next((member for member in queries.members if member.name == name), queries.members[0])
    batches = [each["adaptive"] for each in recent]
    entries = [each.get("queries", {}).get(member.name, each) for each in batches]
    plans = entries[-1]["plans"]
    plan = parse_plan(max(set(plans), key=plans.count))
    alike = [number for number, entry in enumerate(entries) if entry["plans"] == plans]
    spent = seconds * len(alike) / len(entries)
    step = in_turn(StepStatistics.from_json(entries[number]["statistics"]) for number in alike)
    results = f"{_rate(sum(entries[number]['rowsOut'] for number in alike), spent)} results/s"
    if isinstance(plan, Mesh):
        return mesh_svg(member.query, plan, routes=_route_notes(step, spent), notes={OUTPUT: results})
    streams = {each.name: each.stream for each in member.query.graph.streamed if each.stream in batches[-1]["rowsIn"]}
    delivered = {name: sum(batches[number]["rowsIn"][stream] for number in alike) for name, stream in streams.items()}
    notes = {OUTPUT: results, **_notes(member.query, plan, step, {**step.rows_in, **delivered}, spent)}
    return plan_svg(member.query, plan, notes=notes, heat=_heat(plan, step))


def in_page_colours(picture: str) -> str:
    """Replaces the colours of a picture: the page's own where it has them, else a lighter one on a dark page.

    The lightness of a colour is mirrored, so that pale boxes with dark frames become dark boxes with pale frames.
    """
    return re.sub(r'\b(fill|stroke)="(#[0-9a-f]{6})"', lambda found: f'{found[1]}="{_page_colour(found[2])}"', picture)


def _page_colour(colour: str) -> str:
    """Returns a colour of the page, or one that depends on the colour scheme.

    >>> _page_colour("#1f2a33"), _page_colour("#cccccc")
    ('var(--ink)', 'light-dark(#cccccc, #4e4e4e)')
    """
    if colour in _OF_PAGE:
        return _OF_PAGE[colour]
    hue, light, strong = colorsys.rgb_to_hls(*(int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)))
    mirrored = colorsys.hls_to_rgb(hue, _DARKEST + (1 - light) * (_LIGHTEST - _DARKEST), strong)
    return f"light-dark({colour}, #{''.join(f'{round(255 * part):02x}' for part in mirrored)})"


def plan_picture(queries: QuerySet, name: str, text: str) -> str:
    """Draws any plan of a query, without figures."""
    member = next((member for member in queries.members if member.name == name), queries.members[0])
    plan: Plan = parse_plan(text)
    if set(plan.relations) != set(member.query.graph.names):
        raise PlanError(f"'{text}' is not a plan of this query", hint="name each relation of the query once")
    return _plain_picture(member.query, plan)


def _plain_picture(query: Query, plan: Plan) -> str:
    return mesh_svg(query, plan) if isinstance(plan, Mesh) else plan_svg(query, plan)


def _notes(
    query: Query, plan: PhysicalPlan, step: StepStatistics, rows_in: Mapping[str, int], seconds: float
) -> dict[str, str]:
    """Returns the figures of each part of a plan; `rows_in` is keyed by relation."""
    states = {state.state: state for state in step.states}
    notes = {}
    beside = [Leaf(name) for side in query.sides for name in side.names]
    for part in [*subplans(plan), *beside]:
        name, lines = shape(part), []
        if name in rows_in:
            lines.append(f"{_rate(rows_in[name], seconds)} rows/s")
        if isinstance(part, JoinNode):
            probes = [probe for probe in step.probes if probe.join == name]
            looked, kept = sum(probe.probes for probe in probes), sum(probe.kept for probe in probes)
            pairs = sum(probe.state_rows for probe in probes)
            lines.append(f"{_rate(looked, seconds)} lookups/s, {_rate(kept, seconds)} kept")
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


def _route_notes(step: StepStatistics, seconds: float) -> dict[tuple[str, int], RouteNote]:
    routes = merge_routes(step.routes)
    rows = {each.relation: 0 for each in routes}
    for each in routes:
        rows[each.relation] += each.rows
    return {
        (each.relation, each.route): RouteNote(
            each.rows / rows[each.relation] if rows[each.relation] else 0.0,
            f"{_rate(each.rows, seconds)} rows/s, {_rate(each.results, seconds)} results/s",
        )
        for each in routes
    }


def _rate(count: float, seconds: float) -> str:
    """Formats a count per second.

    >>> _rate(90, 60), _rate(1_234_567, 60)
    ('1.5', '20,576')
    """
    rate = count / seconds
    return f"{rate:,.0f}" if rate >= 100 or rate == 0 else f"{rate:.2g}"
