"""Prices the running plan from its operation counts, in the units of the cost model.

The model estimates the cost of a plan from rates and selectivities that it assumes independent. The engine counts the
operations that the plan performed: probes, candidates, matches, checks, rows that entered states. Both use the same
unit costs, so they are comparable, and measurements are always attributed to the plan that ran. Meshes are priced in
the same way, because their probes are counted like those of any plan.

Limit: the counts of a mesh do not include the number of relations of each match; half of them on average are assumed.
Merged inputs are priced by the model alone, because merging has no counts.
"""

from __future__ import annotations

from anabranch.cost.resources import ResourceModel, explicit_orders
from anabranch.plan.join_graph import JoinGraph, is_selection
from anabranch.plan.mesh import Mesh, checked_relation, is_existence_probe, is_probe
from anabranch.plan.physical import JoinNode, PhysicalPlan, nodes, probe_order, shape
from anabranch.plan.selections import checked_by_probe, deferred_thetas
from anabranch.stats.step import StepStatistics


def counted_cpu(
    plan: PhysicalPlan | Mesh,
    step: StepStatistics,
    batches: int,
    seconds: float,
    model: ResourceModel,
    graph: JoinGraph,
) -> float:
    """Returns the cores that a plan used in some batches, whose counts are summed in `step` and cover `seconds`."""
    units = model.units
    base = sum(step.rows_in.values()) * (units.insert + units.delete) + step.rows_out * units.emit
    return base / seconds + counted_joins(plan, step, batches, seconds, model, graph)


def counted_joins(
    plan: PhysicalPlan | Mesh,
    step: StepStatistics,
    batches: int,
    seconds: float,
    model: ResourceModel,
    graph: JoinGraph,
) -> float:
    """Returns the cores that the joins of a plan used, without base states and results, which every plan has."""
    units = model.units
    probing = sum(probe.probes * units.probe + probe.visited * units.compare for probe in step.probes)
    found = _of_mesh(plan, step, model, graph) if isinstance(plan, Mesh) else _of_plan(plan, step, model, graph)
    matched, calls = found
    entered = {state.state: state.inserted for state in step.states}
    joined = sum(count for name, count in entered.items() if name not in step.rows_in)
    keeping = joined * (units.insert + units.insert_joined + units.delete)
    linking = units.link * sum(entered.get(name, 0) * count for name, count in _links(plan, model, graph).items())
    return (probing + matched + keeping + linking + calls * batches * units.call) / seconds


def _of_plan(plan: PhysicalPlan, step: StepStatistics, model: ResourceModel, graph: JoinGraph) -> tuple[float, int]:
    """Returns the cost of the matches of a plan, and the calls per batch."""
    units, thetas, deferred = model.units, model.estimates.thetas, deferred_thetas(plan)
    joins = {node.shape: node for node in nodes(plan)}
    total = 0.0
    for probe in step.probes:
        if (node := joins.get(probe.join)) is None:
            continue
        bound, target = _met(node, probe.origin, probe.target, graph)
        checked = sum(thetas[at].weight for at in checked_by_probe(node, bound, target, graph, deferred))
        total += probe.matches * (units.match + units.match_relation * len(bound | target) + units.check * checked)
    return total, sum(len(node.inputs) ** 2 for node in nodes(plan))


def _of_mesh(mesh: Mesh, step: StepStatistics, model: ResourceModel, graph: JoinGraph) -> tuple[float, int]:
    units, relations = model.units, len(graph.names)
    each = units.match + units.match_relation * (relations + 2) / 2
    calls = sum(len(route.operators) for way in mesh.ways for route in way.routes) + relations
    asked_rows = sum(probe.kept for probe in step.probes if is_existence_probe(probe.target))
    passing = asked_rows * (units.match + units.match_relation)
    return sum(probe.matches for probe in step.probes) * each + passing, calls


def _links(plan: PhysicalPlan | Mesh, model: ResourceModel, graph: JoinGraph) -> dict[str, int]:
    """Returns how many indexes a plan keeps over each state, by the name of the state."""
    if not isinstance(plan, Mesh):
        found: dict[str, int] = {}
        for node in nodes(plan):
            blocks = [model.estimates.mask(child.relations) for child in node.inputs]
            counts = model.index_counts(blocks, explicit_orders(node))
            for child, count in zip(node.inputs, counts, strict=True):
                found[shape(child)] = found.get(shape(child), 0) + count
        return found
    wanted: dict[str, set[int]] = {name: set() for name in graph.names}
    for way in plan.ways:
        for route in way.routes:
            bound = model.estimates.mask((way.relation,))
            for name in route.operators:
                if is_selection(name):
                    continue
                target = checked_relation(name) if is_existence_probe(name) else name
                block = model.estimates.mask((target,))
                wanted[target].add(model.index(bound, block))
                bound |= block if is_probe(name) else 0
    return {name: max(1, len(indexes)) for name, indexes in wanted.items()}


def _met(node: JoinNode, origin: str, target: str, graph: JoinGraph) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the relations bound before a lookup of a join, and those of its target."""
    shapes = [shape(child) for child in node.inputs]
    start, end = shapes.index(origin), shapes.index(target)
    order = probe_order(node, start, graph)
    before = (start, *order[: order.index(end)])
    bound = frozenset(name for position in before for name in node.inputs[position].relations)
    return bound, frozenset(node.inputs[end].relations)
