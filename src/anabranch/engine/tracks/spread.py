"""The track of a running plan while the states of the next one are filled, a slice in every step.

The old plan produces all results. The states that only the new plan has are filled one after another, inputs first.
Base rows present when a state *begins* are old, later rows are new:

- New rows maintain the state from then on: at an input of its join they probe the other inputs, all of which are
  complete. So every combination with a new row is found, by the last of its new rows.
- Old rows are backfilled, a slice of one input in every step: they probe the other inputs, and only combinations of old
  rows alone are kept. So every other combination is found, by its part in that input.

When the last slice of the last state is done, all states hold what moving state would have computed at that moment, and
the new plan takes over with the next step. An abort before that loses nothing. A part of an input that several
relations form is old if all its rows are: the input was complete when the state began.

The backfill per step is counted, not timed: a share of the rows and combinations of the previous step, but at least
`LEAST`. So a step takes at most about twice as long as without backfill, and the same rows take the same course
everywhere.

Limit: an index that only the new plan uses is built over base states at once, at the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from anabranch.engine.batch import Combinations
from anabranch.engine.expiry import out_of_reach
from anabranch.engine.kernels import Int64Array
from anabranch.engine.meter import Meter
from anabranch.engine.operators.join import WindowJoin, keep, living, passing
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.engine.tracks.plan import PlanTrack, rise
from anabranch.engine.tracks.protocol import PlanContext, Track
from anabranch.engine.tracks.two_plans import TwoPlans
from anabranch.plan.difference import match_states
from anabranch.plan.mesh import Mesh, parse_mesh
from anabranch.plan.physical import JoinNode, Leaf, kept, shape

SHARE = 1 / 8
"""The backfill per row or combination of the previous step.

It is below 1 because inserting into a state costs more than a result does, and the new states are maintained besides.
"""
LEAST = 4_096
"""The minimum backfill of a step, in rows and combinations."""
SLICE = 1_024
"""Rows of an input that probe the others together."""


def allowance(brought: int) -> int:
    """Returns the backfill of a step, in rows and combinations, given the number that arrived."""
    return max(LEAST, round(SHARE * brought))


@dataclass(frozen=True)
class Progress:
    """The state that is being filled, and how far."""

    at: int
    """Its position among the states to fill; past the last one when all are done."""
    position: int
    """The input of its join whose old rows are backfilled; -1 if the old plan's state is filtered instead."""
    following: int
    """The number of the next of these rows."""
    until: int
    """The number of the first new row."""
    marks: Mapping[str, int]
    """For each relation, the number of the first new row."""


