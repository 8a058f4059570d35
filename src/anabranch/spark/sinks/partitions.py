"""Splits the results of a worker by the values of partition columns, one file for each combination of values.

A file stores its values in its Parquet metadata, where the driver reads them when it adds the file to a table; the name
of the file has only their hash. Invariant: all rows of a file have the values that its metadata states.

Limit: partition columns are integers, texts, booleans or dates. A worker keeps one open file for each combination, so
results should have few combinations in a batch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

_VALUES = b"anabranch.partition"


@dataclass(frozen=True)
class Partitions:
    """The partition columns of a table."""

    columns: tuple[str, ...] = ()
    are_stored: bool = False
    """True if files contain the partition columns too."""

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yields the rows of each combination of values, with a name for the file that they belong to."""
        if not self.columns:
            yield "", batch
            return
        if not batch.num_rows:
            return
        combinations = np.zeros(batch.num_rows, dtype=np.int64)
        for column in self.columns:
            encoded = batch.column(column).dictionary_encode(null_encoding="encode")
            # Numbered anew for each column, so that the numbers of many columns cannot overflow.
            codes = combinations * len(encoded.dictionary) + encoded.indices.to_numpy()
            combinations = np.unique(codes, return_inverse=True)[1]
        order = np.argsort(combinations, kind="stable")
        starts = np.flatnonzero(np.diff(combinations[order], prepend=-1))
        for rows in np.split(order, starts[1:]):
            own = batch.take(pa.array(rows))
            values = json.dumps({column: _text(own.column(column)[0].as_py()) for column in self.columns})
            kept = own if self.are_stored else own.drop_columns(list(self.columns))
            named = kept.replace_schema_metadata({_VALUES: values})
            yield f"-{hashlib.sha256(values.encode()).hexdigest()[:16]}", named


UNPARTITIONED = Partitions()


def partition_values(metadata: Mapping[bytes, bytes] | None) -> dict[str, str | None]:
    """Returns the values that a file states in its metadata, as texts."""
    values: dict[str, str | None] = json.loads((metadata or {}).get(_VALUES, b"{}"))
    return values


def _text(value: object) -> str | None:
    """Returns a value as the Delta protocol writes it."""
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
