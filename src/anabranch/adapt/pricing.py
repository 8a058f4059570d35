"""What it takes to migrate from one plan to another, by this engine's own unit costs.

*Moving state* computes the states that only the new plan has: all live parts of the smallest input look up the others
once, and what they find enters the state; a state that differs only in what was checked is copied through the checks,
and new indexes are built over states that stay. *Parallel track* runs the new joins beside the old ones until the last
old row has left its window. Where no state is lacking there is nothing to compute and nothing to wait for. (Zhu 2006,
section 12.3, prices both for nested loops; the shape of the formulas is kept, the operations are those of the engine.)
"""

from __future__ import annotations

from anabranch.adapt.gate import Price
from anabranch.cost.resources import ResourceModel, with_default_orders
from anabranch.errors import MigrationError
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.migration import FilteredState, check_strategy, match_states
from anabranch.plan.physical import JoinNode, PhysicalPlan, nodes


def prices(graph: JoinGraph, old: PhysicalPlan, new: PhysicalPlan, model: ResourceModel) -> tuple[Price, ...]:
    """The ways from the old plan to the new one that can serve, the cheapest first."""
    matching = match_states(old, new, graph.thetas)
    before, model = model.of_plan(old), model.of_plan(new)
    if matching.is_trivial:
        return (Price("none", _indexing(graph, old, new, model), 0.0, 0.0),)
    filtered = {state.new: state for state in matching.filtered}
    made = [node for node in nodes(new) if node.shape in matching.recomputed or node.shape in filtered]
    memory = sum(model.state_bytes(model.estimates.mask(node.relations)) for node in made)
    computing = _indexing(graph, old, new, model)
    for node in made:
        from_old = filtered.get(node.shape)
        computing += _computing(node, model) if from_old is None else _filtering(node, from_old, before)
    ways = [Price("moving-state", computing, memory, computing)]
    if not matching.recomputed:
        return tuple(ways)
    try:
        check_strategy(old, new, graph, "parallel-track")
    except MigrationError:
        return tuple(ways)
    window = max(model.estimates.windows)
    joining = model.price(with_default_orders(new, graph)).cpu - model.base.cpu
    ways.append(Price("parallel-track", window * joining, memory, window))
    return tuple(sorted(ways, key=lambda way: way.cpu))


def _computing(node: JoinNode, model: ResourceModel) -> float:
    """Seconds of one core to fill the state of a join whose inputs are there."""
    blocks = sorted((model.estimates.mask(child.relations) for child in node.inputs), key=model.held)
    bound, total = blocks[0], 0.0
    rest = blocks[1:]
    while rest:
        following = next((block for block in rest if model.connected(bound, block)), rest[0])
        total += model.step(bound, following)
        bound |= following
        rest.remove(following)
    return total + model.held(bound) * (model.units.insert + model.units.insert_joined + model.units.link)


def _filtering(node: JoinNode, state: FilteredState, before: ResourceModel) -> float:
    """Seconds of one core to copy what passes of a state of the old plan, whose model is given."""
    units = before.units
    each = units.check * len(state.predicates) + units.insert + units.insert_joined + units.link
    return before.held(before.estimates.mask(node.relations)) * each


def _indexing(graph: JoinGraph, old: PhysicalPlan, new: PhysicalPlan, model: ResourceModel) -> float:
    """Seconds of one core to build the indexes that only the new plan looks into, over states that both have."""
    before, after = _indexes(graph, old, model), _indexes(graph, new, model)
    kept = {mask for mask, _ in before} | {1 << position for position in range(len(graph.names))}
    return sum(model.held(mask) * model.units.link for mask, index in after - before if mask in kept)


def _indexes(graph: JoinGraph, plan: PhysicalPlan, model: ResourceModel) -> set[tuple[int, int]]:
    """The indexes of a plan, each as the set of relations it stands over and the number of what it looks up by."""
    found = set()
    for node in nodes(with_default_orders(plan, graph)):
        blocks = [model.estimates.mask(child.relations) for child in node.inputs]
        orders = ((1,), (0,)) if len(blocks) == 2 else node.orders
        for start, order in enumerate(orders):
            bound = blocks[start]
            for position in order:
                found.add((blocks[position], model.index(bound, blocks[position])))
                bound |= blocks[position]
    return found
