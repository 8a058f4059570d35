"""One plan at work: its joins and intermediate states, over base states that it shares and does not own.

The engine takes new rows one relation after another, always in the order of the join graph. A relation's new rows pass
through every track, and only then become findable in their base state; so several tracks can stand on the same base
rows, and each result is born once in each of them.

Law: what a relation's rows enter in a track lies on their way from the leaf to the root, and what they probe lies
beside it. So nothing that a turn enters can be found in the same turn, and blocks may rise to the root one by one: a
step holds the blocks on one way, whatever the fan-out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from anabranch.engine.batch import Combinations
from anabranch.engine.compile import JoinProgram, compile_plan
from anabranch.engine.meter import Meter
from anabranch.engine.operators.join import State, WindowJoin, code_reader
from anabranch.engine.state.arena import Arena
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.migration import Relations
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan

Way = tuple[tuple[WindowJoin, int], ...]
"""The joins from a relation to the root, each with the input at which its combinations arrive."""


class PlanTrack:
    """The joins of one plan; `number` keeps the names of its arrays apart from those of other tracks.

    `states` are intermediate states to be taken over, by the relations they join; the others start empty.
    """

    def __init__(
        self,
        graph: JoinGraph,
        plan: PhysicalPlan,
        bases: Mapping[str, BaseState],
        arena: Arena,
        meter: Meter,
        number: int = 0,
        states: Mapping[Relations, IntermediateState] | None = None,
    ) -> None:
        self.plan = plan
        self.program = compile_plan(plan, graph)
        self.bases = bases
        for name, base in bases.items():
            base.require(self.program.indexes[name])
        self.intermediates: dict[str, IntermediateState] = {}
        for i, join in enumerate(self.program.joins):
            if join.node is plan:
                continue
            indexes = self.program.indexes[join.node.shape]
            state = (states or {}).get(frozenset(join.node.relations))
            if state is None:
                state = IntermediateState(arena, f"track{number}.join{i}", join.node.relations, indexes)
            else:
                state.require(indexes, code_reader(bases))
            self.intermediates[join.node.shape] = state
        joins = {join.node.shape: self.join(join, meter) for join in self.program.joins}
        self._ways = {name: way_to_root(plan, name, joins) for name in graph.names}

    def join(self, program: JoinProgram, meter: Meter, since: tuple[int, ...] = ()) -> WindowJoin:
        """One join of the plan over this track's states."""
        return WindowJoin(program, tuple(self.state(child) for child in program.node.inputs), self.bases, meter, since)

    def state(self, plan: PhysicalPlan) -> State:
        """The state of an input of some join."""
        return self.bases[plan.relation] if isinstance(plan, Leaf) else self.intermediates[plan.shape]

    @property
    def states(self) -> dict[Relations, IntermediateState]:
        """The intermediate states, by the relations they join."""
        return {frozenset(state.relations): state for state in self.intermediates.values()}

    def layout(self) -> dict[str, Any]:
        """What is needed, beside the arena's contents, to find the states again."""
        return {
            "plan": str(self.plan),
            "intermediates": {name: state.layout() for name, state in self.intermediates.items()},
        }

    def retain_indexes(self) -> None:
        """Takes back every index, of base and intermediate states, that this plan does not look into."""
        for name, base in self.bases.items():
            base.retain(self.program.indexes[name])
        for name, state in self.intermediates.items():
            state.retain(self.program.indexes[name])

    def take(self, relation: str, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        """New rows of a relation enter every state on their way; yields what they finish, if that is wanted."""
        yield from rise(self._ways[relation], found, wanted=wanted)

    def drop(self, floors: Mapping[str, int], meter: Meter) -> None:
        """Drops combinations that no row still to come can complete."""
        for name, intermediate in self.intermediates.items():
            meter.dropped(name, intermediate.drop(least_outside(floors, intermediate.relations)))


def least_outside(floors: Mapping[str, int], relations: Iterable[str]) -> int:
    """The event time below which a deadline makes combinations of some relations, but not all, useless."""
    inside = frozenset(relations)
    return min(floor for other, floor in floors.items() if other not in inside)


def way_to_root(plan: PhysicalPlan, relation: str, joins: Mapping[str, WindowJoin]) -> Way:
    if not isinstance(plan, JoinNode):
        return ()
    position = next(i for i, child in enumerate(plan.inputs) if relation in child.relations)
    return (*way_to_root(plan.inputs[position], relation, joins), (joins[plan.shape], position))


def rise(way: Way, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
    """What combinations become at the end of a way, after they have entered every state on it."""
    if not way:
        if wanted:
            yield found
        return
    (join, position), above = way[0], way[1:]
    if not above and not wanted:
        return
    for block in join.probe(position, found):
        yield from rise(above, block, wanted=wanted)
        if above:
            parent, at = above[0]
            parent.enter(at, block)
