from __future__ import annotations

import re

import pyarrow as pa
import pytest

from anabranch.lang.ddl import parse_schema
from anabranch.lang.schema import TIMESTAMP, Field


def test_every_type_has_its_arrow_type() -> None:
    schema = parse_schema(
        "a boolean, b tinyint, c SMALLINT, d int, e bigint, f float, g double, h decimal(10,2), i decimal, j string, "
        "k binary, l date, m timestamp, n timestamp_ntz, o array<int>, p map<string, array<double>>, "
        "q struct<x: int, `y z` string NOT NULL>, r varchar(20)"
    )
    assert [field.type for field in schema] == [
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(10, 2),
        pa.decimal128(10, 0), pa.string(), pa.binary(), pa.date32(), TIMESTAMP, pa.timestamp("us"),
        pa.list_(pa.field("element", pa.int32())), pa.map_(pa.string(), pa.list_(pa.field("element", pa.float64()))),
        pa.struct([pa.field("x", pa.int32()), pa.field("y z", pa.string(), False)]), pa.string(),
    ]  # fmt: skip


def test_not_null_comment_and_quoted_names() -> None:
    schema = parse_schema("`event time` timestamp NOT NULL COMMENT 'when, exactly', k bigint")
    assert schema.fields == (Field("event time", TIMESTAMP, False), Field("k", pa.int64()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected a column name, found the end"),
        ("ts", "expected a type"),
        ("ts timestmp", "found 'timestmp' at character 4"),
        ("ts timestamp k bigint", "expected ',' or the end, found 'k' at character 14"),
        ("a array<int", "expected '>', found the end"),
        ("a decimal(40,2)", "1 <= precision <= 38"),
        ("a int, A bigint", "column 'A' appears twice"),
        ("a varchar(x)", "expected a length, found 'x'"),
    ],
)
def test_a_wrong_list_says_where_and_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        parse_schema(text)
