"""States of plans with selections and projections anywhere: a moved plan answers as one that ran from the start.

A small interpreter runs the plans row by row, with a list per state. It knows nothing of matching.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from anabranch.errors import MigrationError
from anabranch.migrate.spj import (
    FilterState,
    Join,
    Operation,
    Plan,
    Predicate,
    Project,
    ProjectState,
    Recording,
    Scan,
    Select,
    Streams,
    StuffState,
    bit_maps,
    columns,
    entries,
    match_by_bits,
    paths,
    require_movable,
    streams,
)

Row: TypeAlias = dict[str, int | None]

A, B, C = (Scan(name, (f"{name}.k", f"{name}.u", f"{name}.v")) for name in "abc")
BIG_B = Predicate("b.u > 1", frozenset({"b.u"}))
BIG_C = Predicate("c.v > 1", frozenset({"c.v"}))
AB, BC = frozenset({"a.k", "b.k"}), frozenset({"b.v", "c.k"})
OUTPUT = ("a.u", "b.v", "c.u")
START = Project(Select(Select(Join(Join(A, B, frozenset({AB})), C, frozenset({BC})), BIG_B), BIG_C), OUTPUT)
"""SELECT a.u, b.v, c.u FROM a, b, c WHERE a.k = b.k AND b.v = c.k AND b.u > 1 AND c.v > 1, nothing pushed down."""


class Running:
    """A plan with its states, which never expire."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.states: dict[Streams, list[Row]] = {}

    def take(self, stream: str, row: Row) -> list[Row]:
        return self._rise(self.plan, stream, row)

    def _rise(self, plan: Plan, stream: str, row: Row) -> list[Row]:
        match plan:
            case Scan():
                return [row]
            case Select(input=below, predicate=predicate):
                return [found for found in self._rise(below, stream, row) if _holds(predicate, found)]
            case Project(input=below, columns=kept):
                return [{column: found[column] for column in kept} for found in self._rise(below, stream, row)]
            case Join(left=left, right=right, on=on):
                mine, other = (left, right) if stream in streams(left) else (right, left)
                news = self._rise(mine, stream, row)
                self.states.setdefault(streams(mine), []).extend(news)
                return joined(news, self.states.get(streams(other), []), on)

    def compute(self, plan: Plan, lacking: Iterable[Streams]) -> list[Row]:
        """What the sub-plan has put out so far, from the states of the joins below; fills the lacking ones."""
        match plan:
            case Scan():
                raise AssertionError("a stream's own state is always there")
            case Select(input=below, predicate=predicate):
                return [found for found in self.compute(below, lacking) if _holds(predicate, found)]
            case Project(input=below, columns=kept):
                return [{column: found[column] for column in kept} for found in self.compute(below, lacking)]
            case Join(left=left, right=right, on=on):
                for side in (left, right):
                    if streams(side) in lacking and streams(side) not in self.states:
                        self.states[streams(side)] = self.compute(side, lacking)
                return joined(self.states.get(streams(left), []), self.states.get(streams(right), []), on)


def joined(left: list[Row], right: list[Row], on: frozenset[frozenset[str]]) -> list[Row]:
    pairs = [{**one, **other} for one in left for other in right]
    return [row for row in pairs if all(row[x] is not None and row[x] == row[y] for x, y in map(tuple, on))]


def _holds(predicate: Predicate, row: Row) -> bool:
    value = row[next(iter(predicate.columns))]
    return value is not None and value > 1


def operated(rows: list[Row], operations: Iterable[Operation]) -> list[Row]:
    for operation in operations:
        match operation:
            case FilterState(predicate=predicate):
                rows = [row for row in rows if _holds(predicate, row)]
            case ProjectState(column=column):
                rows = [{name: value for name, value in row.items() if name != column} for row in rows]
            case StuffState(column=column):
                rows = [{**row, column: None} for row in rows]
    return rows


def test_the_figure_of_the_bit_maps() -> None:
    """Zhu 2006, Figure 13.6: what was applied below a state, and nothing else, is set."""
    pushed = Join(A, Join(Project(Select(B, BIG_B), ("b.k", "b.v")), C, frozenset({BC})), frozenset({AB}))
    array = entries(START, pushed)
    assert array == (BIG_B, BIG_C, "a.k", "a.v", "b.k", "b.u", "c.k", "c.v")
    assert set(bit_maps(START, array).values()) == {0}
    maps = {"".join(sorted(state)): bits for state, bits in bit_maps(pushed, array).items()}
    b = 1 << array.index(BIG_B) | 1 << array.index("b.u")
    assert maps == {"a": 0, "b": b, "c": 0, "bc": b}


