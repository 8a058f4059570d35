"""Walking a classifier: the route of every row of a batch, in one compiled loop.

A tree is flattened into arrays once per batch, each attribute becomes a column of doubles with NaN for NULL, and a
category test becomes a column of its own (0 listed, 1 not). Reading costs one pass per attribute, walking a few
nanoseconds per row and test. Rows are never touched one by one in Python; the distinct values of a text column are
looked up per listed category.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numba
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.errors import UnknownAttribute
from anabranch.plan.classifier import (
    Assign,
    CategoryTest,
    Classifier,
    NumberTest,
    attributes,
    depth,
    require_kind,
    walk,
)
from anabranch.schema import is_text

Doubles: TypeAlias = NDArray[np.float64]
Routes: TypeAlias = NDArray[np.int16]


def assign_routes(classifier: Classifier, columns: Mapping[str, pa.Array | pa.ChunkedArray], rows: int) -> Routes:
    """The route number of each row; `columns` holds at least the attributes that the classifier tests."""
    for name in attributes(classifier):
        if name not in columns:
            raise UnknownAttribute(
                f"attribute '{name}' is not among the columns of the rows", detail=f"they have {', '.join(columns)}"
            )
    if isinstance(classifier, Assign):
        return np.full(rows, classifier.route, dtype=np.int16)
    nodes = list(walk(classifier))
    places = {id(node): place for place, node in enumerate(nodes)}
    tests: dict[Any, int] = {}
    read: list[Doubles] = []
    number, threshold, null_first = np.zeros(len(nodes), np.int64), np.zeros(len(nodes)), np.zeros(len(nodes), np.bool_)
    route = np.zeros(len(nodes), np.int16)
    branches = np.empty((len(nodes), 2), np.int64)
    for place, node in enumerate(nodes):
        if isinstance(node, Assign):
            route[place] = node.route
            branches[place] = place
            continue
        key = (node.attribute, node.values) if isinstance(node, CategoryTest) else node.attribute
        if key not in tests:
            tests[key] = len(read)
            read.append(_read(node, columns[node.attribute]))
        number[place] = tests[key]
        threshold[place] = 0.5 if isinstance(node, CategoryTest) else node.threshold
        branches[place] = places[id(node.second)], places[id(node.first)]
        null_first[place] = node.null_first
    out = np.empty(rows, np.int16)
    _walk(np.stack(read), depth(classifier), number, threshold, null_first, branches, route, out)
    return out


def as_doubles(column: pa.Array | pa.ChunkedArray) -> Doubles:
    """A number, boolean, date or timestamp column as doubles, NaN for NULL."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    elif pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    if column.null_count:
        # Arrow refuses an integer beyond 2^53 as a double; numpy rounds it, as Spark does.
        valid = np.asarray(column.is_valid())
        values = np.full(len(column), np.nan)
        values[valid] = np.asarray(column.drop_null())
        return values
    return np.asarray(column).astype(np.float64, copy=False)


def _read(test: NumberTest | CategoryTest, column: pa.Array | pa.ChunkedArray) -> Doubles:
    require_kind(test, column.type)
    return _listed(test.values, column) if isinstance(test, CategoryTest) else as_doubles(column)


def _listed(values: tuple[str, ...], column: pa.Array | pa.ChunkedArray) -> Doubles:
    """0 where the value is listed, 1 where it is not, NaN for NULL."""
    assert is_text(column.type)
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = whole.dictionary_encode()
    table = np.ones(len(encoded.dictionary) + 1)
    table[-1] = np.nan
    for value in values:
        place = encoded.dictionary.index(value).as_py()
        if place >= 0:
            table[place] = 0.0
    found: Doubles = table[np.asarray(encoded.indices.fill_null(len(encoded.dictionary)))]
    return found


@numba.njit(
    "void(float64[:, ::1], int64, int64[::1], float64[::1], boolean[::1], int64[:, ::1], int16[::1], int16[::1])",
    cache=True,
    nogil=True,
)
def _walk(
    read: Doubles,
    steps: int,
    number: NDArray[np.int64],
    threshold: Doubles,
    null_first: NDArray[np.bool_],
    branches: NDArray[np.int64],
    route: Routes,
    out: Routes,
) -> None:
    """Every row takes as many steps as the deepest one needs, leaves leading to themselves: no branch to mispredict."""
    for row in range(out.shape[0]):
        place = 0
        for _ in range(steps):
            value = read[number[place], row]
            goes_first = (value <= threshold[place]) | ((value != value) & null_first[place])
            place = branches[place, np.int64(goes_first)]
        out[row] = route[place]
