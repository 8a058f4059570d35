"""The results of two versions of a query, compared as multisets."""

from __future__ import annotations

import pyarrow as pa

from anabranch.run.branching import Pair
from anabranch.spec.comparing import described, difference

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
    empty = difference(pa.table({}), pa.table({"b": [1]}))
    assert (empty.before, empty.after) == (0, 1)