def test_pushing_down_filters_and_projects_and_pulling_up_stuffs() -> None:
    filtered = Recording.of(Select(Join(A, B, frozenset({AB})), BIG_B)).push_select(())
    assert filtered is not None
    assert filtered.plan == Join(A, Select(B, BIG_B), frozenset({AB}))
    assert filtered.matching.moved == {frozenset("a"): (), frozenset("b"): (FilterState(BIG_B),)}
    down = Recording.of(Project(Join(A, B, frozenset({AB})), ("a.u", "b.v"))).push_project(())
    assert down is not None
    assert down.matching.moved[frozenset("a")] == (ProjectState("a.v"),)
    assert down.matching.moved[frozenset("b")] == (ProjectState("b.u"),)
    back = Recording.of(down.plan).pull_project((0,), 0)
    assert back is not None
    assert back.matching.moved[frozenset("a")] == (StuffState("a.v"),)


def test_a_pulled_selection_needs_nothing() -> None:
    """Zhu 2006, Figure 13.2, upper half: rows that passed already pass again above."""
    old = Join(A, Select(B, BIG_B), frozenset({AB}))
    recording = Recording.of(old).pull_select((), 1)
    assert recording is not None
    assert recording.plan == Select(Join(A, B, frozenset({AB})), BIG_B)
    assert recording.matching.moved[frozenset("b")] == ()


def test_a_column_that_was_read_and_dropped_is_lost_for_good() -> None:
    """The paper would stuff b.u with NULL, and the selection above would then reject every moved row."""
    old = Join(A, Project(Select(B, BIG_B), ("b.k", "b.v")), frozenset({AB}))
    new = Project(Select(Join(A, B, frozenset({AB})), BIG_B), columns(old))
    matching = match_by_bits(old, new)
    assert matching.lost == ((frozenset("b"), "b.u", BIG_B),)
    with pytest.raises(MigrationError, match="'b'") as refused:
        require_movable(matching)
    assert "b.u > 1" in refused.value.detail


def steps_from(recording: Recording) -> list[Recording]:
    """All that one step of a rewriting optimizer could make of the plan."""
    possible: list[Recording | None] = []
    for path in paths(recording.plan):
        possible += [recording.push_select(path), recording.push_project(path), recording.swap_unary(path)]
        possible += [recording.switch_joins(path), recording.commute(path)]
        for side in (0, 1):
            possible += [recording.pull_select(path, side), recording.pull_project(path, side)]
    return [following for following in possible if following is not None]


@st.composite
def rewritings(draw: st.DrawFn, plan: Plan) -> Recording:
    """A plan after some steps of an optimizer."""
    recording = Recording.of(plan)
    for _ in range(draw(st.integers(0, 9))):
        recording = draw(st.sampled_from(steps_from(recording)))
    return recording


ARRIVALS = st.lists(
    st.tuples(st.sampled_from("abc"), st.tuples(*[st.integers(0, 2)] * 3)).map(
        lambda drawn: (drawn[0], dict(zip((f"{drawn[0]}.k", f"{drawn[0]}.u", f"{drawn[0]}.v"), drawn[1], strict=True)))
    ),
    max_size=25,
)


@given(data=st.data(), arrivals=ARRIVALS)
def test_a_migrated_plan_answers_as_one_that_ran_from_the_start(
    data: st.DataObject, arrivals: list[tuple[str, Row]]
) -> None:
    old = data.draw(rewritings(START), "old").plan
    recording = data.draw(rewritings(old), "new")
    matching = recording.matching if data.draw(st.booleans(), "recorded") else match_by_bits(old, recording.plan)
    if matching.lost:
        event("lost")
        return
    cut = data.draw(st.integers(0, len(arrivals)), "cut")
    before, whole = Running(old), Running(START)
    expected: Counter[tuple[int | None, ...]] = Counter()
    answer: Counter[tuple[int | None, ...]] = Counter()
    for stream, row in arrivals[:cut]:
        answer.update(_values(before.take(stream, row)))
    after = Running(recording.plan)
    for state, operations in matching.moved.items():
        after.states[state] = operated(before.states.get(state, []), operations)
    after.compute(recording.plan, matching.recomputed)
    for stream, row in arrivals[cut:]:
        answer.update(_values(after.take(stream, row)))
    for stream, row in arrivals:
        expected.update(_values(whole.take(stream, row)))
    event(f"recomputed {len(matching.recomputed)}, operations {sum(map(len, matching.moved.values()))}")
    assert answer == expected


@given(data=st.data())
def test_recorded_steps_and_bit_maps_say_the_same(data: st.DataObject) -> None:
    recording = data.draw(rewritings(data.draw(rewritings(START)).plan))
    recorded, compared = recording.matching, match_by_bits(recording.start, recording.plan)
    for state, operations in recorded.moved.items():
        assert set(operations) == set(compared.moved[state])
    assert set(compared.recomputed) <= set(recorded.recomputed)


def _values(rows: list[Row]) -> list[tuple[int | None, ...]]:
    return [tuple(row[column] for column in OUTPUT) for row in rows]
