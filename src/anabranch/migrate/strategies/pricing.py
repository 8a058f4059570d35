"""Prices the work of a migration between two plans, in the engine's unit costs.

*Moving state* computes the states that only the new plan has: all live rows of the smallest input probe the others
once, and the matches enter the state. Rows of a merged input are grouped, a state that differs only in its checks is
copied through the checks, and new indexes are built over states that are kept. *Parallel track* runs the new joins of
the boxes in which the plans differ in addition to the old ones, until the last old row has left its window. If no state
is missing, there is nothing to compute and nothing to wait for. (Zhu 2006, section 12.3, prices both for nested loops;
the form of the formulas is kept, the operations are those of the engine.)
"""

from __future__ import annotations

from functools import cached_property

from anabranch.cost.resources import ResourceModel, with_default_orders
from anabranch.errors import MigrationError
from anabranch.migrate.strategies.registry import strategies
from anabranch.migrate.strategies.strategy import Price
from anabranch.plan.difference import FilteredState, boxes, match_states
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import InputOperator, JoinNode, PhysicalPlan, kept, nodes


class Difference:
    """Two plans of a query, and the work to get from the old one to the new one."""

    def __init__(self, graph: JoinGraph, old: PhysicalPlan, new: PhysicalPlan, model: ResourceModel) -> None:
        self.graph = graph
        self.old = old
        self.new = new
        self.matching = match_states(old, new, graph.thetas)
        self._before = model.of_plan(old)
        self._model = model.of_plan(new)

    @cached_property
    def indexing(self) -> float:
        """Seconds of one core to build the indexes that only the new plan uses, over states that both have."""
        return _indexing(self.graph, self.old, self.new, self._model)

    @cached_property
    def computing(self) -> float:
        """Seconds of one core to compute the states that the old plan lacks."""
        filtered = {state.new: state for state in self.matching.filtered}
        seconds = 0.0
        for state in self._made:
            source = filtered.get(state.shape)
            if source is None:
                seconds += _computing(state, self._model)
            else:
                seconds += _filtering(state, source, self._before, self._model)
        return seconds

    @cached_property
    def memory(self) -> float:
        """Bytes of the states that the old plan lacks."""
        model = self._model
        return sum(model.joined_bytes(model.estimates.mask(state.relations)) for state in self._made)

    @cached_property
    def joining(self) -> float:
        """Cores for the joins of the new plan in addition to those of the old one: only in boxes do both run."""
        model, new = self._model, with_default_orders(self.new, self.graph)
        if not model.shares:
            twice = {node.shape for box in boxes(self.old, self.new, self.graph.thetas) for node in box.new}
            return sum(model.join_cpu(node) for node in nodes(new) if node.shape in twice)
        joining = model.price(new).cpu - model.base.cpu
        # While the old joins also produce the results, merging saves nothing on them.
        return joining + model.emitting if model.shares else joining

    @cached_property
    def running(self) -> float:
        """Cores that the old plan uses."""
        return self._before.price(with_default_orders(self.old, self.graph)).cpu

    @property
    def longest_window(self) -> float:
        """The longest window in seconds of event time."""
        return self._model.estimates.longest_window

    @cached_property
    def _made(self) -> list[JoinNode | InputOperator]:
        lacking = {*self.matching.recomputed, *(state.new for state in self.matching.filtered)}
        return [state for state in kept(self.new) if state.shape in lacking]


def _computing(state: JoinNode | InputOperator, model: ResourceModel) -> float:
    """Returns the seconds of one core to fill the state of a join, or of a merged input, from existing states."""
    units, mask = model.units, model.estimates.mask(state.relations)
    entering = model.held(mask) * model.share(mask) * (units.insert + units.insert_joined + units.link)
    if isinstance(state, JoinNode):
        return _joining(state, model) + entering
    below = state.input
    first = _joining(below, model) if isinstance(below, JoinNode) else 0.0
    inside = next((share.inside for share in model.shares if share.mask == mask), 0.0)
    return first + model.held(mask) * inside * units.group + entering


def _joining(node: JoinNode, model: ResourceModel) -> float:
    """Returns the seconds of one core to find all combinations of the inputs of a join."""
    blocks = sorted((model.estimates.mask(child.relations) for child in node.inputs), key=model.held)
    bound, total = blocks[0], 0.0
    rest = blocks[1:]
    while rest:
        following = next((block for block in rest if model.connected(bound, block)), rest[0])
        total += model.step(bound, following)
        bound |= following
        rest.remove(following)
    return total


def _filtering(
    state: JoinNode | InputOperator, source: FilteredState, before: ResourceModel, model: ResourceModel
) -> float:
    """Returns the seconds of one core to copy a state of the old plan through the checks of the new one."""
    mask, units = model.estimates.mask(state.relations), model.units
    checking = before.held(mask) * units.check * len(source.predicates)
    return checking + model.held(mask) * (units.insert + units.insert_joined + units.link)


def _indexing(graph: JoinGraph, old: PhysicalPlan, new: PhysicalPlan, model: ResourceModel) -> float:
    """Returns the seconds of one core to build the indexes that only the new plan uses, over states that both have."""
    before, after = _indexes(graph, old, model), _indexes(graph, new, model)
    there = {mask for mask, _ in before} | {1 << position for position in range(len(graph.names))}
    return sum(model.held(mask) * model.units.link for mask, index in after - before if mask in there)


def _indexes(graph: JoinGraph, plan: PhysicalPlan, model: ResourceModel) -> set[tuple[int, int]]:
    """Returns the indexes of a plan, each as the set of its state's relations and the number of its lookup key."""
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


def prices(graph: JoinGraph, old: PhysicalPlan, new: PhysicalPlan, model: ResourceModel) -> tuple[Price, ...]:
    """Returns the prices of all strategies that support the change, the cheapest first."""
    difference = Difference(graph, old, new, model)
    found = []
    for strategy in strategies():
        try:
            strategy.check(old, new, graph)
        except MigrationError:
            continue
        price = strategy.price(difference)
        if price is not None:
            found.append(price)
    return tuple(sorted(found, key=lambda way: way.cpu))
