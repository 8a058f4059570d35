"""The results of two versions of a query, compared as multisets."""

from __future__ import annotations

import pyarrow as pa

from anabranch.run.branching import Pair
from anabranch.spec.comparing import described, difference, reach

PAIR = Pair("", "before", "after")


def test_rows_are_compared_as_often_as_they_occur() -> None:
    before = pa.table({"k": [1, 1, 2, None], "old": [0, 0, 0, 0]})
    after = pa.table({"k": [1, 3, None, None], "new": ["x", "y", "z", "z"]})
    assert described(PAIR, difference(before, after)) == [
        "the query: 4 results before, 4 after; 2 equal in k, 2 only before, 2 only after",
        "  only before: k=1",
        "  only before: k=2",
        "  only after: k=None",
        "  only after: k=3",
    ]


def test_nested_values_and_wider_types_are_compared() -> None:
    before = pa.table({"k": pa.array([1, 2], pa.int32()), "l": [[1, 2], None]})
    after = pa.table({"k": pa.array([1, 2], pa.int64()), "l": [[1, 2], [3]]})
    found = difference(before, after)
    assert (found.only_before.num_rows, found.only_after.num_rows) == (1, 1)


def test_versions_without_a_common_column_or_without_results_are_told_apart() -> None:
    assert described(PAIR, difference(pa.table({"a": [1, 2]}), pa.table({"b": [1]}))) == [
        "the query: 2 results before, 1 after; 1 equal in no column, 1 only before, 0 only after",
        "  only before: ",
    ]
    assert described(PAIR, difference(pa.table({}), pa.table({}))) == ["the query: no results before, none after"]
    empty = difference(pa.table({}), pa.table({"b": [1]}))
    assert (empty.before, empty.after) == (0, 1)


def test_it_is_said_when_results_can_be_compared() -> None:
    since = 1_700_000_000_000_000
    (said,) = reach(since, since - 5_000_000)
    assert said.startswith(
        "results are compared from event time 2023-11-14T22:13:20.000Z on; the newest row is of 2023"
    )
    assert reach(since, since) == reach(None, since) == reach(since, None) == []
