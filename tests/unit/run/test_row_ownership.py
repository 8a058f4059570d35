"""Row ownership, against a naive account: in every slot that needs a row, exactly one file provides it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.engine.batch import RelationBatch
from anabranch.engine.ownership import needed_in
from anabranch.plan.partitioning import Dimension, Partitioning
from anabranch.run.row_ownership import gains_and_losses, is_needed, kept_rows, taken_rows

GRIDS = (
    (Dimension("k", frozenset("ab"), 4),),
    (Dimension("k", frozenset("ab"), 3), Dimension("j", frozenset("bc"), 2)),
    (Dimension("row.a", frozenset("a"), 2), Dimension("row.b", frozenset("b"), 3)),
)
CODES = ("k", "j", "row.a", "row.b")


@dataclass(frozen=True)
class File:
    slot: int
    table: int
    """Position in the list of tables."""
    relation: str
    rows: np.ndarray
    """A number for each row, from which its codes follow."""


@st.composite
def tables(draw: st.DrawFn, grid: tuple[Dimension, ...] | None = None) -> Partitioning:
    dimensions = grid or draw(st.sampled_from(GRIDS))
    slots = draw(st.integers(1, 4))
    groups = int(np.prod([dimension.share for dimension in dimensions]))
    table = draw(st.lists(st.integers(0, slots - 1), min_size=groups, max_size=groups))
    found = Partitioning(dimensions, slots, tuple(table))
    if dimensions[0].code == "k" and slots > 1:
        for value in draw(st.lists(st.integers(0, 4), max_size=2, unique=True)):
            over = draw(st.lists(st.integers(0, slots - 1), min_size=2, max_size=slots, unique=True))
            found = found.split("k", value, over)
    return found


@st.composite
def moved(draw: st.DrawFn, now: Partitioning) -> Partitioning:
    """A table over the same grid, as most moves leave: cells alone say which rows a slot takes over."""
    slots = draw(st.lists(st.integers(0, now.slots - 1), min_size=now.groups, max_size=now.groups))
    return now.with_table(slots)


def rows_of(rows: np.ndarray) -> RelationBatch:
    """Keys repeat, so that some rows have heavy ones; the other codes and the time tell rows apart."""
    codes = {code: rows % 5 if code == "k" else rows * (position + 1) for position, code in enumerate(CODES)}
    return RelationBatch(rows, codes, pa.RecordBatch.from_pydict({}))


@settings(max_examples=200)
@given(data=st.data())
def test_each_row_is_spoken_for_once_wherever_it_is_needed(data: st.DataObject) -> None:
    grid = data.draw(st.sampled_from([None, *GRIDS]))
    known = [data.draw(tables(grid))]
    files: list[File] = []
    arrived: dict[str, list[int]] = {name: [] for name in "abc"}
    number = 1
    for _ in range(data.draw(st.integers(1, 6))):
        new = data.draw(st.one_of(st.just(known[-1]), tables(grid), moved(known[-1])))
        is_move = new != known[-1]
        written: list[File] = []
        for name in "abc":
            fresh = np.arange(number, number + data.draw(st.integers(0, 6)), dtype=np.int64)
            number += len(fresh)
            arrived[name] += fresh.tolist()
            for slot in range(new.slots):
                mine = [fresh[needed_in(new, name, rows_of(fresh))[:, slot]]]
                if is_move:
                    for file in files:
                        if file.relation == name and file.slot != slot:
                            since = known[file.table :]
                            taken = taken_rows(since, new, file.slot, slot, name, rows_of(file.rows))
                            mine.append(file.rows[taken])
                written.append(File(slot, len(known) if is_move else len(known) - 1, name, np.concatenate(mine)))
        if is_move:
            known.append(new)
        files += written
        if data.draw(st.booleans()):
            slot = data.draw(st.integers(0, new.slots - 1))
            files = compacted(files, known, slot)
        check(files, known, arrived)


def spoken(files: list[File], known: list[Partitioning], slot: int, relation: str) -> list[int]:
    rows: list[int] = []
    for file in files:
        if file.slot == slot and file.relation == relation:
            kept = kept_rows(known[file.table :], slot, relation, rows_of(file.rows))
            rows += file.rows[kept].tolist()
    return rows


def compacted(files: list[File], known: list[Partitioning], slot: int) -> list[File]:
    """The slot writes all that it has into one file, and its older files go."""
    last = len(known) - 1
    whole = [File(slot, last, name, np.array(spoken(files, known, slot, name), dtype=np.int64)) for name in "abc"]
    return [file for file in files if file.slot != slot] + whole


def check(files: list[File], known: list[Partitioning], arrived: dict[str, list[int]]) -> None:
    table = known[-1]
    for name, rows in arrived.items():
        everything = np.array(rows, dtype=np.int64)
        needed = needed_in(table, name, rows_of(everything))
        for slot in range(table.slots):
            assert sorted(spoken(files, known, slot, name)) == everything[needed[:, slot]].tolist()


@given(data=st.data())
def test_a_slot_gains_and_loses_as_its_rows_do(data: st.DataObject) -> None:
    grid = data.draw(st.sampled_from(GRIDS))
    before, after = data.draw(tables(grid)), data.draw(tables(grid))
    rows = np.arange(200, dtype=np.int64)
    for slot in range(max(before.slots, after.slots)):
        gains, loses = gains_and_losses(before, after, slot)
        for name in sorted(before.relations):
            one, other = (
                needed_in(table, name, rows_of(rows))[:, slot] if slot < table.slots else np.zeros(200, bool)
                for table in (before, after)
            )
            assert gains or not (other & ~one).any()
            assert loses or not (one & ~other).any()


def test_the_same_needs_under_another_table_are_no_change() -> None:
    table = Partitioning(GRIDS[0], 3, (0, 1, 2, 2))
    assert gains_and_losses(table, table.moved([1], 2), 0) == (False, False)
    assert gains_and_losses(table, table.moved([1], 2), 1) == (False, True)
    assert gains_and_losses(table, table.moved([1], 2), 2) == (True, False)
    assert gains_and_losses(table, replace(table, slots=4), 0) == (False, False)


def test_rows_that_left_a_slot_and_came_back_are_read_from_its_newer_file() -> None:
    one = Partitioning(GRIDS[0], 3, (0, 0, 0, 0))
    other, third = one.moved(range(4), 1), one.moved(range(4), 2)
    rows = rows_of(np.arange(50, dtype=np.int64))
    assert not taken_rows([one, other, one], third, 0, 2, "a", rows).any()
    assert taken_rows([one], third, 0, 2, "a", rows).all()


def test_rows_before_the_mark_stay_where_they_are() -> None:
    table = replace(Partitioning(GRIDS[0], 2, (1, 1, 1, 1)), leaving=(0, 0, 0, 0), mark=30)
    rows = rows_of(np.arange(50, dtype=np.int64))
    assert is_needed(table, 0, "a", rows).all()
    assert (is_needed(table, 1, "a", rows) == (rows.times >= 30)).all()
