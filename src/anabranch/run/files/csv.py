"""Reads CSV files that Arrow and Spark interpret in the same way.

The meaning of a CSV file depends on Spark's options, and Spark reads malformed values as NULL. So slots read only files
without any ambiguity: no quotes, escapes or control characters, no spaces around values, all columns in every row, and
every value in the plain form of its type. Spark reads all other batches.

Limit: whole numbers, doubles, texts, booleans, dates, and timestamps where the session's zone is UTC.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from anabranch.lang.schema import TIMESTAMP, is_integer
from anabranch.run.files.form import Columns, Unsure
from anabranch.run.files.text import TextForm

_MARKS = (b'"', b"\\", b"\xef\xbb\xbf", b"0x", b"0X")
"""Bytes after which the two may differ: quotes, escapes, marks of order, numbers by sixteens."""
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\n\t")
"""Other ends of lines, and what Spark takes for blanks: it leaves out a line that has nothing else."""
_BLANKS = (b" ", b"\t")
_SOMETHING = re.compile(rb"[^\n]")
_LEAST_TIME = 19
"""Characters of a timestamp that has all its fields up to the second."""


@dataclass(frozen=True)
class Csv(TextForm):
    """Files in CSV: their columns in order, what stands between two values, and whether the first row has names."""

    names: tuple[str, ...]
    separator: str = ","
    has_header: bool = False
    is_utc: bool = True
    """Whether timestamps without a zone are those of UTC."""

    def can_hold(self, kind: pa.DataType) -> bool:
        is_plain = is_integer(kind) or kind in (pa.float64(), pa.string(), pa.bool_(), pa.date32())
        return is_plain or (kind == TIMESTAMP and self.is_utc)

    def rows(self, data: bytes, wanted: Columns, *, use_threads: bool) -> pa.Table:
        if not self._is_plain(data):
            raise Unsure("it has something to be interpreted")
        try:
            return self._parsed(data, wanted, use_threads=use_threads)
        except pa.ArrowException as error:
            raise Unsure(str(error).partition("\n")[0]) from None

    def _is_plain(self, data: bytes) -> bool:
        """True where nothing has to be interpreted."""
        if data[:1] in (b"\n", *_BLANKS) or data[-1:] in _BLANKS:
            return False
        if len(data.translate(None, _CONTROLS)) < len(data):
            return False
        separator = self.separator.encode()
        edges = (edge for mark in (separator, b"\n") for blank in _BLANKS for edge in (mark + blank, blank + mark))
        return not any(mark in data for mark in (*_MARKS, *edges))

    def _has_rows(self, data: bytes) -> bool:
        first = data.find(b"\n") + 1 or len(data) if self.has_header else 0
        return _SOMETHING.search(data, first) is not None

    def _parsed(self, data: bytes, wanted: Columns, *, use_threads: bool) -> pa.Table:
        if not self._has_rows(data):
            return pa.table({name: pa.array([], kind) for name, kind in wanted.items()})
        table = csv.read_csv(
            pa.py_buffer(data),
            csv.ReadOptions(
                column_names=list(self.names),
                skip_rows=int(self.has_header),
                use_threads=use_threads,
                # In one piece where one thread reads: the engine takes columns in one piece.
                block_size=None if use_threads else len(data) + 1,
            ),
            csv.ParseOptions(delimiter=self.separator, quote_char=False, escape_char=False),
            csv.ConvertOptions(
                column_types={name: _parsed_type(kind) for name, kind in wanted.items()},
                include_columns=list(wanted),
                null_values=[""],
                strings_can_be_null=True,
                true_values=["true"],
                false_values=["false"],
            ),
        )
        return pa.table({name: _value(table.column(name), kind) for name, kind in wanted.items()})


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    return pa.string() if kind == TIMESTAMP else kind


def _value(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if kind == pa.float64() and not all(np.isfinite(part.drop_null().to_numpy()).all() for part in values.chunks):
        raise Unsure("a number is not finite")  # its spelling decides
    if kind == TIMESTAMP:
        shortest = pc.min(pc.utf8_length(values)).as_py()
        if shortest is not None and shortest < _LEAST_TIME:
            raise Unsure("a time lacks fields")
        return values.cast(pa.timestamp("us")).cast(TIMESTAMP)
    return values
