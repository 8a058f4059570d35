"""Outer, semi and anti joins: processes finished combinations of the core at the sides of a query.

Each side keeps the arrived combinations as *waiting* (row numbers and times, indexed by the keys of the side) and joins
them with the base states of its relations like any join: a new combination probes these states, a new row of the side
probes the waiting combinations, and each match is found once. Matches of an outer join continue to the next side; any
match marks its combination. A combination whose keys are NULL, or read an absent row, cannot match; it waits
without an index. In a full join the rows of the side wait as well.

An unmatched combination continues, with absent rows (`ABSENT`) for those of the side, once the watermark has passed its
deadline: no row that could match it will be admitted any more. At a side of tables it continues at once. In a grouped
query, the answer at a boundary covers the rows inside their windows at that boundary. So a combination continues
unmatched at each boundary where none of its matches counts, as a combination that is valid at that instant only.

Invariant: the output depends only on the rows. A combination continues unmatched in the step whose watermark passes its
deadline (or the boundary), and in no other. Everything can be recomputed from base rows, which are kept long enough
(`engine.expiry`). Sides are settled in order, because unmatched output of the first arrives at the second.

Limit: at a boundary of a grouped query all waiting combinations are scanned, as many as the windows hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from anabranch.engine.batch import Combinations
from anabranch.engine.compile import compile_join
from anabranch.engine.evaluate.expression import evaluate_mask
from anabranch.engine.kernels import BoolArray, Int64Array
from anabranch.engine.meter import Meter, Size
from anabranch.engine.operators.join import State, WindowJoin, code_reader, keep, passing, read_column
from anabranch.engine.ownership import Ownership
from anabranch.engine.state.arena import Arena
from anabranch.engine.state.base import ABSENT, BaseState
from anabranch.engine.state.ring import Index
from anabranch.engine.state.waiting import NUMBER, Waiting
from anabranch.plan.logical import SideKind
from anabranch.plan.physical import JoinNode, Leaf, mjoin
from anabranch.plan.query import Grouping, Query
from anabranch.plan.sides import Side

KNOWN = "#known"
"""The name under which a combination carries the event time at which it became known, if its own rows are older."""
Known: TypeAlias = tuple[Combinations, Int64Array]
"""Combinations, and the event time at which each became known, which orders results."""


class Sides:
    """All sides of one query."""

    def __init__(self, query: Query, bases: Mapping[str, BaseState], arena: Arena) -> None:
        self.bases = bases
        self.meter = Meter()
        self._condition = query.condition
        self._works = [
            SideWork(side, bases, arena, self.meter, number, query.grouping) for number, side in enumerate(query.sides)
        ]
        self._place = {name: i for i, side in enumerate(query.sides) for name in side.names}

    def indexes(self, relation: str) -> tuple[Index, ...]:
        """The indexes of the base state of a side's relation that are probed."""
        return self._works[self._place[relation]].indexes[relation]

    @property
    def sizes(self) -> dict[str, Size]:
        """The rows and bytes of each state."""
        return {
            f"{work.side.kind.value} {' '.join(work.side.names)}": (
                sum(state.ring.live for state in work.states),
                sum(state.bytes for state in work.states),
            )
            for work in self._works
        }

    @property
    def passed(self) -> int | None:
        """The watermark up to which combinations have continued; in a grouped query, the last boundary."""
        return self._works[0].passed

    def layout(self) -> list[dict[str, Any]]:
        return [work.layout() for work in self._works]

    def reopen(self, layout: list[dict[str, Any]]) -> None:
        for work, kept in zip(self._works, layout, strict=True):
            work.reopen(kept)

    def begin_restore(self, watermark: int) -> None:
        """Records, before a restore, that everything the watermark has passed continued in earlier steps.

        A waiting row of a full join may have matched combinations that have already continued. So at a full join, which
        no side precedes, all combinations arrive and match once more.
        """
        for work in self._works:
            work.answered(watermark)
            work.replays = work.waits_alone

    def end_restore(self) -> None:
        """Removes the replayed combinations: they continued earlier."""
        for work in self._works:
            if work.replays:
                assert work.passed is not None
                for _ in work.settle(work.passed):
                    pass
                work.replays = False

    def enter(self, found: Combinations) -> Iterator[Known]:
        """Accepts finished combinations of the core; yields the results known so far."""
        return self._from(0, found, found.newest)

    def take(self, relation: str, news: Combinations, owns: Ownership | None) -> Iterator[Known]:
        """Accepts new rows of a side, not linked yet; yields the results known so far.

        `owns` selects the rows that this slot outputs unmatched, where several slots have them.
        """
        place = self._place[relation]
        for found, known in self._works[place].take(relation, news, owns):
            yield from self._from(place + 1, found, known)

    def settle(self, watermark: int) -> Iterator[Known]:
        """Yields the results that the watermark makes final: no row before it will be admitted any more."""
        for place, work in enumerate(self._works):
            for found, known in work.settle(watermark):
                yield from self._from(place + 1, found, known)

    def _from(self, place: int, found: Combinations, known: Int64Array) -> Iterator[Known]:
        if not len(found):
            return
        if place < len(self._works):
            for next_found, next_known in self._works[place].enter(found, known):
                yield from self._from(place + 1, next_found, next_known)
            return
        if self._condition is not None:
            mask = evaluate_mask(self._condition, lambda column: read_column(self.bases, column, found), len(found))
            found, known = keep(found, mask), known[mask]
        if len(found):
            yield found, known


