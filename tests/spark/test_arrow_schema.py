from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from anabranch.errors import CatalogError
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.spark.arrow_schema import from_spark, to_spark

COLUMNS = spark.StructType(
    [
        spark.StructField("flag", spark.BooleanType(), False),
        spark.StructField("byte", spark.ByteType()),
        spark.StructField("short", spark.ShortType()),
        spark.StructField("int", spark.IntegerType()),
        spark.StructField("long", spark.LongType()),
        spark.StructField("float", spark.FloatType()),
        spark.StructField("double", spark.DoubleType()),
        spark.StructField("price", spark.DecimalType(12, 3)),
        spark.StructField("text", spark.StringType()),
        spark.StructField("bytes", spark.BinaryType()),
        spark.StructField("day", spark.DateType()),
        spark.StructField("at", spark.TimestampType()),
        spark.StructField("wall", spark.TimestampNTZType()),
        spark.StructField("span", spark.DayTimeIntervalType()),
        spark.StructField("list", spark.ArrayType(spark.LongType(), containsNull=False)),
        spark.StructField("map", spark.MapType(spark.StringType(), spark.TimestampType(), valueContainsNull=False)),
        spark.StructField("struct", spark.StructType([spark.StructField("x", spark.DoubleType(), False)])),
    ]
)


def test_a_schema_comes_back_as_it_went() -> None:
    assert to_spark(from_spark(COLUMNS, "s")) == COLUMNS


def test_instants_and_wall_clocks_are_told_apart() -> None:
    schema = from_spark(COLUMNS, "s")
    assert schema.find("at") == Field("at", TIMESTAMP)
    assert schema.find("wall") == Field("wall", pa.timestamp("us"))
    assert schema.find("price") == Field("price", pa.decimal128(12, 3))


@pytest.mark.parametrize(
    "kind",
    [
        spark.VariantType(),
        spark.YearMonthIntervalType(),
        spark.StringType("UNICODE_CI"),
        spark.ArrayType(spark.VariantType()),
    ],
)
def test_a_type_that_cannot_be_carried_is_named(kind: spark.DataType) -> None:
    with pytest.raises(CatalogError, match=r"column 'odd' of stream 's' is of type .* cannot be carried"):
        from_spark(spark.StructType([spark.StructField("odd", kind)]), "s")


def test_large_texts_are_sparks_strings() -> None:
    assert to_spark(Schema((Field("t", pa.large_string()),)))["t"].dataType == spark.StringType()


def test_a_result_type_that_spark_lacks_is_named() -> None:
    with pytest.raises(CatalogError, match="column 'u' is of type uint64"):
        to_spark(Schema((Field("u", pa.uint64()),)))
