"""Converts schemas between Spark's types and the engine's.

Invariant: `to_spark(from_spark(schema))` is the same schema, up to metadata, for every supported type. An unsupported
type is refused by name when the stream is registered, not by a worker during a batch. Spark's TIMESTAMP is an instant
(microseconds, UTC), TIMESTAMP_NTZ a wall clock without a zone. Nested types are carried as payload only.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as spark

from anabranch.errors import CatalogError
from anabranch.lang.schema import TIMESTAMP, Field, Schema, type_name

_ATOMS: tuple[tuple[spark.DataType, pa.DataType], ...] = (
    (spark.BooleanType(), pa.bool_()),
    (spark.ByteType(), pa.int8()),
    (spark.ShortType(), pa.int16()),
    (spark.IntegerType(), pa.int32()),
    (spark.LongType(), pa.int64()),
    (spark.FloatType(), pa.float32()),
    (spark.DoubleType(), pa.float64()),
    (spark.StringType(), pa.string()),
    (spark.BinaryType(), pa.binary()),
    (spark.DateType(), pa.date32()),
    (spark.TimestampType(), TIMESTAMP),
    (spark.TimestampNTZType(), pa.timestamp("us")),
    (spark.DayTimeIntervalType(), pa.duration("us")),
    (spark.NullType(), pa.null()),
)


def from_spark(schema: spark.StructType, stream: str) -> Schema:
    """Returns the columns of a stream in engine types; a CatalogError names an unsupported column."""
    return Schema(
        tuple(Field(field.name, _to_arrow(field.dataType, field.name, stream), field.nullable) for field in schema)
    )


def to_spark(schema: Schema) -> spark.StructType:
    """Returns the Spark schema of a result."""
    return spark.StructType(
        [spark.StructField(field.name, data_type(field.type, field.name), field.nullable) for field in schema]
    )


def _to_arrow(kind: spark.DataType, column: str, stream: str) -> pa.DataType:
    match kind:
        case spark.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case spark.CharType() | spark.VarcharType():
            return pa.string()
        case spark.DayTimeIntervalType():
            return pa.duration("us")
        case spark.ArrayType():
            return pa.list_(pa.field("element", _to_arrow(kind.elementType, column, stream), kind.containsNull))
        case spark.MapType():
            value = pa.field("value", _to_arrow(kind.valueType, column, stream), kind.valueContainsNull)
            return pa.map_(_to_arrow(kind.keyType, column, stream), value)
        case spark.StructType():
            return pa.struct([pa.field(f.name, _to_arrow(f.dataType, column, stream), f.nullable) for f in kind])
    for atom, arrow in _ATOMS:
        # Equality, not the class: a string with a collation compares differently from the engine.
        if atom == kind:
            return arrow
    raise CatalogError(
        f"column '{column}' of stream '{stream}' is of type {kind.simpleString()}, which cannot be carried",
        hint="cast it where the stream is read, or leave it out with select() or drop()",
    )


def data_type(kind: pa.DataType, column: str) -> spark.DataType:
    """Returns the Spark type of a column."""
    if pa.types.is_decimal(kind):
        return spark.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return spark.ArrayType(data_type(kind.value_type, column), kind.value_field.nullable)
    if pa.types.is_map(kind):
        key, item = data_type(kind.key_type, column), data_type(kind.item_type, column)
        return spark.MapType(key, item, kind.item_field.nullable)
    if pa.types.is_struct(kind):
        return spark.StructType([spark.StructField(f.name, data_type(f.type, column), f.nullable) for f in kind])
    if pa.types.is_large_string(kind):
        return spark.StringType()
    if pa.types.is_large_binary(kind):
        return spark.BinaryType()
    for atom, arrow in _ATOMS:
        if arrow == kind:
            return atom
    raise CatalogError(
        f"column '{column}' is of type {type_name(kind)}, which Spark does not have", hint="cast it in the SELECT list"
    )
