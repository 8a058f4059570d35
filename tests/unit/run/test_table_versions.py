"""Versions of a table as changes of a copy: whatever changes, a reader and a slot find the rows of the version."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.run import table_versions
from anabranch.run.table_versions import Change, NumberedRows, base_of, change_of, numbered, table_of
from tests.support.hosts import engines_of
from tests.support.scripted import answer_lines
from tests.unit.run.test_tables import INNER, host_of, rows
from tests.unit.run.test_tables import table_of as lookup_of

ROWS = st.lists(st.tuples(st.integers(0, 3) | st.none(), st.sampled_from(["a", "b", None])), max_size=6)


def _table(several: list[tuple[int | None, str | None]]) -> pa.Table:
    return pa.table(
        {"k": pa.array([k for k, _ in several], pa.int64()), "s": pa.array([s for _, s in several], pa.string())}
    )


def _sorted(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


@given(versions=st.lists(ROWS, min_size=2, max_size=6), share=st.sampled_from([0.5, 100.0]))
def test_a_base_and_a_change_give_the_rows_of_a_version(
    versions: list[list[tuple[int | None, str | None]]], share: float
) -> None:
    first = _table(versions[0])
    files, names = {"000000000-t.arrow": first}, ["000000000-t.arrow"]
    now = NumberedRows.of(first)
    with mock.patch.object(table_versions, "MOST_CHANGED", share):
        for batch, several in enumerate(versions[1:], 1):
            found = now.changed_to(_table(several))
            if found is None:
                assert now.rows.equals(_table(several))
                continue
            base = base_of(names[-1])
            name = f"{batch:09d}-t.arrow" if found.is_base else f"{batch:09d}+{base[:9]}-t.arrow"
            files[name] = found.rows if found.is_base else found.change().to_arrow()
            names.append(name)
            now = found
            assert table_of(name) == "t"
            again = numbered(name, files.__getitem__)
            assert _sorted(again.rows) == _sorted(_table(several))
            assert (np.diff(again.numbers) > 0).all()
            assert again.next == found.next
            # A run that goes on from the files goes on with numbers that none had.
            assert set(again.numbers) == set(found.numbers)
    for number, earlier in enumerate(names):
        for later in names[number:]:
            if base_of(earlier) == base_of(later):
                _check_step(earlier, later, files)


def _check_step(earlier: str, later: str, files: dict[str, pa.Table]) -> None:
    """What a slot removes and adds leads from one version of a base to a later one."""
    news = change_of(later, files.__getitem__).since(change_of(earlier, files.__getitem__))
    before, after = (numbered(name, files.__getitem__) for name in (earlier, later))
    stays = ~np.isin(before.numbers, news.gone)
    assert _sorted(pa.concat_tables([before.rows.filter(pa.array(stays)), news.rows])) == _sorted(after.rows)
    assert not np.isin(news.numbers, before.numbers).any()


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (pa.array([1.0, math.nan, None]), pa.array([1.0, math.nan, None]), True),
        (pa.array([0.0]), pa.array([-0.0]), False),
        (pa.array([None, 1]), pa.array([1, None]), False),
        (pa.array([[1], [2]]), pa.array([[1], [2]]), True),
        (pa.array([[1], [2]]), pa.array([[1], [3]]), False),
        (pa.array([1]), pa.array(["1"]), False),
    ],
)
def test_rows_are_compared_by_their_bits(one: pa.Array, other: pa.Array, is_same: bool) -> None:
    found = NumberedRows.of(pa.table({"v": one})).changed_to(pa.table({"v": other}))
    assert (found is None) == is_same


def test_a_change_is_a_table_and_back() -> None:
    change = Change(np.array([1, 7]), _table([(1, "a")]), np.array([8]))
    again = Change.of(change.to_arrow())
    assert again.rows.equals(change.rows)
    assert (again.gone.tolist(), again.numbers.tolist()) == ([1, 7], [8])


@pytest.mark.parametrize("keeps", [False, True])
def test_a_slot_follows_a_table_in_place(keeps: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    checkpoint = tmp_path_factory.mktemp("checkpoint") if keeps else None
    host = host_of(INNER, *((key, f"name {key}") for key in range(40)), checkpoint=checkpoint)
    assert answer_lines(host.step({"a": rows((0, 1, "x"))})) == ("x name 1",)
    (engine,) = engines_of(host)
    for second, key in enumerate((1, 2, 1), 1):
        names = {each: f"name {each}" for each in range(40) if each != 7} | {key: f"new {second}"}
        host.change_table("t", lookup_of(*names.items()))
        batch = {"a": rows((second, key, "x"), (second, 7, "y"), (second, 8, "z"))}
        assert answer_lines(host.step(batch)) == (f"x new {second}", "z name 8")
    # The rows after the missing one are all at other places, so that version is a new copy.
    (after,) = engines_of(host)
    assert after is not engine
    assert host.table_versions.current == {"t": "000000003+000000001-t.arrow"}
    assert after.bases["t"].ring.live == 39 + 4
    if checkpoint is not None:
        files = {file.name for file in (checkpoint / "anabranch" / "tables").iterdir()}
        assert files == {"000000001-t.arrow", "000000002+000000001-t.arrow", "000000003+000000001-t.arrow"}
        again = host_of(INNER, (1, "other"), checkpoint=checkpoint)
        assert answer_lines(again.step({"a": rows((4, 1, "x"), (4, 2, "y"))})) == ("x new 3", "y name 2")