class SpreadTrack(TwoPlans):
    """The running old plan, and the new one under construction."""

    KIND = "spread"

    def __init__(
        self, old: PlanTrack, new: PlanTrack, mesh: Mesh | None = None, progress: Progress | None = None
    ) -> None:
        super().__init__(old, new, mesh)
        matching = match_states(old.plan, new.plan, new.thetas)
        self._filtered = {state.new: state for state in matching.filtered}
        lacking = {*matching.recomputed, *self._filtered}
        self._order = [node for node in kept(new.plan) if isinstance(node, JoinNode) and node.shape in lacking]
        programs = {program.node.shape: program for program in new.program.joins}
        self._joins = {node.shape: new.join(programs[node.shape], new.context.meter) for node in self._order}
        joins = self._old_joins()
        self._ways = {name: old.way_to_root(name, joins) for name in new.bases}
        self._brought = 0
        self._progress = progress or self._begun(0)

    @classmethod
    def reopened(cls, context: PlanContext, layout: Mapping[str, Any]) -> SpreadTrack:
        """Reopens the track of a layout."""
        known: dict[str, IntermediateState] = {}
        new, old = (PlanTrack.reopened(context, layout[which], known) for which in ("new", "old"))
        mesh = None if layout["mesh"] is None else parse_mesh(layout["mesh"])
        return cls(old, new, mesh, Progress(**layout["progress"]))

    def layout(self) -> dict[str, Any]:
        return {
            "kind": self.KIND,
            "new": self.new.layout(),
            "old": self.old.layout(),
            "mesh": None if self._mesh is None else str(self._mesh),
            "progress": asdict(self._progress),
        }

    @property
    def is_over(self) -> bool:
        """True when every state is complete."""
        return self._progress.at == len(self._order)

    def settled(self) -> Track:
        """Returns the track of the new plan once its states are complete."""
        return self.new if self.is_over else self

    def take(self, relation: str, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        """Passes new rows of a relation through the old plan, and maintains the states of the new one."""
        before = {name: state.ring.next for name, state in self.new.intermediates.items()}
        self._brought += len(found)
        for block in rise(self._ways[relation], found, wanted=wanted):
            self._brought += len(block)
            yield block
        for node in self._order[: self._progress.at + 1]:
            if relation in node.relations:
                self._keep_up(node, relation, found, before)

    def drop(self, floors: Mapping[str, int]) -> None:
        """Drops what no future row can complete, and backfills some old rows."""
        super().drop(floors)
        left, self._brought = allowance(self._brought), 0
        while left > 0 and not self.is_over:
            left -= self._catch_up(floors)

    # --- keeping up ---------------------------------------------------------------------------------------------------

    def _keep_up(self, node: JoinNode, relation: str, found: Combinations, before: Mapping[str, int]) -> None:
        """Joins a turn's new rows at an input of a join and inserts the results into the join's state."""
        position = next(i for i, child in enumerate(node.inputs) if relation in child.relations)
        child = node.inputs[position]
        arriving = found
        if not isinstance(child, Leaf):
            state = self.new.intermediates[shape(child)]
            arriving = _numbered(state, np.arange(before[shape(child)], state.ring.next, dtype=np.int64))
        made = self.new.intermediates[node.shape]
        for block in self._joins[node.shape].probe(position, arriving):
            made.insert(block, self.new.codes)
            self._brought += len(block)

    # --- catching up --------------------------------------------------------------------------------------------------

    def _begun(self, at: int) -> Progress:
        """Returns the start of the backfill of the state at that position."""
        marks = {name: base.ring.next for name, base in self.new.bases.items()}
        if at == len(self._order):
            return Progress(at, 0, 0, 0, marks)
        node = self._order[at]
        if node.shape in self._filtered:
            state: BaseState | IntermediateState = self.old.intermediates[self._filtered[node.shape].old]
            return Progress(at, -1, state.ring.first, state.ring.next, marks)
        inputs = self._joins[node.shape].inputs
        position = min(range(len(inputs)), key=lambda i: inputs[i].ring.live)
        ring = inputs[position].ring
        return Progress(at, position, ring.first, ring.next, marks)

    def _catch_up(self, floors: Mapping[str, int]) -> int:
        """Fills the current state from one more slice of old rows; returns the rows and combinations processed."""
        now = self._progress
        node = self._order[now.at]
        low = out_of_reach(floors, node.relations, self.new.context.query.pairwise)[0]
        if now.position < 0:
            source: BaseState | IntermediateState = self.old.intermediates[self._filtered[node.shape].old]
        else:
            source = self._joins[node.shape].inputs[now.position]
        first = max(now.following, source.ring.first)
        end = min(first + SLICE, now.until)
        taken = 0
        if first < end:
            driving = _numbered(source, np.arange(first, end, dtype=np.int64))
            driving = living(keep(driving, driving.deadline >= low), self.new.bases)
            taken = end - first
            for block in self._caught(node, now, driving, low):
                self.new.intermediates[node.shape].insert(block, self.new.codes)
                taken += len(block)
        self._progress = replace(now, following=end) if end < now.until else self._begun(now.at + 1)
        return max(1, taken)

    def _caught(self, node: JoinNode, now: Progress, driving: Combinations, low: int) -> Iterator[Combinations]:
        if now.position < 0:
            for position in self._filtered[node.shape].predicates:
                if len(driving):
                    driving = passing(self.old.thetas[position].predicate, driving, self.old.bases)
            blocks: Iterator[Combinations] = iter([driving] if len(driving) else [])
        else:
            # As in `moving_state.joined`: the probe skips what expired before `low`.
            raised = replace(driving, newest=np.maximum(driving.newest, low))
            blocks = self._uncounted(node.shape).probe(now.position, raised)
        for block in blocks:
            is_old = np.ones(len(block), dtype=np.bool_)
            for relation, rows in block.rows.items():
                is_old &= rows < now.marks[relation]
            yield keep(block, is_old)

    def _uncounted(self, name: str) -> WindowJoin:
        """Returns the join without counting: backfilled rows say nothing about the streams."""
        join = self._joins[name]
        return WindowJoin(join.program, join.inputs, join.bases, join.codes, Meter())


def _numbered(state: BaseState | IntermediateState, numbers: Int64Array) -> Combinations:
    """Returns the combinations, or rows, with those numbers, all of them live and linked."""
    if isinstance(state, BaseState):
        times = state.ring.times(numbers) if len(numbers) else (numbers, numbers)
        return Combinations({state.relation: numbers}, *times)
    if not len(numbers):
        return Combinations(dict.fromkeys(state.relations, numbers), numbers, numbers)
    return Combinations(state.bound(numbers), *state.ring.times(numbers), state.carried(numbers))
