"""Evaluates a classifier: finds the route of every row of a batch, column by column.

The thresholds and categories of a tree cut its columns into buckets, and all columns together into boxes; all rows of
one box have the same route. So a tree is compiled once into a table of boxes. A batch then costs one branch-free pass
per threshold to number the boxes (a third of a nanosecond per row) and one table lookup, regardless of the depth of the
tree. NULL has its own bucket in every column, and NaN counts as NULL. Texts are looked up in one list of all
categories.

Limit: a tree with more than `MOST_BOXES` boxes is split in two at its first test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TypeAlias

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anabranch.errors import UnknownAttribute
from anabranch.lang.arrays import Doubles, Integers
from anabranch.lang.schema import is_integer
from anabranch.plan.classifier import (
    DAY,
    HOUR,
    Assign,
    CategoryTest,
    Classifier,
    NumberTest,
    Test,
    attributes,
    depth,
    require_kind,
    walk,
)

Booleans: TypeAlias = NDArray[np.bool_]
Routes: TypeAlias = NDArray[np.uint16]
AttributeColumn: TypeAlias = pa.Array | pa.ChunkedArray | Doubles | Integers
"""Numbers without NULLs may be numpy arrays."""

MOST_BOXES = 1 << 14
"""The most boxes of a table: 32 kilobytes, which fit the L1 cache."""
_EXACT = 1 << 53
"""A double holds every whole number below this."""


def assign_routes(classifier: Classifier, columns: Mapping[str, AttributeColumn], rows: int) -> Routes:
    """Returns the route number of each row; `columns` holds at least the attributes that the classifier tests."""
    for name in attributes(classifier):
        if name not in columns:
            raise UnknownAttribute(
                f"attribute '{name}' is not among the columns of the rows", detail=f"they have {', '.join(columns)}"
            )
    return lay_out(classifier).assign(columns, rows)


# --- a tree as a table of boxes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Numbers:
    """A numeric column of a tree: a value above n of its thresholds is in bucket n; the last bucket is for NULL."""

    attribute: str
    tests: tuple[NumberTest, ...]

    @cached_property
    def thresholds(self) -> Doubles:
        return np.unique([test.threshold for test in self.tests])

    @cached_property
    def whole_thresholds(self) -> Integers | None:
        """Thresholds for integers, if comparing with them is equivalent to comparing doubles."""
        is_exact = bool((np.abs(self.thresholds) < _EXACT).all())
        return np.floor(self.thresholds).astype(np.int64) if is_exact else None

    @property
    def buckets(self) -> int:
        return len(self.thresholds) + 2

    def goes_first(self, test: Test) -> Booleans:
        assert isinstance(test, NumberTest)
        first: Booleans = np.arange(self.buckets) <= np.searchsorted(self.thresholds, test.threshold)
        first[-1] = test.null_first
        return first

    def add_buckets(self, column: AttributeColumn, stride: int, boxes: Routes) -> None:
        values: Doubles | Integers = column if isinstance(column, np.ndarray) else self._read(column)
        if values.dtype.kind == "i" and self.whole_thresholds is not None:
            _add_whole(values.astype(np.int64, copy=False), self.whole_thresholds, stride, boxes)
        else:
            _add(values.astype(np.float64, copy=False), self.thresholds, stride, boxes)

    def _read(self, column: pa.Array | pa.ChunkedArray) -> Doubles | Integers:
        require_kind(self.tests[0], column.type)
        if is_integer(column.type) and not column.null_count:
            return np.ascontiguousarray(column, dtype=np.int64)
        return np.ascontiguousarray(as_doubles(column))


@dataclass(frozen=True)
class _Categories:
    """A text column of a tree: one bucket for each listed category, then one for NULL, then one for all others."""

    attribute: str
    tests: tuple[CategoryTest, ...]

    @cached_property
    def listed(self) -> tuple[str, ...]:
        return tuple(sorted({value for test in self.tests for value in test.values}))

    @property
    def buckets(self) -> int:
        return len(self.listed) + 2

    def goes_first(self, test: Test) -> Booleans:
        assert isinstance(test, CategoryTest)
        return np.array([*(value in test.values for value in self.listed), test.null_first, False])

    def add_buckets(self, column: AttributeColumn, stride: int, boxes: Routes) -> None:
        assert not isinstance(column, np.ndarray)
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if isinstance(whole, pa.DictionaryArray):
            # Few distinct texts for many rows: look each up once.
            places = self._looked_up(whole.dictionary)
            found = np.append(places, len(self.listed)).take(np.asarray(whole.indices.fill_null(len(places))))
        else:
            found = self._looked_up(whole)
        boxes += found.astype(np.uint16) * np.uint16(stride)

    def _looked_up(self, texts: pa.Array) -> Integers:
        """Returns the bucket of each text."""
        require_kind(self.tests[0], texts.type)
        known = pa.array([*self.listed, None], texts.type)
        return np.asarray(pc.index_in(texts, known).fill_null(len(known)))


@dataclass(frozen=True, eq=False)
class Table:
    """A classifier laid out as a table of boxes."""

    axes: tuple[_Numbers | _Categories, ...]
    routes: Routes
    """The route of each box; buckets of the first column are contiguous."""

    def assign(self, columns: Mapping[str, AttributeColumn], rows: int) -> Routes:
        """Returns the route number of each row; see `assign_routes`."""
        boxes = np.zeros(rows, dtype=np.uint16)
        stride = 1
        for axis in self.axes:
            axis.add_buckets(columns[axis.attribute], stride, boxes)
            stride *= axis.buckets
        _look_up(boxes, self.routes)
        return boxes


@dataclass(frozen=True, eq=False)
class Tables:
    """A classifier with too many boxes, split in two at its first test."""

    test: Table | Tables
    first: Table | Tables
    second: Table | Tables

    def assign(self, columns: Mapping[str, AttributeColumn], rows: int) -> Routes:
        """Returns the route number of each row; see `assign_routes`."""
        test, first, second = (part.assign(columns, rows) for part in (self.test, self.first, self.second))
        return np.where(test == 0, first, second)


@lru_cache(maxsize=256)
def lay_out(classifier: Classifier) -> Table | Tables:
    """Compiles a classifier into tables."""
    numbers: dict[str, list[NumberTest]] = {}
    categories: dict[str, list[CategoryTest]] = {}
    for node in walk(classifier):
        match node:
            case NumberTest():
                numbers.setdefault(node.attribute, []).append(node)
            case CategoryTest():
                categories.setdefault(node.attribute, []).append(node)
    axes: tuple[_Numbers | _Categories, ...] = (
        *(_Numbers(name, tuple(tests)) for name, tests in numbers.items()),
        *(_Categories(name, tuple(tests)) for name, tests in categories.items()),
    )
    shape = [axis.buckets for axis in axes]
    if math.prod(shape) > MOST_BOXES and not isinstance(classifier, Assign) and depth(classifier) > 1:
        test = replace(classifier, first=Assign(0), second=Assign(1))
        return Tables(*(lay_out(part) for part in (test, classifier.first, classifier.second)))
    routes = np.zeros(shape, dtype=np.uint16)
    _fill(routes, classifier, axes, [np.ones(buckets, np.bool_) for buckets in shape])
    return Table(axes, routes.reshape(-1, order="F"))


def _fill(routes: Routes, tree: Classifier, axes: tuple[_Numbers | _Categories, ...], within: list[Booleans]) -> None:
    """Writes the routes of a tree into the boxes that reach it: those within the given buckets of each column."""
    if isinstance(tree, Assign):
        routes[np.ix_(*within)] = tree.route
        return
    place = next(i for i, axis in enumerate(axes) if tree in axis.tests)
    first = axes[place].goes_first(tree)
    for branch, goes in ((tree.first, first), (tree.second, ~first)):
        _fill(routes, branch, axes, [*within[:place], within[place] & goes, *within[place + 1 :]])


def _read_only(kind: numba.types.Number) -> numba.types.Array:
    return numba.types.Array(kind, 1, "C", readonly=True)


@numba.njit(
    numba.void(_read_only(numba.int64), _read_only(numba.int64), numba.uint16, numba.uint16[::1]),
    cache=True,
    nogil=True,
)
def _add_whole(values: Integers, thresholds: Integers, stride: int, boxes: Routes) -> None:
    for threshold in thresholds:
        for i in range(values.shape[0]):
            boxes[i] += stride * np.uint16(values[i] > threshold)


@numba.njit(
    numba.void(_read_only(numba.float64), _read_only(numba.float64), numba.uint16, numba.uint16[::1]),
    cache=True,
    nogil=True,
)
def _add(values: Doubles, thresholds: Doubles, stride: int, boxes: Routes) -> None:
    for threshold in thresholds:
        for i in range(values.shape[0]):
            boxes[i] += stride * np.uint16(values[i] > threshold)
    null = stride * np.uint16(thresholds.shape[0] + 1)
    for i in range(values.shape[0]):
        boxes[i] += null * np.uint16(values[i] != values[i])


@numba.njit("void(uint16[::1], uint16[::1])", cache=True, nogil=True)
def _look_up(boxes: Routes, routes: Routes) -> None:
    """Replaces each box number by its route."""
    for i in range(boxes.shape[0]):
        boxes[i] = routes[boxes[i]]


# --- columns as numbers ----------------------------------------------------------------------------------------------


def hours(times: pa.Array | pa.ChunkedArray | Integers) -> Doubles:
    """Returns the UTC hour of day of timestamps or of microseconds since the epoch; NaN for NULL."""
    if isinstance(times, np.ndarray):
        found: Doubles = (times % DAY // HOUR).astype(np.float64)
        return found
    micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
    found = np.full(len(micros), np.nan)
    found[np.asarray(micros.is_valid())] = hours(np.asarray(micros.drop_null()))
    return found


def as_doubles(column: pa.Array | pa.ChunkedArray) -> Doubles:
    """Converts a number, boolean, date or timestamp column to doubles, NaN for NULL."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    elif pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    if column.null_count:
        # Arrow rejects the conversion of an integer beyond 2^53 to double; numpy rounds it, as Spark does.
        valid = np.asarray(column.is_valid())
        values = np.full(len(column), np.nan)
        values[valid] = np.asarray(column.drop_null())
        return values
    return np.asarray(column).astype(np.float64, copy=False)
