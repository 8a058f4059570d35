"""Reads Parquet files, whose columns and row counts are known from their footers.

Limit: Spark reads files that lack a column, that have another type than the stream, or whose dates use an old calendar,
because it widens numbers, fills in NULL and converts old calendars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import parquet

from anabranch.errors import CatalogError
from anabranch.lang.schema import TIMESTAMP, is_decimal, is_float, is_integer
from anabranch.run.files.form import Columns, Footer, OneByOne

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
                metadata, schema = file.metadata, file.schema_arrow
                leaves = [file.schema.column(place) for place in range(len(file.schema.names))]
        except (OSError, pa.ArrowException):
            return Footer(0, is_readable=False)
        names, physical = schema.names, {leaf.path: leaf.physical_type for leaf in leaves}
        is_readable = not any(key in (metadata.metadata or {}) for key in _LEGACY) and _can_unpack(metadata)
        is_readable = is_readable and all(
            names.count(name) == 1 and _is_read_as(schema.field(name).type, physical.get(name), kind)
            for name, kind in wanted.items()
        )
        sizes = tuple(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        return Footer(int(metadata.num_rows), is_readable, sizes)

    def read(self, path: str, wanted: Columns, parts: Sequence[int] | None = None) -> pa.Table:
        try:
            with parquet.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
                # Threads of Arrow's own would compete with the other slots.
                groups = range(file.num_row_groups) if parts is None else parts
                table = file.read_row_groups(list(groups), columns=list(wanted), use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise CatalogError(
                f"file '{path}' of a stream cannot be read",
                detail=str(error).partition("\n")[0],
                hint="the batch is not committed; fix the file, or write the columns that it has into the schema",
            ) from error
        return pa.table({name: _cast(table.column(name), kind) for name, kind in wanted.items()})


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
