"""The hash that spreads rows of a heavy key.

The hash covers a row's time, its key codes, and the payload columns that fit 64 bits. All of these are stored with a
row, so the hash can be computed for new rows and for rows of any row file, however old. Limit: rows that agree in all
of these values go to the same slots.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import RelationBatch
from anabranch.engine.evaluate.codes import combine_codes, key_codes
from anabranch.engine.state.columns import validity
from anabranch.lang.arrays import Integers
from anabranch.lang.schema import Schema, is_spread_by
from anabranch.plan.partitioning import ROW


def row_hashes(rows: RelationBatch) -> Integers:
    """A hash of each row."""
    codes = [rows.codes[name] for name in key_names(rows.codes)]
    schema = Schema.from_arrow(rows.payload.schema)
    columns = (rows.payload.column(name) for name in spread_columns(schema))
    values = (present_codes(column, column.type) for column in columns)
    return combine_codes([rows.times, *codes, *values])


def key_names(codes: Iterable[str]) -> list[str]:
    """The key codes among those of a relation, in order."""
    return [name for name in codes if not name.startswith(ROW)]


def spread_columns(schema: Schema) -> list[str]:
    """The payload columns included in a row's hash, in order."""
    return [field.name for field in schema if is_spread_by(field.type)]


def present_codes(values: pa.Array, kind: pa.DataType) -> Integers:
    """Returns the codes of values as keys of a type, and 0 for NULL."""
    codes = key_codes(values, kind)
    return np.where(validity(values) != 0, codes, 0) if values.null_count else codes
