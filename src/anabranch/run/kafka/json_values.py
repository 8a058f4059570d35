"""JSON texts as columns: whole blocks by Arrow, and one by one those that Arrow refuses.

A record is *good* if its text is one JSON object whose fields have the declared types; missing fields are NULL.
Invariants: a good record has the values that Spark's `from_json` gives it in a session in UTC; whether a record is good
does not depend on its neighbours in the block, nor on the columns that a query reads. Limit: `from_json` accepts more:
single quotes, text after the object, floating-point numbers as texts, and numbers as timestamps. These are bad here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, DecimalException
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from anabranch.errors import CatalogError
from anabranch.lang.schema import TIMESTAMP, is_integer

LEAST_BLOCK = 16
"""Texts of a block that Arrow refuses are tried one by one from here on; larger blocks are halved."""
_OPEN, _CLOSE = ord("{"), ord("}")
_AFTER_AN_OBJECT = re.compile(rb"}[ \t\r]*[^ \t\r\n,}\]]")
"""What follows an object on its line, unless it is inside another; may also be found inside a text."""
_FRACTION = re.compile(r"(\.\d{6})\d+")
_INFINITE = {
    "NaN": "nan",
    **dict.fromkeys(("INF", "+INF", "Infinity", "+Infinity"), "inf"),
    **dict.fromkeys(("-INF", "-Infinity"), "-inf"),
}


@dataclass(frozen=True)
class Parsed:
    """The columns of a block of records; bad ones are NULL in all columns."""

    rows: pa.Table
    bad: Mapping[int, str]
    """What is wrong, by the number of the record in the block."""


def parse(texts: Sequence[bytes | None], columns: pa.Schema) -> Parsed:
    """Parses records; one without a text is bad."""
    wire = pa.schema([(field.name, _wire_type(field.type)) for field in columns])
    bad: dict[int, str] = {}
    parts = list(_blocks(texts, 0, columns, wire, bad))
    return Parsed(pa.concat_tables(parts).combine_chunks() if parts else columns.empty_table(), bad)


def require_types(columns: pa.Schema) -> None:
    """Refuses columns of types that are not read from JSON."""
    for field in columns:
        if not _is_known(field.type):
            raise CatalogError(
                f"column '{field.name}' of type {field.type} cannot be read from JSON",
                hint="read it as string; known are numbers, decimals, texts, booleans, dates, timestamps and structs",
            )


def _is_known(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_is_known(field.type) for field in kind)
    is_plain = is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal128(kind)
    return is_plain or kind in (pa.string(), pa.bool_(), pa.date32(), pa.timestamp("us"), TIMESTAMP)


def _blocks(
    texts: Sequence[bytes | None], first: int, columns: pa.Schema, wire: pa.Schema, bad: dict[int, str]
) -> list[pa.Table]:
    if not texts:
        return []
    try:
        return [_whole(texts, columns, wire)]
    except (pa.ArrowException, UnicodeDecodeError, TypeError, _NotPlain):
        if len(texts) > LEAST_BLOCK:
            middle = len(texts) // 2
            before = _blocks(texts[:middle], first, columns, wire, bad)
            return before + _blocks(texts[middle:], first + middle, columns, wire, bad)
    return [_single(text, first + place, columns, wire, bad) for place, text in enumerate(texts)]


def _whole(texts: Sequence[bytes | None], columns: pa.Schema, wire: pa.Schema) -> pa.Table:
    """Parses a block at once; raises an error if one of its texts is not plainly an object on one line."""
    data = b"\n".join(texts)  # type: ignore[arg-type]  # a missing text is an error
    _require_objects(data, texts)
    table = arrow_json.read_json(
        pa.py_buffer(data),
        # In one piece: the engine takes columns in one piece, and other tasks use the other cores.
        arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        arrow_json.ParseOptions(explicit_schema=wire, unexpected_field_behavior="ignore"),
    )
    if not data.isascii() or any(map(pa.types.is_decimal, wire.types)):
        table.validate(full=True)  # Arrow takes bytes that are no Unicode, and decimals of more digits
    if wire == columns:
        return table
    return pa.table([table.column(field.name).cast(field.type) for field in columns], schema=columns)


def _require_objects(data: bytes, texts: Sequence[bytes | None]) -> None:
    """Raises an error unless each line is one object: Arrow would shift rows, or crash, over other lines."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))  # type: ignore[arg-type]
    ends = np.cumsum(lengths + 1) - 1
    marks = np.frombuffer(data, np.uint8)
    is_plain = (
        lengths.min() >= 2
        and bool((marks[ends - lengths] == _OPEN).all())
        and bool((marks[ends - 1] == _CLOSE).all())
        and data.count(b"\n") == len(texts) - 1
        and _AFTER_AN_OBJECT.search(data) is None
    )
    if not is_plain:
        raise _NotPlain


