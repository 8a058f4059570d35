"""User-defined functions for tests: as the engine calls them, and as DuckDB macros."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.functions import own_function


def _near(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.less_equal(pc.abs(pc.subtract(left, right)), 1)


def _half(value: pa.Array) -> pa.Array:
    return pc.divide(value, 2.0)


def _known(value: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_null(value), 0, 1)


def _digit(value: pa.Array) -> pa.Array:
    if pc.any(pc.greater(pc.abs(value), 9)).as_py():
        raise ValueError("it is given a number of more than one digit")
    return value


OWN_FUNCTIONS = (
    own_function("near", _near, "boolean", takes=["bigint", "bigint"]),
    own_function("half", _half, "double", takes=["double"], never_fails=True),
    own_function("known", _known, "bigint", nulls="pass"),
    own_function("digit", _digit, "bigint", takes=["bigint"], version="2"),
)
"""One over two relations, one that cannot fail, one that receives NULLs, and one that fails if it is not guarded."""

MACROS = (
    "CREATE OR REPLACE MACRO near(a, b) AS abs(a - b) <= 1",
    "CREATE OR REPLACE MACRO half(a) AS CAST(a AS DOUBLE) / 2",
    "CREATE OR REPLACE MACRO known(a) AS CASE WHEN a IS NULL THEN 0 ELSE 1 END",
    "CREATE OR REPLACE MACRO digit(a) AS CAST(a AS BIGINT)",
    "CREATE OR REPLACE MACRO regexp_like(a, b) AS regexp_matches(a, b)",
)
