"""Lines of JSON as columns: whole blocks, of which every line is one plain object.

`read_lines` reads what means the same to every reader of JSON, and refuses the whole block otherwise (`NotPlain`);
callers decide what then: Spark reads the file (`run/files/json`), or records are looked at one by one
(`run/kafka/json_values`). Invariant: values that are read are those that Spark makes of the same lines, as a file or
by `from_json`. Limit: types of `can_be_read`, and fewer than 2**31 bytes at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anabranch.engine.kernels import BoolArray, ByteArray, Int64Array
from anabranch.lang.schema import TIMESTAMP, is_integer
from anabranch.run import json_kernels
from anabranch.run.json_kernels import BROKEN, ESCAPED, FALSE, MISSING, NULL, OBJECT, TEXT, TRUE, WHOLE

_MOST_BYTES = 2**31 - 1
_TIME, _ZONE = 19, 6
"""The characters of a time with seconds, and of the distance of a zone from UTC, such as +01:00."""
_DISTANCE = re.compile(r"[+-](0\d|1[0-7]):[0-5]\d")
"""Spark reads distances of up to 18 hours."""
_Places: TypeAlias = NDArray[np.int32]


class NotPlain(Exception):
    """A block has a line that is not a plain object, or a value that is not plainly one of its column."""


def can_be_read(kind: pa.DataType) -> bool:
    """Returns whether columns of a type are read from JSON."""
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(can_be_read(field.type) for field in kind)
    is_number = is_integer(kind) or kind in (pa.float32(), pa.float64()) or pa.types.is_decimal128(kind)
    return is_number or kind in (pa.string(), pa.bool_(), pa.date32(), pa.timestamp("us"), TIMESTAMP)


def read_lines(data: bytes, columns: pa.Schema, *, is_utc: bool = True) -> pa.Table:
    """Returns the columns of a block of lines; lines without anything are none.

    `is_utc` says whether times without a zone are those of UTC; where not, they are not plain.

    Raises
    ------
    NotPlain
        When not every line is plainly an object with values of the types of the columns.
    """
    if len(data) > _MOST_BYTES:
        raise NotPlain("the block is too large")
    try:
        if not data.isascii():
            data.decode()
        if not data.endswith(b"\n"):
            data += b"\n"
        tree, raw = _tree(columns), np.frombuffer(data, np.uint8)
        shape = len(tree.is_object), data.count(b"\n")
        starts, stops = np.empty(shape, np.int32), np.empty(shape, np.int32)
        sorts = np.zeros(shape, np.uint8)
        rows = json_kernels.find(
            raw, tree.names, tree.bounds, tree.first, tree.following, tree.is_object, starts, stops, sorts
        )
        if rows < 0:
            raise NotPlain("a line is not one plain object")
        values = (_Found(raw, *each) for each in zip(starts[:, :rows], stops[:, :rows], sorts[:, :rows], strict=True))
        return pa.table([_column(field.type, values, is_utc) for field in columns], schema=columns)
    except (UnicodeDecodeError, pa.ArrowException) as error:
        raise NotPlain(str(error).partition("\n")[0]) from None


@dataclass(frozen=True)
class _Tree:
    """The wanted values as nodes, in the order of `_column`; see `json_kernels.find`."""

    names: ByteArray
    bounds: Int64Array
    first: Int64Array
    following: Int64Array
    is_object: ByteArray


@lru_cache(maxsize=64)
def _tree(columns: pa.Schema) -> _Tree:
    names: list[bytes] = []
    first: list[int] = []
    following: list[int] = []
    is_object: list[bool] = []

    def add(fields: Iterator[pa.Field]) -> int:
        """Adds fields of one parent with all below them; returns the number of the first, -1 if there is none."""
        own = []
        for field in fields:
            own.append(len(names))
            names.append(field.name.encode())
            is_object.append(pa.types.is_struct(field.type))
            following.append(-1)
            first.append(-1)
            if is_object[-1]:
                first[own[-1]] = add(iter(field.type))
        for place, node in enumerate(own):
            following[node] = own[(place + 1) % len(own)]
        return own[0] if own else -1

    first.append(add(iter(columns)))
    bounds = np.cumsum([0, *map(len, names)], dtype=np.int64)
    return _Tree(
        np.frombuffer(b"".join(names), np.uint8),
        bounds,
        np.array(first, np.int64),
        np.array(following, np.int64),
        np.array(is_object, np.uint8),
    )


@dataclass(frozen=True)
class _Found:
    """Where the values of a node are."""

    data: ByteArray
    starts: _Places
    stops: _Places
    sorts: ByteArray

    def require(self, *sorts: int) -> None:
        """Raises an error if a value is of none of these sorts."""
        accepted = np.zeros(OBJECT + 1, np.bool_)
        accepted[[MISSING, NULL, *sorts]] = True
        if not accepted[self.sorts].all():
            raise NotPlain("a value is not one of its column")

    @property
    def is_valid(self) -> BoolArray:
        return self.sorts > NULL

    def array(self, kind: pa.DataType, *buffers: Any) -> pa.Array:
        """Returns an array of buffers; values that are missing are NULL."""
        valid = self.is_valid
        count = int(np.count_nonzero(valid))
        bits = None if count == len(valid) else pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(
            kind, len(valid), [bits, *map(pa.py_buffer, buffers)], null_count=len(valid) - count
        )

    def texts(self) -> pa.Array:
        """Returns texts, and numbers as they are written."""
        offsets = np.empty(len(self.sorts) + 1, np.int32)
        is_copied = self.sorts > NULL
        room = int((self.stops - self.starts).sum(where=is_copied, dtype=np.int64))
        copied = np.empty(room, np.uint8)
        end = json_kernels.texts(self.data, self.starts, self.stops, self.sorts, offsets, copied)
        if end < 0:
            raise NotPlain("a text has half a surrogate pair")
        return self.array(pa.string(), offsets, copied[:end])


def _column(kind: pa.DataType, values: Iterator[_Found], is_utc: bool) -> pa.Array:
    """Returns the values of a node, and takes those of the nodes below it."""
    found = next(values)
    if pa.types.is_struct(kind):
        found.require(OBJECT)
        inner = [_column(field.type, values, is_utc) for field in kind]
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=pa.array(~found.is_valid))
    if kind == pa.string():
        found.require(TEXT, ESCAPED)
        return found.texts()
    if kind == pa.bool_():
        found.require(TRUE, FALSE)
        return found.array(kind, np.packbits(found.sorts == TRUE, bitorder="little"))
    if is_integer(kind):
        found.require(WHOLE)
        numbers = np.zeros(len(found.sorts), np.int64)
        if not json_kernels.whole_numbers(found.data, found.starts, found.stops, found.sorts, numbers):
            raise NotPlain("a number is too large")
        return found.array(pa.int64(), numbers).cast(kind)
    if pa.types.is_floating(kind):
        found.require(WHOLE, BROKEN)
        return _floats(found, kind)
    if pa.types.is_decimal(kind):
        found.require(WHOLE, BROKEN, TEXT)
        return found.texts().cast(kind)
    found.require(TEXT)
    return found.texts().cast(kind) if kind == pa.date32() else _times(found.texts(), kind, is_utc)


def _floats(found: _Found, kind: pa.DataType) -> pa.Array:
    # Not by way of doubles, which would round twice.
    values = found.texts().cast(kind)
    numbers = values.fill_null(0.0).to_numpy()
    # Jackson reads -0 as a whole number.
    if not np.isfinite(numbers).all() or (np.signbit(numbers) & (numbers == 0) & (found.sorts == WHOLE)).any():
        raise NotPlain("a number is not finite, or zero with a sign")
    return values


def _times(texts: pa.Array, kind: pa.DataType, is_utc: bool) -> pa.Array:
    """Returns times, all of which have a zone of one form, or none."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)
    in_utc, shortest = pc.ends_with(texts, "Z"), pc.min(pc.binary_length(texts)).as_py()
    if kind == TIMESTAMP and pc.all(in_utc).as_py():
        return _cast_times(texts, shortest - 1, kind)
    if kind == TIMESTAMP and not is_utc:
        return _with_distances(texts, shortest, kind)
    try:
        return _cast_times(texts, shortest, pa.timestamp("us")).cast(kind)
    except pa.ArrowInvalid:
        return _with_distances(texts, shortest, kind)


def _with_distances(texts: pa.Array, shortest: int, kind: pa.DataType) -> pa.Array:
    ends = pc.unique(pc.utf8_slice_codeunits(texts.drop_null(), -_ZONE))
    if not all(_DISTANCE.fullmatch(end.as_py()) for end in ends):
        raise NotPlain("times have no zones, or several forms of them")
    return _cast_times(texts, shortest - _ZONE, kind)


def _cast_times(texts: pa.Array, shortest: int, kind: pa.DataType) -> pa.Array:
    if shortest < _TIME:
        raise NotPlain("a time lacks fields")
    return texts.cast(kind)
