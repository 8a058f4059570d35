"""A running join that several queries of a set share: one track over the base states, and one state of its results.

The engine passes new rows through a shared join once. Each block of combinations goes to all users of the join and then
enters its state, which users probe with the rows of their other relations. If the combinations are the final result for
every user, there is no such state.

Invariant: a user sees the join as a base state. The combinations that a relation's rows add are on the path to the
user's results, so nothing that one turn adds can be found in the same turn. (`plan.sharing` defines what is found.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import Combinations, taken
from anabranch.engine.compile import compared_by, compile_plan
from anabranch.engine.kernels import BoolArray, Int64Array
from anabranch.engine.moving_state import fill, joined
from anabranch.engine.operators.join import read_column
from anabranch.engine.ownership import Ownership
from anabranch.engine.query_engine import QueryEngine
from anabranch.engine.state.arena import Arena, PartOfArena
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.engine.state.kept import Kept
from anabranch.engine.state.ring import ANY_TIME, Index
from anabranch.engine.tracks.plan import PlanTrack
from anabranch.lang.expr import Column
from anabranch.lang.window import FOREVER
from anabranch.plan.difference import StateMatching
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.physical import Shared, kept, plain_shape
from anabranch.plan.sharing import CommonJoin
from anabranch.stats.step import StepStatistics

STATE = "combinations"
"""The file of the state of the join's combinations."""


class Block:
    """A block of combinations found by a shared join and passed to all users; each column is read once."""

    def __init__(self, found: Combinations, bases: Mapping[str, BaseState]) -> None:
        self.found = found
        self._bases = bases
        self._columns: dict[Column, pa.Array] = {}
        self._owned: BoolArray | None = None

    def read(self, column: Column) -> pa.Array:
        """Returns a payload column of the combinations."""
        values = self._columns.get(column)
        if values is None:
            values = self._columns[column] = read_column(self._bases, column, self.found)
        return values

    def chosen(self, mask: BoolArray | None, deadline: Int64Array) -> Combinations:
        """Selects some of the combinations, with columns that are read from those of the block."""
        if mask is None or mask.all():
            return Combinations({}, self.found.newest, deadline, read=self.read)
        places = np.flatnonzero(mask)
        newest, ends = self.found.newest.take(places), deadline.take(places)
        return Combinations({}, newest, ends, read=lambda column: taken(self.read(column), places))

    def owned(self, owns: Ownership) -> BoolArray:
        """True for combinations of this slot; the same for all users that end with the join."""
        if self._owned is None:
            self._owned = owns.holds(self.found, self._bases)
        return self._owned


