"""Intermediate states: found by the codes of any of their relations, dropped by deadline, read by relation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anabranch.cql import compile_query
from anabranch.engine.batch import Combinations
from anabranch.engine.kernels import Int64Array
from anabranch.engine.state.arena import Arena, MappedArena, ProcessArena
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.scripted import read_rows, read_script

CATALOG = read_script("\n".join(f"stream {name} (k bigint, c bigint)" for name in "abc")).catalog
INDEXES: tuple[tuple[str, ...], ...] = (("x",), ("x", "y"), ())


def numbers(*values: int) -> Int64Array:
    return np.array(values, dtype=np.int64)


def state_of(arena: Arena) -> IntermediateState:
    return IntermediateState(arena, "join0", ("a", "b"), INDEXES)


def code(name: str, found: Combinations) -> Int64Array:
    """The code x is a's row number modulo 2, y is b's."""
    return found.rows["a" if name == "x" else "b"] % 2


FOUND = Combinations({"a": numbers(0, 1, 2), "b": numbers(5, 6, 7)}, numbers(1, 2, 3), numbers(30, 10, 20))


def rows_at(state: IntermediateState, newest: int) -> list[tuple[int, int]]:
    """The combinations that a probe of that time finds among all."""
    found = list(state.ring.probe((), numbers(0), numbers(newest), numbers(newest)))
    pairs = [(state.rows("a", block.rows), state.rows("b", block.rows)) for block in found]
    return sorted((int(a), int(b)) for one, other in pairs for a, b in zip(one, other, strict=True))


def test_combinations_leave_in_order_of_deadline() -> None:
    state = state_of(ProcessArena())
    state.insert(FOUND, code)
    assert rows_at(state, 5) == [(0, 5), (1, 6), (2, 7)]
    assert state.drop(11) == 1
    assert rows_at(state, 5) == [(0, 5), (2, 7)]
    assert state.drop(30) == 1
    assert rows_at(state, 5) == [(0, 5)]
    assert state.drop(31) == 1
    assert state.ring.live == state.bytes == 0


def test_a_combination_is_found_by_one_code_or_several() -> None:
    state = state_of(ProcessArena())
    state.insert(FOUND, code)
    (even,) = state.ring.probe(("x",), numbers(0), numbers(5), numbers(9))
    assert sorted(state.rows("b", even.rows).tolist()) == [5, 7]
    assert sorted(zip(even.newest.tolist(), even.deadline.tolist(), strict=True)) == [(5, 9), (5, 9)]


def test_nothing_is_inserted_for_nothing() -> None:
    state = state_of(ProcessArena())
    nothing = numbers()
    state.insert(Combinations({"a": nothing, "b": nothing}, nothing, nothing), code)
    assert state.ring.next == 0


def test_a_state_is_found_again(tmp_path: Path) -> None:
    state = state_of(MappedArena(tmp_path))
    state.insert(FOUND, code)
    again = state_of(MappedArena(tmp_path))
    again.reopen(state.layout())
    assert rows_at(again, 5) == [(0, 5), (1, 6), (2, 7)]


def test_columns_that_merged_rows_carry_are_not_confused_with_other_relations() -> None:
    """Merged rows of a relation called `row` carry their weight: once it stood where rows of one called `weight` do."""
    window = "[RANGE 9 SECONDS SLIDE 2 SECONDS]"
    query = compile_query(
        f"SELECT COUNT(*) AS n, SUM(weight.c) AS s FROM a {window} AS row, b {window} AS weight, c {window} AS x "
        "WHERE row.k = weight.k AND x.k = row.k",
        CATALOG,
    )
    rows = read_rows(CATALOG, [f"{name} {i} {i % 2} {i}" for i in range(8) for name in "abc"])
    host = LocalHost(query, parse("(([row] weight) x)"))
    assert not describe_difference(batch_answer(query, rows), rows_as_multiset(host.step(rows)))
