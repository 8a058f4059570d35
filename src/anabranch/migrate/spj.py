"""States of plans with selections and projections anywhere, and what an old one needs before it serves a new plan.

Every join of such a plan keeps a state for each of its two inputs. Two plans of one query have a state in common where
they feed the same streams into a join, but what stands in it differs with the selections and projections below: a state
may have to be *filtered*, *projected* (lose a column) or *stuffed* (get a column of NULLs back) before it is moved.

Two ways to find out, after Zhu 2006, Section 13.3. An optimizer that starts from scratch compares bit-maps: one bit for
each selection and each column that some projection drops, propagated from the streams to the roots of both plans. One
that rewrites step by step numbers the states and records what each step does to them. Where both know a state they say
the same; the bit-maps also know states that a step gave up and a later one made again.

Beyond the paper: a column is lost for good when it was dropped after a selection had read it, and a plan that selects
by it further up would reject every stuffed row. Such a state cannot be moved (`lost`); parallel tracks can still serve.

The product's own plans filter and project at the relations, before any state, so that all their states agree in this
and `plan.migration` matches them by relations alone. This module is for plans that do otherwise; no host runs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from anabranch.errors import MigrationError

Streams: TypeAlias = frozenset[str]


@dataclass(frozen=True)
class Predicate:
    """A selection's condition, by its text, and the columns it reads."""

    text: str
    columns: frozenset[str]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Scan:
    """A stream and its columns."""

    stream: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Select:
    """The rows of the input for which the predicate is true."""

    input: Plan
    predicate: Predicate


@dataclass(frozen=True)
class Project:
    """The rows of the input with these columns only."""

    input: Plan
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Join:
    """Pairs that agree in each of these pairs of columns; keeps a state for each input."""

    left: Plan
    right: Plan
    on: frozenset[frozenset[str]]


Plan: TypeAlias = Scan | Select | Project | Join
Entry: TypeAlias = Predicate | str
"""What a bit stands for: a selection that was applied, or a column that was dropped."""


@dataclass(frozen=True)
class FilterState:
    """Rows that fail the predicate leave the state."""

    predicate: Predicate


@dataclass(frozen=True)
class ProjectState:
    """The column leaves the state."""

    column: str


@dataclass(frozen=True)
class StuffState:
    """The column comes back, NULL in every row; whatever is above drops it again without reading it."""

    column: str


Operation: TypeAlias = FilterState | ProjectState | StuffState


@dataclass(frozen=True)
class Matching:
    """What becomes of the states, which are named by the streams whose rows they hold."""

    moved: Mapping[Streams, tuple[Operation, ...]]
    """States of both plans, with what is to be done to the old one, in order."""
    recomputed: tuple[Streams, ...]
    """States of the new plan alone, inputs first."""
    discarded: tuple[Streams, ...]
    """States of the old plan alone."""
    lost: tuple[tuple[Streams, str, Predicate], ...] = ()
    """States that cannot be moved: a dropped column that a predicate above still reads."""


def columns(plan: Plan) -> tuple[str, ...]:
    match plan:
        case Scan(columns=own) | Project(columns=own):
            return own
        case Select(input=below):
            return columns(below)
        case Join(left=left, right=right):
            return (*columns(left), *columns(right))
        case _:
            assert_never(plan)


def streams(plan: Plan) -> Streams:
    match plan:
        case Scan(stream=name):
            return frozenset({name})
        case Select(input=below) | Project(input=below):
            return streams(below)
        case Join(left=left, right=right):
            return streams(left) | streams(right)
        case _:
            assert_never(plan)


def states(plan: Plan) -> Iterator[Plan]:
    """What feeds the states of a plan: both inputs of every join, inner joins first."""
    match plan:
        case Scan():
            return
        case Select(input=below) | Project(input=below):
            yield from states(below)
        case Join(left=left, right=right):
            yield from states(left)
            yield from states(right)
            yield left
            yield right


