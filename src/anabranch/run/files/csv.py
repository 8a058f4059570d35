"""Reads CSV files that Arrow and Spark interpret in the same way.

The meaning of a CSV file depends on Spark's options, and Spark reads malformed values as NULL. So slots read only files
without any ambiguity: no quotes, escapes or control characters, no spaces around values, all columns in every row, and
every value in the plain form of its type. Spark reads all other batches. A CSV file has no metadata, so the driver
reads it once to check this.

Limit: whole numbers, doubles, texts, booleans, dates, and timestamps where the session's zone is UTC.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from anabranch.errors import CatalogError
from anabranch.lang.schema import TIMESTAMP, is_integer
from anabranch.run.files.form import Columns, Footer, OneByOne

MOST_BYTES = 256 * 2**20
"""Of a larger file, Spark's tasks read a part each."""
_MARKS = (b'"', b"\\", b"\xef\xbb\xbf", b"0x", b"0X")
"""Bytes after which the two may differ: quotes, escapes, marks of order, numbers by sixteens."""
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\n\t")
"""Other ends of lines, and what Spark takes for blanks: it leaves out a line that has nothing else."""
_BLANKS = (b" ", b"\t")
_PACKED = (".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".xz", ".zst")
_END, _SOMETHING = ord("\n"), re.compile(rb"[^\n]")
_LEAST_TIME = 19
"""Characters of a timestamp that has all its fields up to the second."""


@dataclass(frozen=True)
class Csv(OneByOne):
    """Files in CSV: their columns in order, what stands between two values, and whether the first row has names."""

    names: tuple[str, ...]
    separator: str = ","
    has_header: bool = False
    is_utc: bool = True
    """Whether timestamps without a zone are those of UTC."""

    def can_hold(self, kind: pa.DataType) -> bool:
        is_plain = is_integer(kind) or kind in (pa.float64(), pa.string(), pa.bool_(), pa.date32())
        return is_plain or (kind == TIMESTAMP and self.is_utc)

    def look_into(self, path: str, wanted: Columns) -> Footer:
        try:
            data = Path(path).read_bytes()
        except OSError:
            return Footer(0, is_readable=False)
        if not path.endswith(_PACKED) and self._is_plain(data):
            with suppress(pa.ArrowException, _Unsure):
                return Footer(len(self._parsed(data, wanted, use_threads=True)), True, (len(data),))
        return Footer(_lines(data) - self.has_header, is_readable=False)

    def read(self, path: str, wanted: Columns, parts: Sequence[int] | None = None) -> pa.Table:
        try:
            # Threads of Arrow's own would compete with the other slots.
            return self._parsed(Path(path).read_bytes(), wanted, use_threads=False)
        except (OSError, pa.ArrowException, _Unsure) as error:
            raise CatalogError(
                f"file '{path}' of a stream cannot be read",
                detail=str(error).partition("\n")[0] or "it has changed since it was found",
                hint="the batch is not committed; put the file back as it was, and write new rows to new files",
            ) from error

    def _is_plain(self, data: bytes) -> bool:
        """True where nothing has to be interpreted."""
        if len(data) > MOST_BYTES or data[:1] in (b"\n", *_BLANKS) or data[-1:] in _BLANKS:
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


class _Unsure(Exception):
    """A value that Spark may read otherwise."""


def _lines(data: bytes) -> int:
    """The lines that are not empty."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _END)
    is_open = bool(data) and not data.endswith(b"\n")
    return int((np.diff(ends, prepend=-1) > 1).sum()) + is_open


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    return pa.string() if kind == TIMESTAMP else kind


def _value(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if kind == pa.float64() and not all(np.isfinite(part.drop_null().to_numpy()).all() for part in values.chunks):
        raise _Unsure("a number is not finite")  # its spelling decides
    if kind == TIMESTAMP:
        shortest = pc.min(pc.utf8_length(values)).as_py()
        if shortest is not None and shortest < _LEAST_TIME:
            raise _Unsure("a time lacks fields")
        return values.cast(pa.timestamp("us")).cast(TIMESTAMP)
    return values
