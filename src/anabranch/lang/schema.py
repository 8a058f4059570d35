"""Columns and their types. The types are Arrow's, because all packages exchange Arrow data.

A schema is an ordered, immutable set of uniquely named fields. Names are case-insensitive, as in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from anabranch.errors import CatalogError

TIMESTAMP = pa.timestamp("us", tz="UTC")
INTERVAL = pa.duration("us")


@dataclass(frozen=True)
class Field:
    """One named, typed column."""

    name: str
    type: pa.DataType
    nullable: bool = True


@dataclass(frozen=True)
class Schema:
    """An ordered set of fields with distinct names."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for field in self.fields:
            if field.name.lower() in seen:
                raise CatalogError(f"column '{field.name}' appears twice", hint="rename one of them")
            seen.add(field.name.lower())

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    def find(self, name: str) -> Field | None:
        """Returns the field with that name, case-insensitively, or None."""
        lowered = name.lower()
        return next((field for field in self.fields if field.name.lower() == lowered), None)

    def only(self, names: frozenset[str]) -> Schema:
        """Returns the fields with those names, in this schema's order."""
        return Schema(tuple(field for field in self.fields if field.name in names))

    def to_arrow(self) -> pa.Schema:
        return self._arrow

    @cached_property
    def _arrow(self) -> pa.Schema:
        return pa.schema([pa.field(field.name, field.type, field.nullable) for field in self.fields])

    @classmethod
    def from_arrow(cls, schema: pa.Schema) -> Schema:
        return cls(tuple(Field(field.name, field.type, field.nullable) for field in schema))


def is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind))


def is_counted(kind: pa.DataType) -> bool:
    """True for integers, and for timestamps and intervals, which are stored as microseconds."""
    return is_integer(kind) or bool(pa.types.is_timestamp(kind) or pa.types.is_duration(kind))


def is_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


def is_decimal(kind: pa.DataType) -> bool:
    """True for decimals of up to 38 digits, as in Spark; wider ones can only pass through a query."""
    return bool(pa.types.is_decimal128(kind))


def is_numeric(kind: pa.DataType) -> bool:
    return is_integer(kind) or is_float(kind) or is_decimal(kind)


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))


def is_spread_by(kind: pa.DataType) -> bool:
    """True if values of the type are part of the hash that spreads rows of a heavy key."""
    return bool(
        is_integer(kind) or is_float(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind) or kind == TIMESTAMP
    )


def is_fixed_width(kind: pa.DataType) -> bool:
    """True for types whose values have a fixed number of bytes; numpy can hold them."""
    return bool(
        is_integer(kind)
        or is_float(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_decimal128(kind)
    )


def is_wider(kind: pa.DataType, other: pa.DataType) -> bool:
    """True if a number type holds every value of another; floats may round."""
    if is_float(kind):
        return is_numeric(other) and not (is_float(other) and other.bit_width > kind.bit_width)
    if not (is_integer(kind) and is_integer(other)):
        return False
    return bool(kind == other or (pa.types.is_signed_integer(kind) and kind.bit_width > other.bit_width))


def type_name(kind: pa.DataType) -> str:
    """Returns the SQL name of a type."""
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_date32(kind):
        return "date"
    if pa.types.is_duration(kind):
        return "interval"
    if is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{type_name(field.type)}' for field in kind)}>"
    names = {
        "int8": "tinyint",
        "int16": "smallint",
        "int32": "int",
        "int64": "bigint",
        "float": "float",
        "double": "double",
        "bool": "boolean",
        "string": "string",
        "large_string": "string",
        "null": "null",
    }
    return names.get(str(kind), str(kind))