# --- total re-optimization: bit-maps ---------------------------------------------------------------------------------


def entries(*plans: Plan) -> tuple[Entry, ...]:
    """The array that the bits of some plans' states are about."""
    found: dict[Entry, None] = {}
    for plan in plans:
        found |= dict.fromkeys(_applied(plan))
    return tuple(found)


def bit_maps(plan: Plan, array: tuple[Entry, ...]) -> dict[Streams, int]:
    """For each state the entries that were applied to its rows, as bits in the order of the array.

    Selections and projections set their bits on the way up; where two inputs meet, their bits are united.
    """
    maps: dict[Streams, int] = {}

    def propagate(plan: Plan) -> int:
        match plan:
            case Scan():
                return 0
            case Select(input=below, predicate=predicate):
                return propagate(below) | 1 << array.index(predicate)
            case Project(input=below, columns=kept):
                return propagate(below) | sum(1 << array.index(c) for c in columns(below) if c not in kept)
            case Join(left=left, right=right):
                for side in (left, right):
                    maps[streams(side)] = propagate(side)
                return maps[streams(left)] | maps[streams(right)]
            case _:
                assert_never(plan)

    propagate(plan)
    return maps


def match_by_bits(old: Plan, new: Plan) -> Matching:
    """What becomes of the states when any plan is exchanged for any other of the same query."""
    array = entries(old, new)
    before, after = bit_maps(old, array), bit_maps(new, array)
    changes = {
        state: _Change(
            frozenset(entry for i, entry in enumerate(array) if after[state] & ~before[state] & 1 << i),
            frozenset(entry for i, entry in enumerate(array) if before[state] & ~after[state] & 1 << i),
        )
        for state in after
        if state in before
    }
    return _matching(changes, array, before, after)


# --- incremental optimization: numbered states and recorded steps ----------------------------------------------------


@dataclass(frozen=True)
class _Change:
    """Entries that were newly applied to a state's rows, and those that no longer are."""

    applied: frozenset[Entry] = frozenset()
    undone: frozenset[Entry] = frozenset()

    def apply(self, *several: Entry) -> _Change:
        back = self.undone & {*several}
        return _Change(self.applied | ({*several} - back), self.undone - back)

    def undo(self, *several: Entry) -> _Change:
        back = self.applied & {*several}
        return _Change(self.applied - back, self.undone | ({*several} - back))