class SideWork:
    """One running side; `grouping` is that of a grouped query."""

    def __init__(
        self,
        side: Side,
        bases: Mapping[str, BaseState],
        arena: Arena,
        meter: Meter,
        number: int,
        grouping: Grouping | None,
    ) -> None:
        self.side = side
        self.bases = bases
        self.arena = arena
        self.grouping = grouping
        self.passed: int | None = None
        """The watermark up to which combinations have continued; in a grouped query, the last boundary."""
        self.replays = False
        """During a restore: whether combinations that have continued arrive once more."""
        node = JoinNode((mjoin(side.before), *(Leaf(name) for name in side.names)))
        program = compile_join(node, side.graph)
        looked_into: list[dict[Index, None]] = [{} for _ in node.inputs]
        for probe in (probe for probes in program.probes for probe in probes):
            looked_into[probe.target][probe.index] = None
        self.indexes = {name: tuple(looked_into[i + 1]) or ((),) for i, name in enumerate(side.names)}
        for name, indexes in self.indexes.items():
            bases[name].require(indexes)
        prefix = f"side{number}"
        self.waiting = Waiting(arena, f"{prefix}.waiting", side.before, tuple(looked_into[0]) or ((),))
        self.unable = Waiting(arena, f"{prefix}.unable", side.before, ((),))
        """Combinations that cannot match."""
        self.alone = Waiting(arena, f"{prefix}.alone", side.names, ((),))
        """The rows of the side of a full join."""
        self.states = (self.waiting, self.unable, self.alone)
        inputs: tuple[State, ...] = (self.waiting, *(bases[name] for name in side.names))
        self._codes = code_reader(bases, side.graph)
        self._join = WindowJoin(program, inputs, bases, self._codes, meter)

    def layout(self) -> dict[str, Any]:
        return {"passed": self.passed, "states": [state.layout() for state in self.states]}

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self.passed = layout["passed"]
        for state, kept in zip(self.states, layout["states"], strict=True):
            state.reopen(kept)

    @property
    def waits_alone(self) -> bool:
        """True if rows of the side wait for matches. In a grouped query nothing counts after its deadline."""
        return self.side.kind is SideKind.FULL and self.grouping is None

    def answered(self, watermark: int) -> None:
        passed = watermark if self.grouping is None else self.grouping.last_answered(watermark)
        self.passed = passed if self.passed is None else max(self.passed, passed)

    # --- matches ------------------------------------------------------------------------------------------------------

    def enter(self, found: Combinations, known: Int64Array) -> Iterator[Known]:
        """Accepts arriving combinations; yields those that continue at once."""
        open_ = self._is_open(found)
        found, known = keep(found, open_), known[open_]
        if self.side.ready is not None and len(found):
            able = evaluate_mask(self.side.ready, lambda column: read_column(self.bases, column, found), len(found))
            if self.side.is_known_at_once:
                yield from self._unmatched(keep(found, ~able), known[~able])
            elif self.side.kind is not SideKind.SEMI:
                self.unable.add(keep(found, ~able), self._codes)
            found, known = keep(found, able), known[able]
        if not len(found):
            return
        if self.side.is_known_at_once:
            yield from self._known_at_once(found, known)
            return
        numbers = self.waiting.add(found, self._codes)
        probing = Combinations({**found.rows, NUMBER: numbers, KNOWN: known}, found.newest, found.deadline)
        for block in self._join.probe(0, probing):
            yield from self._met(block)

    def _known_at_once(self, found: Combinations, known: Int64Array) -> Iterator[Known]:
        """Yields the full output of combinations at a side of tables, which gets no more rows."""
        kind, met = self.side.kind, np.zeros(len(found), dtype=np.bool_)
        rows = {**found.rows, NUMBER: np.arange(len(found), dtype=np.int64)}
        for block in self._join.probe(0, Combinations(rows, found.newest, found.deadline)):
            if self.side.residual is not None and len(block):
                block = passing(self.side.residual, block, self.bases)
            places = block.rows[NUMBER]
            met[places] = True
            if kind.extends:
                bound = {name: numbers for name, numbers in block.rows.items() if name != NUMBER}
                yield Combinations(bound, block.newest, block.deadline), known[places]
        if kind is SideKind.SEMI:
            yield keep(found, met), known[met]
        yield from self._unmatched(keep(found, ~met), known[~met])

    def _unmatched(self, found: Combinations, known: Int64Array) -> Iterator[Known]:
        """Yields unmatched combinations, as the kind of the side requires."""
        if self.side.kind is not SideKind.SEMI:
            yield self._with_absent(self.side.names if self.side.kind.extends else (), (found, known))

    def take(self, relation: str, news: Combinations, owns: Ownership | None) -> Iterator[Known]:
        """Accepts new rows of the side; yields the combinations that continue at once."""
        if self.side.kind is SideKind.FULL:
            waits = self._is_open(news)
            self.alone.add(keep(news, waits if owns is None else waits & owns.holds(news, self.bases)), self._codes)
        for block in self._join.probe(1 + self.side.names.index(relation), news):
            yield from self._met(block)

    def _is_open(self, found: Combinations) -> BoolArray:
        """True for combinations that have not continued unmatched in an earlier step."""
        if self.passed is None or self.replays:
            return np.ones(len(found), dtype=np.bool_)
        passed = self.passed if self.grouping is None else self.grouping.instant(self.passed + 1)
        still: BoolArray = found.deadline >= passed
        return still

    def _met(self, block: Combinations) -> Iterator[Known]:
        if self.side.residual is not None and len(block):
            block = passing(self.side.residual, block, self.bases)
        if not len(block):
            return
        rows = dict(block.rows)
        numbers = rows.pop(NUMBER)
        known = np.maximum(block.newest, rows.pop(KNOWN, block.newest))
        kind = self.side.kind
        if kind is SideKind.SEMI and self.grouping is None:
            yield self._first_met(numbers, known)
            return
        self._mark(self.waiting, numbers, block)
        if kind is SideKind.FULL:
            alone, waits = self.alone.find(self.side.names[0], rows[self.side.names[0]])
            self._mark(self.alone, alone, keep(block, waits))
        if kind.extends:
            yield Combinations(rows, block.newest, block.deadline), known

    def _first_met(self, numbers: Int64Array, known: Int64Array) -> Known:
        """Returns the waiting combinations that are matched for the first time."""
        first, places = np.unique(numbers, return_index=True)
        fresh = ~self.waiting.met(first)
        first = first[fresh]
        self.waiting.mark(first)
        return self._bound(self.waiting, first), known[places[fresh]]

    def _mark(self, state: Waiting, numbers: Int64Array, block: Combinations) -> None:
        if self.grouping is None:
            state.mark(numbers)
        else:
            first, last = self.grouping.first_boundary(block.newest), self.grouping.last_boundary(block.deadline)
            state.cover(numbers, first, last)

    # --- the watermark ------------------------------------------------------------------------------------------------

    def settle(self, watermark: int) -> Iterator[Known]:
        """Yields the combinations that the watermark allows to continue."""
        before, own, kind = self.side.before, self.side.names, self.side.kind
        last = None if self.grouping is None else self.grouping.last_answered(watermark)
        for state in (self.waiting, self.unable):
            yield self._with_absent(own if kind.extends else (), self._settled(state, watermark, last))
        if kind is SideKind.FULL:
            yield self._with_absent(before, self._settled(self.alone, watermark, last))
        self.answered(watermark)

    def _settled(self, state: Waiting, watermark: int, last: int | None) -> Known:
        if last is not None:
            assert self.grouping is not None
            numbers, at = state.pass_boundaries(self.passed, last, self.grouping, met=self.side.kind is SideKind.SEMI)
            found = self._bound(state, numbers)
            state.drop(self.grouping.instant(last + 1))
            instants = self.grouping.instant(at)
            return Combinations(found.rows, instants, instants), instants
        numbers = state.due(watermark)
        if self.side.kind is SideKind.SEMI:
            numbers = numbers[:0]
        found = self._bound(state, numbers[~state.met(numbers)])
        state.drop(watermark)
        return found, found.deadline

    def _bound(self, state: Waiting, numbers: Int64Array) -> Combinations:
        rows = {relation: state.rows(relation, numbers) for relation in state.relations} if len(numbers) else {}
        if not rows:
            rows = dict.fromkeys(state.relations, numbers)
        times = state.ring.times(numbers) if len(numbers) else (numbers, numbers)
        return Combinations(rows, *times)

    def _with_absent(self, names: tuple[str, ...], settled: Known) -> Known:
        found, known = settled
        absent = np.full(len(found), ABSENT, dtype=np.int64)
        rows = {**found.rows, **dict.fromkeys(names, absent)}
        # In the same order, whichever side was matched.
        order = (*self.side.before, *self.side.names) if self.side.kind.extends else self.side.before
        return Combinations({name: rows[name] for name in order}, found.newest, found.deadline), known
