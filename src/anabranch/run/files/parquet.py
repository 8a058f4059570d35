"""Reads Parquet files, whose columns and row counts are known from their footers.

Limit: Spark reads files that lack a column, that have another type than the stream, or whose dates use an old calendar,
because it widens numbers, fills in NULL and converts old calendars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import parquet

from anabranch.lang.schema import TIMESTAMP, is_decimal, is_float, is_integer
from anabranch.run.files.form import Columns, Footer, OneByOne, Unsure, reading

_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""In the footer of files whose old dates count days otherwise."""


@dataclass(frozen=True)
class Parquet(OneByOne):
    """Files in Parquet."""

    def can_hold(self, kind: pa.DataType) -> bool:
        return (
            is_integer(kind)
            or is_float(kind)
            or is_decimal(kind)
            or kind in (pa.string(), pa.bool_(), pa.date32(), pa.binary(), TIMESTAMP)
        )

    def look_into(self, path: str, wanted: Columns) -> Footer:
        try:
            with parquet.ParquetFile(path) as file:
                return Footer(_sizes(file.metadata), _difference(file, wanted))
        except (OSError, pa.ArrowException) as error:
            return Footer(why_not=str(error).partition("\n")[0])

    def sizes(self, source: pa.NativeFile) -> tuple[int, ...]:
        """Returns the bytes of the row groups of an open file."""
        with parquet.ParquetFile(source) as file:
            return _sizes(file.metadata)

    def read(self, path: str, wanted: Columns, parts: Sequence[int] | None = None) -> pa.Table:
        with reading(path):
            return self.table(path, wanted, parts)

    def table(self, source: str | pa.NativeFile, wanted: Columns, parts: Sequence[int] | None = None) -> pa.Table:
        """Returns columns of an open file; raises `Unsure` if its columns are not those of the stream."""
        # Of a file in a store, the parts that are needed are asked for at once.
        is_remote = not isinstance(source, str)
        with parquet.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=is_remote) as file:
            if why := _difference(file, wanted):
                raise Unsure(why)
            # Threads of Arrow's own would compete with the other slots.
            groups = range(file.num_row_groups) if parts is None else parts
            table = file.read_row_groups(list(groups), columns=list(wanted), use_threads=False)
        return pa.table({name: _cast(table.column(name), kind) for name, kind in wanted.items()})


def _difference(file: parquet.ParquetFile, wanted: Columns) -> str | None:
    """Returns why Spark may read other values from a file than Arrow; None if it does not."""
    if any(key in (file.metadata.metadata or {}) for key in _LEGACY):
        return "its dates use an old calendar"
    if not _can_unpack(file.metadata):
        return "its compression is not known to Arrow"
    schema, names = file.schema_arrow, file.schema_arrow.names
    leaves = [file.schema.column(place) for place in range(len(file.schema.names))]
    physical = {leaf.path: leaf.physical_type for leaf in leaves}
    for name, kind in wanted.items():
        if names.count(name) != 1:
            return f"it has {names.count(name)} columns '{name}'"
        if not _is_read_as(schema.field(name).type, physical.get(name), kind):
            return f"its column '{name}' has type {schema.field(name).type}, and that of the stream {kind}"
    return None


def _sizes(metadata: parquet.FileMetaData) -> tuple[int, ...]:
    return tuple(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))


def _can_unpack(metadata: parquet.FileMetaData) -> bool:
    """True where Arrow knows the compression; a file has one for all its row groups."""
    group = metadata.row_group(0) if metadata.num_row_groups else None
    kinds = {group.column(place).compression.lower() for place in range(group.num_columns)} if group else set()
    return all(kind == "uncompressed" or pa.Codec.is_available(kind) for kind in kinds)


def _cast(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if kind == TIMESTAMP and values.type.tz is None:
        values = values.cast(pa.timestamp("us"))  # of INT96, which is an instant
    return values if values.type == kind else values.cast(kind)


def _is_read_as(found: pa.DataType, physical: str | None, wanted: pa.DataType) -> bool:
    """True where the values of a file are those that Spark would read as the type of the stream."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if wanted == TIMESTAMP:
        is_instant = pa.types.is_timestamp(found) and found.tz is not None and found.unit != "ns"
        return physical == "INT96" or is_instant
    if wanted == pa.string():
        return found in (pa.string(), pa.large_string())
    return bool(found == wanted)
