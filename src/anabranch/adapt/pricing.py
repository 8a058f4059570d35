"""Prices a migration from one plan to another, by this engine's own unit costs.

*Moving state* computes the states that only the new plan has: all live parts of the smallest input look up the others
once, and what they find enters the state; the rows of an input that is merged find their groups; a state that differs
only in what was checked is copied through the checks, and new indexes are built over states that stay. *Parallel track*
runs the new joins beside the old ones until the last old row has left its window. Where no state is lacking there is
nothing to compute and nothing to wait for. (Zhu 2006, section 12.3, prices both for nested loops; the shape of the
formulas is kept, the operations are those of the engine.)
"""

from __future__ import annotations

from anabranch.adapt.gate import Price
from anabranch.cost.resources import ResourceModel, with_default_orders
from anabranch.errors import MigrationError
from anabranch.plan.difference import FilteredState, check_strategy, match_states
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import JoinNode, PhysicalPlan, PreGroup, kept, nodes


def prices(graph: JoinGraph, old: PhysicalPlan, new: PhysicalPlan, model: ResourceModel) -> tuple[Price, ...]:
    """The ways from the old plan to the new one that can serve, the cheapest first."""
    matching = match_states(old, new, graph.thetas)
    before, model = model.of_plan(old), model.of_plan(new)
    if matching.is_trivial:
        return (Price("none", _indexing(graph, old, new, model), 0.0, 0.0),)
    filtered = {state.new: state for state in matching.filtered}
    made = [state for state in kept(new) if state.shape in matching.recomputed or state.shape in filtered]
    memory = sum(model.joined_bytes(model.estimates.mask(state.relations)) for state in made)
    computing = _indexing(graph, old, new, model)
    for state in made:
        from_old = filtered.get(state.shape)
        computing += _computing(state, model) if from_old is None else _filtering(state, from_old, before, model)
    ways = [Price("moving-state", computing, memory, computing)]
    if not matching.recomputed:
        return tuple(ways)
    try:
        check_strategy(old, new, graph, "parallel-track")
    except MigrationError:
        return tuple(ways)
    window = max(model.estimates.windows)
    joining = model.price(with_default_orders(new, graph)).cpu - model.base.cpu
    if model.shares:
        # While the old joins make the results too, merging saves nothing on them.
        joining += model.emitting
    ways.append(Price("parallel-track", window * joining, memory, window))
    return tuple(sorted(ways, key=lambda way: way.cpu))


def _computing(state: JoinNode | PreGroup, model: ResourceModel) -> float:
    """Seconds of one core to fill the state of a join, or of a merged input, from what is there."""
    units, mask = model.units, model.estimates.mask(state.relations)
    entering = model.held(mask) * model.share(mask) * (units.insert + units.insert_joined + units.link)
    match state:
        case JoinNode():
            return _joining(state, model) + entering
        case PreGroup(input=below):
            first = _joining(below, model) if isinstance(below, JoinNode) else 0.0
            inside = next(share.inside for share in model.shares if share.mask == mask)
            return first + model.held(mask) * inside * units.group + entering


def _joining(node: JoinNode, model: ResourceModel) -> float:
    """Seconds of one core to find all combinations of the inputs of a join."""
    blocks = sorted((model.estimates.mask(child.relations) for child in node.inputs), key=model.held)
    bound, total = blocks[0], 0.0
    rest = blocks[1:]
    while rest:
        following = next((block for block in rest if model.connected(bound, block)), rest[0])
        total += model.step(bound, following)
        bound |= following
        rest.remove(following)
    return total


def _filtering(state: JoinNode | PreGroup, source: FilteredState, before: ResourceModel, model: ResourceModel) -> float:
    """Seconds of one core to check what a state of the old plan holds, and to keep what passes for the new one."""
    mask, units = model.estimates.mask(state.relations), model.units
    checking = before.held(mask) * units.check * len(source.predicates)
    return checking + model.held(mask) * (units.insert + units.insert_joined + units.link)


def _indexing(graph: JoinGraph, old: PhysicalPlan, new: PhysicalPlan, model: ResourceModel) -> float:
    """Seconds of one core to build the indexes that only the new plan looks into, over states that both have."""
    before, after = _indexes(graph, old, model), _indexes(graph, new, model)
    there = {mask for mask, _ in before} | {1 << position for position in range(len(graph.names))}
    return sum(model.held(mask) * model.units.link for mask, index in after - before if mask in there)


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
