"""Reads files of JSON lines in which every line is one plain object (`run/json_lines`).

Spark reads a line that it cannot parse, or a value of another type, as NULL. A file with such a line, or with a value
that Spark may interpret, is left to Spark.

Limit: whole numbers, floating-point numbers, decimals, texts, booleans, dates, instants, and structs of these.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from anabranch.run.files.form import Columns, Unsure
from anabranch.run.files.text import TextForm
from anabranch.run.json_lines import NotPlain, can_be_read, read_lines


@dataclass(frozen=True)
class Json(TextForm):
    """Files of JSON lines."""

    is_utc: bool = True
    """Whether timestamps without a zone are those of UTC."""

    def can_hold(self, kind: pa.DataType) -> bool:
        return can_be_read(kind) and not _has_wall_clock(kind)

    def rows(self, data: bytes, wanted: Columns, *, use_threads: bool) -> pa.Table:
        try:
            return read_lines(data, pa.schema(list(wanted.items())), is_utc=self.is_utc)
        except NotPlain as error:
            raise Unsure(str(error)) from None


def _has_wall_clock(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_wall_clock(field.type) for field in kind)
    return bool(kind == pa.timestamp("us"))