def _single(text: bytes | None, number: int, columns: pa.Schema, wire: pa.Schema, bad: dict[int, str]) -> pa.Table:
    try:
        return _whole([text], columns, wire)
    except (pa.ArrowException, UnicodeDecodeError, TypeError, _NotPlain):
        pass
    try:
        record = _object(text)
        values = [[_value(record.get(field.name), field.name, field.type)] for field in columns]
        return pa.table([pa.array(value, field.type) for value, field in zip(values, columns, strict=True)], columns)
    except (_Wrong, pa.ArrowException, OverflowError, UnicodeError) as error:
        bad[number] = str(error).partition("\n")[0]
        return pa.table([pa.nulls(1, field.type) for field in columns], columns)


def _object(text: bytes | None) -> dict[str, Any]:
    if text is None:
        raise _Wrong("it has no value")
    try:
        found = json.loads(text.decode(), parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise _Wrong(f"its value is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise _Wrong("its value is not a JSON object")
    return found


def _value(value: Any, name: str, kind: pa.DataType) -> Any:
    """Returns a value of JSON as one of a type, as `from_json` does."""
    if value is None:
        return None
    found = _converted(value, name, kind)
    if found is None:
        raise _Wrong(f"field '{name}' is {_shown(value)}, not a {kind}")
    return found


def _converted(value: Any, name: str, kind: pa.DataType) -> Any:
    """Returns the converted value; None if it is not one of the type."""
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {field.name: _value(value.get(field.name), f"{name}.{field.name}", field.type) for field in kind}
    if kind == pa.bool_() and isinstance(value, bool):
        return value
    if is_integer(kind) and isinstance(value, int) and is_number:
        return value
    if pa.types.is_floating(kind):
        return float(value) if is_number else _infinite(value)
    if kind == pa.string():
        return _text(value)
    if pa.types.is_decimal(kind) and (is_number or isinstance(value, str)):
        return _decimal(value, kind)
    if isinstance(value, str) and (pa.types.is_timestamp(kind) or kind == pa.date32()):
        return _time(value, kind)
    return None


def _infinite(value: Any) -> float | None:
    return float(_INFINITE[value]) if isinstance(value, str) and value in _INFINITE else None


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int) else None


def _decimal(value: Any, kind: pa.Decimal128Type) -> Decimal | None:
    try:
        found = Decimal(value).quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP)
    except (DecimalException, ValueError):
        return None
    return found if found.is_finite() and len(found.as_tuple().digits) <= kind.precision else None


def _time(value: str, kind: pa.DataType) -> Any:
    """Returns a date or a timestamp; digits beyond microseconds are dropped, and a time without a zone is in UTC."""
    text = pa.array([_FRACTION.sub(r"\1", value)])
    for target in (kind, pa.timestamp("us")) if kind == TIMESTAMP else (kind,):
        try:
            return text.cast(target).cast(kind)[0].as_py()
        except pa.ArrowInvalid:
            continue
    return None


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _wire_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type as which Arrow parses a column: it takes dates for numbers."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _wire_type(field.type)) for field in kind])
    return pa.string() if kind == pa.date32() else kind


class _NotPlain(Exception):
    """A block is not one plain object per line."""


class _Wrong(Exception):
    """A record is not one of the stream."""
