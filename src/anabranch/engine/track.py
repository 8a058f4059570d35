"""One plan at work: its joins and intermediate states, over base states that it shares and does not own.

The engine takes new rows one relation after another, always in the order of the join graph. A relation's new rows pass
through every track, and only then become findable in their base state; so several tracks can stand on the same base
rows, and each result is born once in each of them.

Law: what a relation's rows enter in a track lies on their way from the leaf to the root, and what they probe lies
beside it. So nothing that a turn enters can be found in the same turn, and blocks may rise to the root one by one: a
step holds the blocks on one way, whatever the fan-out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from anabranch.engine.batch import Combinations
from anabranch.engine.compile import compile_plan
from anabranch.engine.meter import Meter
from anabranch.engine.operators.join import WindowJoin
from anabranch.engine.state.arena import Arena
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan

Way = tuple[tuple[WindowJoin, int], ...]
"""The joins from a relation to the root, each with the input at which its combinations arrive."""


class PlanTrack:
    """The joins of one plan; `number` keeps the names of its arrays apart from those of other tracks."""

    def __init__(
        self,
        graph: JoinGraph,
        plan: PhysicalPlan,
        bases: Mapping[str, BaseState],
        arena: Arena,
        meter: Meter,
        number: int = 0,
    ) -> None:
        self.plan = plan
        self.number = number
        program = compile_plan(plan, graph)
        for name, base in bases.items():
            base.require(program.indexes[name])
        self.intermediates = {
            join.node.shape: IntermediateState(
                arena, f"track{number}.join{i}", join.node.relations, program.indexes[join.node.shape]
            )
            for i, join in enumerate(program.joins)
            if join.node is not plan
        }
        joins = {
            join.node.shape: WindowJoin(
                join,
                tuple(
                    bases[child.relation] if isinstance(child, Leaf) else self.intermediates[child.shape]
                    for child in join.node.inputs
                ),
                bases,
                meter,
            )
            for join in program.joins
        }
        self._ways = {name: way_to_root(plan, name, joins) for name in graph.names}

    def layout(self) -> dict[str, Any]:
        """What is needed, beside the arena's contents, to find the states again."""
        return {
            "number": self.number,
            "intermediates": {name: state.layout() for name, state in self.intermediates.items()},
        }

    def reopen(self, layout: Mapping[str, Any]) -> None:
        for name, intermediate in self.intermediates.items():
            intermediate.reopen(layout["intermediates"][name])

    def take(self, relation: str, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        """New rows of a relation enter every state on their way; yields what they finish, if that is wanted."""
        yield from _rise(self._ways[relation], found, wanted=wanted)

    def drop(self, floors: Mapping[str, int], meter: Meter) -> None:
        """Drops combinations that no row still to come can complete."""
        for name, intermediate in self.intermediates.items():
            others = [floor for other, floor in floors.items() if other not in intermediate.relations]
            meter.dropped(name, intermediate.drop(min(others)))


def way_to_root(plan: PhysicalPlan, relation: str, joins: Mapping[str, WindowJoin]) -> Way:
    if not isinstance(plan, JoinNode):
        return ()
    position = next(i for i, child in enumerate(plan.inputs) if relation in child.relations)
    return (*way_to_root(plan.inputs[position], relation, joins), (joins[plan.shape], position))


def _rise(way: Way, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
    if not way:
        if wanted:
            yield found
        return
    (join, position), above = way[0], way[1:]
    if not above and not wanted:
        return
    for block in join.probe(position, found):
        yield from _rise(above, block, wanted=wanted)
        if above:
            parent, at = above[0]
            parent.enter(at, block)
