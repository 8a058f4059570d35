"""JSON texts as columns: whole blocks as lines (`run/json_lines`), and one by one those that are not plain.

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

import pyarrow as pa

from anabranch.errors import CatalogError
from anabranch.lang.schema import TIMESTAMP, is_integer
from anabranch.run.json_lines import NotPlain, can_be_read, read_lines

LEAST_BLOCK = 16
"""Texts of a block that is not plain are tried one by one from here on; larger blocks are halved."""
_FRACTION = re.compile(r"(\.\d{6})\d+")
_REGISTRY = b"\0"
"""How values begin that name a schema of a registry."""
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
    bad: dict[int, str] = {}
    parts = list(_blocks(texts, 0, columns, bad))
    return Parsed(pa.concat_tables(parts).combine_chunks() if parts else columns.empty_table(), bad)


def require_types(columns: pa.Schema) -> None:
    """Refuses columns of types that are not read from JSON."""
    for field in columns:
        if not can_be_read(field.type):
            raise CatalogError(
                f"column '{field.name}' of type {field.type} cannot be read from JSON",
                hint="read it as string; known are numbers, decimals, texts, booleans, dates, timestamps and structs",
            )


def _blocks(texts: Sequence[bytes | None], first: int, columns: pa.Schema, bad: dict[int, str]) -> list[pa.Table]:
    if not texts:
        return []
    try:
        return [_whole(texts, columns)]
    except (NotPlain, TypeError):
        if len(texts) > LEAST_BLOCK:
            middle = len(texts) // 2
            before = _blocks(texts[:middle], first, columns, bad)
            return before + _blocks(texts[middle:], first + middle, columns, bad)
    return [_single(text, first + place, columns, bad) for place, text in enumerate(texts)]


def _whole(texts: Sequence[bytes | None], columns: pa.Schema) -> pa.Table:
    """Parses a block at once; raises an error if one of its texts is not plainly an object on one line."""
    data = b"\n".join(texts)  # type: ignore[arg-type]  # a missing text is an error
    table = read_lines(data, columns)
    if len(table) != len(texts) or data.count(b"\n") != len(texts) - 1:
        raise NotPlain("a text is not one line")
    return table


def _single(text: bytes | None, number: int, columns: pa.Schema, bad: dict[int, str]) -> pa.Table:
    try:
        return _whole([text], columns)
    except (NotPlain, TypeError):
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
    if text.startswith(_REGISTRY):
        raise _Wrong(
            "its value begins with a zero byte, as Avro and Protobuf of a schema registry do. Only JSON is decoded; "
            "leave the schema of the stream out, and decode 'value' in 'select' with Spark's functions"
        )
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
        return _float(value, kind) if is_number else _infinite(value)
    if kind == pa.string():
        return _text(value)
    if pa.types.is_decimal(kind) and (is_number or isinstance(value, str)):
        return _decimal(value, kind)
    if isinstance(value, str) and (pa.types.is_timestamp(kind) or kind == pa.date32()):
        return _time(value, kind)
    return None


def _float(value: Any, kind: pa.DataType) -> float:
    try:
        return float(pa.array([str(value)]).cast(kind)[0].as_py())  # rounded once
    except pa.ArrowInvalid:
        return float(value)  # beyond the largest number


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


class _Wrong(Exception):
    """A record is not one of the stream."""
