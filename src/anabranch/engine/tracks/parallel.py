"""The track of two plans side by side while the new one takes over: the parallel-track strategy.

The plans share every state that both have; they differ inside boxes, between a box's inputs and its output. Rows in the
inputs when the migration begins are *old*, later rows are *new*. Inside a box the old joins process everything, and at
the box's output keep only combinations with an old part. The new joins start with empty states and see only new parts
(where the old plan merges inside a box, it merges old and new rows separately). So each combination of the output is
produced once, by exactly one plan. When no input holds an old part any more, the old joins can produce nothing and are
removed. No output is delayed, and no row is processed twice outside the boxes.

A part that several relations form is old exactly if all its rows are: it was complete before the migration began. The
migration ends one window after it began, however deep the plan, because a combination carries the deadline of its first
row to expire. (Zhu 2006, Section 12.2, keeps only the newest time and needs two windows above height one.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anabranch.engine.batch import Combinations
from anabranch.engine.kernels import BoolArray
from anabranch.engine.operators.join import WindowJoin, keep
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.engine.tracks.plan import PlanTrack, Way, rise
from anabranch.engine.tracks.protocol import PlanContext, Track
from anabranch.engine.tracks.two_plans import TwoPlans
from anabranch.plan.content import Content
from anabranch.plan.difference import Box, boxes
from anabranch.plan.mesh import Mesh, parse_mesh
from anabranch.plan.physical import JoinNode, kept, shape


@dataclass(frozen=True)
class Stage:
    """The path from one shared state to the next: the new plan's joins and, inside a box, the old ones too."""

    new: Way
    old: Way = ()
    box: Box | None = None


class ParallelTrack(TwoPlans):
    """Both running plans of a migration; `marks` are the first new row numbers of relations and box inputs."""

    KIND = "parallel"

    def __init__(
        self, old: PlanTrack, new: PlanTrack, marks: Mapping[str, int] | None = None, mesh: Mesh | None = None
    ) -> None:
        super().__init__(old, new, mesh)
        self.boxes = boxes(old.plan, new.plan, new.thetas)
        self._inputs = self._inputs_of_boxes()
        self.marks = dict(
            marks
            or {name: base.ring.next for name, base in new.bases.items()}
            | {name: state.ring.next for name, state in self._inputs.items()}
        )
        for operator in old.operators.values():
            operator.tell_apart({name: self.marks[name] for name in old.bases})
        in_boxes = {node.shape for box in self.boxes for node in box.new}
        joins = {
            join.node.shape: new.join(
                join, new.context.meter, self._since(join.node) if join.node.shape in in_boxes else ()
            )
            for join in new.program.joins
        }
        old_joins = self._old_joins()
        self._stages = {name: self._stages_of(name, joins, old_joins) for name in new.bases}

    @classmethod
    def reopened(cls, context: PlanContext, layout: Mapping[str, Any]) -> ParallelTrack:
        """Reopens the track of a layout."""
        known: dict[str, IntermediateState] = {}
        new, old = (PlanTrack.reopened(context, layout[which], known) for which in ("new", "old"))
        mesh = None if layout["mesh"] is None else parse_mesh(layout["mesh"])
        return cls(old, new, layout["marks"], mesh)

    @property
    def is_over(self) -> bool:
        """True when no input of a box holds an old part."""
        return all(state.ring.first >= self.marks[name] for name, state in self._inputs.items())

    def settled(self) -> Track:
        """Returns the track of the new plan once the migration is over."""
        return self.new if self.is_over else self

    def aborted(self) -> Track:
        """Returns the track of the old plan, which no longer separates old rows from new."""
        for operator in self.old.operators.values():
            operator.tell_apart({})
        return super().aborted()

    def layout(self) -> dict[str, Any]:
        mesh = None if self._mesh is None else str(self._mesh)
        marks = {"marks": self.marks, "mesh": mesh}
        return {"kind": self.KIND, "new": self.new.layout(), "old": self.old.layout(), **marks}

    def take(self, relation: str, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        """Passes new rows of a relation through both plans; yields the combinations that they finish, if wanted."""
        yield from self._pass(self._stages[relation], found, wanted=wanted)

    def _inputs_of_boxes(self) -> dict[str, BaseState | IntermediateState]:
        """The states between which the plans differ, by relation or by shape in the new plan."""
        inputs = {part for box in self.boxes for part in box.inputs}
        found: dict[str, BaseState | IntermediateState] = {
            name: base for name, base in self.new.bases.items() if Content.of([name]) in inputs
        }
        shapes = {self.new.contents[inner.shape]: inner.shape for inner in kept(self.new.plan)}
        return found | {shapes[part]: state for part, state in self.new.states.items() if part in inputs}

    def _since(self, node: JoinNode) -> tuple[int, ...]:
        return tuple(self.marks.get(shape(child), 0) for child in node.inputs)

    def _stages_of(
        self, relation: str, joins: Mapping[str, WindowJoin], old_joins: Mapping[str, WindowJoin]
    ) -> tuple[Stage, ...]:
        """Cuts the relation's path to the root at the states that both plans share."""
        way, old_way = self.new.way_to_root(relation, joins), self.old.way_to_root(relation, old_joins)
        root = Content.of(self.plan.relations)
        shared = {*self.new.states.keys() & self.old.states.keys(), root}
        stages = []
        for new, old in zip(_cut(way, shared), _cut(old_way, shared), strict=True):
            box = next((box for box in self.boxes if box.output == new[-1].makes), None)
            stages.append(Stage(new) if box is None else Stage(new, old, box))
        return tuple(stages)

    def _pass(self, stages: tuple[Stage, ...], found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        if not stages:
            if wanted:
                yield found
            return
        stage, above = stages[0], stages[1:]
        for block in self._made(stage, found, wanted=wanted or bool(above)):
            yield from self._pass(above, block, wanted=wanted)
            if above:
                above[0].new[0].enter(block)

    def _made(self, stage: Stage, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        if stage.box is not None:
            for block in rise(stage.old, found, wanted=wanted):
                if len(kept := keep(block, self._has_old_part(stage.box, block))):
                    yield kept
        yield from rise(stage.new, found, wanted=wanted)

    def _has_old_part(self, box: Box, found: Combinations) -> BoolArray:
        """True where some input of the box supplied a part from before the migration."""
        some = np.zeros(len(found), dtype=np.bool_)
        for part in box.inputs:
            every = np.ones(len(found), dtype=np.bool_)
            for relation in part.relations:
                every &= found.rows[relation] < self.marks[relation]
            some |= every
        return some


def _cut(way: Way, shared: set[Content]) -> Iterator[Way]:
    """Cuts a path after each step that produces one of these contents."""
    start = 0
    for end, here in enumerate(way, start=1):
        if here.makes in shared:
            yield way[start:end]
            start = end