class SharedJoin:
    """One shared join of a slot; `users` are the join graph and the plan of each query that uses it."""

    def __init__(
        self,
        common: CommonJoin,
        users: Mapping[str, tuple[JoinGraph, Plan]],
        bases: Mapping[str, BaseState],
        arena: Arena,
        number: int,
    ) -> None:
        self.common = common
        self.number = number
        self._bases = bases
        mine = PartOfArena(arena, f"shared{number} ")
        self.engine = QueryEngine(common.member, common.shared.join, bases, arena=mine)
        self._compared = _compared(common, users)
        indexes = dict.fromkeys(
            index for graph, plan in users.values() for index in _indexes(common.shared, plan, graph)
        )
        self._state = IntermediateState(mine, STATE, common.shared.relations, tuple(indexes)) if indexes else None

    def serving(self, common: CommonJoin, users: Mapping[str, tuple[JoinGraph, Plan]]) -> SharedJoin:
        """Returns this join with other users, which it can serve unchanged."""
        other = copy(self)
        other.common, other._compared = common, _compared(common, users)
        return other

    def is_same_as(self, other: SharedJoin | None) -> bool:
        """True when both have the same states."""
        return other is not None and self.engine is other.engine

    @property
    def shared(self) -> Shared:
        return self.common.shared

    @property
    def state(self) -> IntermediateState:
        """The combinations that users probe; exists only if some user joins them with more relations."""
        assert self._state is not None
        return self._state

    @property
    def has_state(self) -> bool:
        return self._state is not None

    def indexes(self, relation: str) -> tuple[Index, ...]:
        """The indexes of a base state that the join uses."""
        return self.engine.indexes(relation)

    def require(self, indexes: tuple[Index, ...]) -> None:
        """Maintains these indexes over the combinations from now on."""
        if indexes:
            self.state.require(indexes, self._codes)

    def retain(self, indexes: Iterable[Index]) -> None:
        """Releases every index over the combinations except these."""
        if self._state is not None:
            self._state.retain(tuple(dict.fromkeys(indexes)))

    def layout(self) -> dict[str, Any]:
        """Describes where the states are in the arena."""
        state = None if self._state is None else self._state.layout()
        return {"number": self.number, "engine": self.engine.layout(), "state": state}

    def reopen(self, layout: Mapping[str, Any]) -> None:
        """Resumes from a layout; base states must be reopened first."""
        self.engine.reopen(layout["engine"])
        if self._state is not None:
            self._state.reopen(layout["state"])

    def fill(self, floors: Mapping[str, int]) -> int:
        """Computes all states from the base rows, between two steps; returns their row count.

        `floors` are those of the last drop, or empty if nothing was dropped yet.
        """
        track = self.engine.track
        assert isinstance(track, PlanTrack)
        shapes = tuple(part.shape for part in kept(track.plan))
        inside = {name: floors[name] for name in self.engine.bases if name in floors}
        # The state of the join is computed from its inner states. These must keep what rows of any relation can still
        # complete, not only rows of the join's own relations.
        reaching = inside if self._state is None else {**inside, **self._outside(floors)}
        rows = sum(fill(track, StateMatching((), shapes, ()), track, reaching).values())
        if self._state is not None:
            low = self._low(floors) if floors else ANY_TIME
            found = self.engine.demanded(joined(track, track.program.joins[-1], low))
            self._state.insert(found, self._codes)
            rows += len(found)
        self.engine.begin_after(inside)
        return rows

    def take(self, relation: str, news: Combinations, *, wanted: bool) -> Iterator[Block]:
        """Passes new rows of a base state, not linked yet, through the join; yields the combinations they complete."""
        for found, _ in self.engine.take(relation, news, wanted=wanted or self.has_state):
            if len(found):
                yield Block(found, self._bases)

    def enter(self, block: Block) -> None:
        """Inserts combinations into the state, after all users have seen them."""
        found = block.found
        if self._state is None or not len(found):
            return
        started = perf_counter()
        self._state.insert(found, self._codes)
        self.engine.meter.spent("insert", perf_counter() - started)
        self.engine.meter.inserted(plain_shape(self.shared), len(found))

    def keep(self, kept: Mapping[str, Kept]) -> None:
        """Follows base states that keep only some of their rows."""
        self.engine.keep(kept)
        if self._state is not None:
            self._state.keep(kept)

    def drop(self, floors: Mapping[str, int]) -> None:
        """Drops combinations that no user can complete any more; base states must drop first."""
        self.engine.drop(floors)
        if self._state is not None:
            self.engine.meter.dropped(plain_shape(self.shared), self._state.drop(self._low(floors)))

    def statistics(self) -> StepStatistics:
        """Returns the work since the last call, without base states."""
        sizes = {} if self._state is None else {plain_shape(self.shared): (self._state.ring.live, self._state.bytes)}
        return self.engine.track.finish(sizes)

    def release(self) -> None:
        """Releases all space; the join cannot be used afterwards."""
        for state in (*self.engine.track.held, *([] if self._state is None else [self._state])):
            state.ring.release()

    def _codes(self, name: str, found: Combinations) -> Int64Array:
        # In the order of the plan, which is the same for every query that probes the state.
        relations = self._compared[name]
        reader = next(relation for relation in self.shared.relations if relation in relations)
        return self._bases[reader].code(name, found.rows[reader])

    def _low(self, floors: Mapping[str, int]) -> int:
        return min(self._outside(floors).values(), default=2 * FOREVER - 1)

    def _outside(self, floors: Mapping[str, int]) -> dict[str, int]:
        """The floors of the relations that users join the combinations with."""
        return {name: floors[name] for name in self.common.outside if name in floors}


def _compared(common: CommonJoin, users: Mapping[str, tuple[JoinGraph, Plan]]) -> dict[str, frozenset[str]]:
    """Returns, for each code name, the relations whose code is valid for all users."""
    compared: dict[str, frozenset[str]] = {}
    for graph, _ in users.values():
        compared |= compared_by(graph)
    return {**compared, **common.readers}


def _indexes(shared: Shared, plan: Plan, graph: JoinGraph) -> tuple[Index, ...]:
    """The indexes of the join's combinations that a plan uses."""
    assert not isinstance(plan, Mesh)
    return compile_plan(plan, graph).indexes.get(shared.shape, ())
