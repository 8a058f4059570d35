"""Walking a classifier: the route of every row of a batch, test by test over whole columns.

Each attribute becomes a column of doubles with NaN for NULL, and a category test one of its own (0 listed, 1 not).
Reading costs one pass per attribute and every test of the tree a few more, about a nanosecond per row together, because
a pass without branches is quicker than following each row to its leaf while trees have some dozen tests. Rows are never
touched one by one; the distinct values of a text column are looked up per listed category.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.errors import UnknownAttribute
from anabranch.plan.classifier import (
    Assign,
    CategoryTest,
    Classifier,
    NumberTest,
    Test,
    attributes,
    require_kind,
    walk,
)
from anabranch.schema import is_integer, is_text

Doubles: TypeAlias = NDArray[np.float64]
Routes: TypeAlias = NDArray[np.int16]
_Key: TypeAlias = tuple[str, tuple[str, ...] | None]


def assign_routes(classifier: Classifier, columns: Mapping[str, pa.Array | pa.ChunkedArray], rows: int) -> Routes:
    """The route number of each row; `columns` holds at least the attributes that the classifier tests."""
    for name in attributes(classifier):
        if name not in columns:
            raise UnknownAttribute(
                f"attribute '{name}' is not among the columns of the rows", detail=f"they have {', '.join(columns)}"
            )
    if isinstance(classifier, Assign):
        return np.full(rows, classifier.route, dtype=np.int16)
    tests = {_column_of(node): node for node in walk(classifier) if not isinstance(node, Assign)}
    read = {key: _read(node, columns[node.attribute]) for key, node in tests.items()}
    return _routes(classifier, read)


def _routes(classifier: Classifier, read: Mapping[_Key, Doubles]) -> Routes:
    if isinstance(classifier, Assign):
        return np.array(classifier.route, dtype=np.int16)
    values = read[_column_of(classifier)]
    threshold = 0.5 if isinstance(classifier, CategoryTest) else classifier.threshold
    is_whole = values.dtype.kind == "i"
    # Whole numbers are compared as such where that is the same: a double holds every one up to 2^53.
    holds = values <= (np.int64(math.floor(threshold)) if is_whole and abs(threshold) < 1 << 53 else threshold)
    if classifier.null_first and not is_whole:
        holds |= np.isnan(values)
    return _choose(holds, _routes(classifier.first, read), _routes(classifier.second, read))


def _choose(holds: NDArray[np.bool_], first: Routes, second: Routes) -> Routes:
    """The first where it holds, else the second, by bits: at a tenth of the time that `numpy.where` takes."""
    chosen = holds.astype(np.int16)
    np.negative(chosen, out=chosen)
    chosen &= first ^ second
    chosen ^= second
    return chosen


def _column_of(test: Test) -> _Key:
    return (test.attribute, test.values) if isinstance(test, CategoryTest) else (test.attribute, None)


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
    if isinstance(test, CategoryTest):
        return _listed(test.values, column)
    if is_integer(column.type) and not column.null_count:
        # Compared with a double block by block, which saves a column of doubles.
        return np.asarray(column)
    return as_doubles(column)


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