@dataclass(frozen=True)
class Recording:
    """A plan that is rewritten step by step, with a number for each state and what was done to it since the start."""

    start: Plan
    plan: Plan
    numbers: Mapping[Streams, int]
    changes: Mapping[int, _Change]

    @classmethod
    def of(cls, plan: Plan) -> Recording:
        numbers = {streams(state): number for number, state in enumerate(states(plan), start=1)}
        return cls(plan, plan, numbers, {number: _Change() for number in numbers.values()})

    @property
    def matching(self) -> Matching:
        """What becomes of the states when the plan of the start is exchanged for the present one."""
        before = {streams(state): None for state in states(self.start)}
        after = {streams(state): None for state in states(self.plan)}
        known = {
            state: self.changes[number]
            for state, number in self.numbers.items()
            if number <= len(before) and state in after
        }
        return _matching(known, entries(self.start, self.plan), before, after)

    def push_select(self, path: tuple[int, ...]) -> Recording | None:
        """The selection at the path goes below the join under it, to the side that has its columns."""
        node = _at(self.plan, path)
        if not isinstance(node, Select) or not isinstance(node.input, Join):
            return None
        join, predicate = node.input, node.predicate
        for side in (join.left, join.right):
            if predicate.columns <= set(columns(side)):
                return self._with(path, _replaced(join, side, Select(side, predicate)), side, applied=(predicate,))
        return None

    def pull_select(self, path: tuple[int, ...], side: int) -> Recording | None:
        """A selection that is an input of the join at the path goes above the join."""
        join = _at(self.plan, path)
        if not isinstance(join, Join):
            return None
        node = (join.left, join.right)[side]
        if not isinstance(node, Select):
            return None
        above = Select(_replaced(join, node, node.input), node.predicate)
        return self._with(path, above, node, undone=(node.predicate,))

    def push_project(self, path: tuple[int, ...]) -> Recording | None:
        """The projection at the path drops its columns below the join under it already, where the join allows."""
        node = _at(self.plan, path)
        if not isinstance(node, Project) or not isinstance(node.input, Join):
            return None
        join = node.input
        needed = {*node.columns, *(column for pair in join.on for column in pair)}
        recording = self
        dropped_any = False
        below: Plan = join
        for side in (join.left, join.right):
            kept = tuple(column for column in columns(side) if column in needed)
            if kept != columns(side):
                assert isinstance(below, Join)
                below = _replaced(below, side, Project(side, kept))
                gone = tuple(column for column in columns(side) if column not in needed)
                recording = recording._noted(side, applied=gone)
                dropped_any = True
        if not dropped_any:
            return None
        above = below if columns(below) == node.columns else Project(below, node.columns)
        return recording._replaced_at(path, above)

    def pull_project(self, path: tuple[int, ...], side: int) -> Recording | None:
        """A projection that is an input of the join at the path goes above the join."""
        join = _at(self.plan, path)
        if not isinstance(join, Join):
            return None
        node = (join.left, join.right)[side]
        if not isinstance(node, Project):
            return None
        gone = tuple(column for column in columns(node.input) if column not in node.columns)
        above = Project(_replaced(join, node, node.input), columns(join))
        return self._with(path, above, node, undone=gone)

    def swap_unary(self, path: tuple[int, ...]) -> Recording | None:
        """A selection and a projection that follow each other change places; no state lies between them."""
        match _at(self.plan, path):
            case Select(input=Project(input=below, columns=kept), predicate=predicate):
                return self._replaced_at(path, Project(Select(below, predicate), kept))
            case Project(input=Select(input=below, predicate=predicate), columns=kept) if predicate.columns <= {*kept}:
                return self._replaced_at(path, Select(Project(below, kept), predicate))
        return None

    def switch_joins(self, path: tuple[int, ...]) -> Recording | None:
        """(x y) z becomes x (y z): the state of y z is new and gets a number of its own."""
        outer = _at(self.plan, path)
        if not isinstance(outer, Join) or not isinstance(outer.left, Join):
            return None
        inner, z = outer.left, outer.right
        x, y = inner.left, inner.right
        inside = {*columns(y), *columns(z)}
        on = inner.on | outer.on
        below = frozenset(pair for pair in on if pair <= inside)
        turned = self._replaced_at(path, Join(x, Join(y, z, below), on - below))
        number = max(self.changes) + 1
        numbers = {state: n for state, n in self.numbers.items() if state != streams(inner)}
        return Recording(
            self.start, turned.plan, {**numbers, streams(y) | streams(z): number}, {**self.changes, number: _Change()}
        )

    def commute(self, path: tuple[int, ...]) -> Recording | None:
        """x y becomes y x; states stay as they are."""
        join = _at(self.plan, path)
        return self._replaced_at(path, Join(join.right, join.left, join.on)) if isinstance(join, Join) else None

    def _with(
        self,
        path: tuple[int, ...],
        node: Plan,
        side: Plan,
        *,
        applied: tuple[Entry, ...] = (),
        undone: tuple[Entry, ...] = (),
    ) -> Recording:
        return self._noted(side, applied=applied, undone=undone)._replaced_at(path, node)

    def _noted(self, side: Plan, *, applied: tuple[Entry, ...] = (), undone: tuple[Entry, ...] = ()) -> Recording:
        number = self.numbers[streams(side)]
        change = self.changes[number].apply(*applied).undo(*undone)
        return Recording(self.start, self.plan, self.numbers, {**self.changes, number: change})

    def _replaced_at(self, path: tuple[int, ...], node: Plan) -> Recording:
        return Recording(self.start, _put(self.plan, path, node), self.numbers, self.changes)


# --- what both ways share --------------------------------------------------------------------------------------------


def require_movable(matching: Matching) -> None:
    """Refuses moving state where a column that is still to be read is lost."""
    for state, column, predicate in matching.lost:
        raise MigrationError(
            f"the state of '{' '.join(sorted(state))}' cannot be moved",
            detail=f"its rows no longer have '{column}', which '{predicate}' reads in the new plan",
            hint="use 'parallel-track'",
        )


def paths(plan: Plan, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Where the operators of a plan stand, as the way from the root: 0 for the first input, 1 for the second."""
    yield path
    match plan:
        case Select(input=below) | Project(input=below):
            yield from paths(below, (*path, 0))
        case Join(left=left, right=right):
            yield from paths(left, (*path, 0))
            yield from paths(right, (*path, 1))


def _matching(
    changes: Mapping[Streams, _Change],
    array: tuple[Entry, ...],
    before: Mapping[Streams, object],
    after: Mapping[Streams, object],
) -> Matching:
    lost = []
    for state, change in changes.items():
        for entry in change.undone:
            if isinstance(entry, str):
                # In an equivalent plan nothing else can still read the column: joins that do are below the state.
                readers = [p for p in change.undone if isinstance(p, Predicate) and entry in p.columns]
                lost += [(state, entry, predicate) for predicate in readers]
    return Matching(
        {state: _operations(change, array) for state, change in changes.items()},
        tuple(state for state in after if state not in changes),
        tuple(state for state in before if state not in changes),
        tuple(sorted(lost, key=lambda each: (sorted(each[0]), each[1], str(each[2])))),
    )


def _operations(change: _Change, array: tuple[Entry, ...]) -> tuple[Operation, ...]:
    """Filters first, while every column is there. A selection that is undone needs nothing: it comes again above."""
    filters = [FilterState(e) for e in array if e in change.applied and isinstance(e, Predicate)]
    drops = [ProjectState(e) for e in array if e in change.applied and isinstance(e, str)]
    stuffs = [StuffState(e) for e in array if e in change.undone and isinstance(e, str)]
    return (*filters, *drops, *stuffs)


def _applied(plan: Plan) -> Iterator[Entry]:
    match plan:
        case Scan():
            return
        case Select(input=below, predicate=predicate):
            yield from _applied(below)
            yield predicate
        case Project(input=below, columns=kept):
            yield from _applied(below)
            yield from (column for column in columns(below) if column not in kept)
        case Join(left=left, right=right):
            yield from _applied(left)
            yield from _applied(right)


def _at(plan: Plan, path: tuple[int, ...]) -> Plan:
    if not path:
        return plan
    match plan:
        case Select(input=below) | Project(input=below):
            return _at(below, path[1:])
        case Join(left=left, right=right):
            return _at((left, right)[path[0]], path[1:])
        case Scan():
            raise IndexError(f"nothing stands at {path} below stream '{plan.stream}'")


def _put(plan: Plan, path: tuple[int, ...], node: Plan) -> Plan:
    if not path:
        return node
    match plan:
        case Select(input=below, predicate=predicate):
            return Select(_put(below, path[1:], node), predicate)
        case Project(input=below, columns=kept):
            return Project(_put(below, path[1:], node), kept)
        case Join(left=left, right=right, on=on):
            if path[0] == 0:
                return Join(_put(left, path[1:], node), right, on)
            return Join(left, _put(right, path[1:], node), on)
        case Scan():
            raise IndexError(f"nothing stands at {path} below stream '{plan.stream}'")


def _replaced(join: Join, side: Plan, node: Plan) -> Join:
    return Join(node, join.right, join.on) if side is join.left else Join(join.left, node, join.on)
