"""Schemas written as SQL column lists, such as `ts timestamp, k bigint NOT NULL, tags array<string>`.

The syntax is Spark's, so one text works for the reader of a Spark source and, without Spark or Java, for the binder.
Names may be quoted with backquotes.

Limit: intervals, variants and user-defined types are not supported, because they cannot pass through a join.
"""

from __future__ import annotations

import re

import pyarrow as pa

from anabranch.errors import CatalogError
from anabranch.lang.schema import TIMESTAMP, Field, Schema

_SIMPLE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ltz": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
}
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*')|([A-Za-z_0-9]+)|(\S))")
_OFFERED = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s), string, binary, date, timestamp, "
    "array<…>, map<…,…>, struct<name: type, …>"
)


def parse_schema(text: str) -> Schema:
    """Parses a column list; raises ValueError with the position of a mistake and what was expected.

    >>> parse_schema("ts timestamp, price decimal(10,2) NOT NULL").names
    ('ts', 'price')
    """
    reader = _Reader(text)
    try:
        fields = [reader.field(separator=False)]
        while reader.take(","):
            fields.append(reader.field(separator=False))
    except RecursionError as error:
        raise ValueError("types are nested too deep") from error
    if reader.token:
        raise reader.wrong("',' or the end")
    try:
        return Schema(tuple(fields))
    except CatalogError as error:
        raise ValueError(error.message) from error


def parse_type(text: str) -> pa.DataType:
    """Parses one type; raises ValueError with the position of a mistake and what was expected.

    >>> str(parse_type("decimal(10, 2)"))
    'decimal128(10, 2)'
    """
    reader = _Reader(text)
    kind = reader.type()
    if reader.token:
        raise reader.wrong("the end")
    return kind


class _Reader:
    """A cursor over the tokens of a column list."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [(match.group().strip(), match.start(match.lastindex or 0)) for match in _TOKEN.finditer(text)]
        self.at = 0

    @property
    def token(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> bool:
        if self.token.lower() in wanted:
            self.at += 1
            return True
        return False

    def expect(self, wanted: str) -> None:
        if not self.take(wanted):
            raise self.wrong(f"'{wanted}'")

    def wrong(self, expected: str) -> ValueError:
        found = f"'{self.token}' at character {self.tokens[self.at][1] + 1}" if self.token else "the end"
        return ValueError(f"expected {expected}, found {found}")

    def field(self, *, separator: bool) -> Field:
        """Parses `name type [NOT NULL] [COMMENT '…']`; inside a struct, a colon may separate name and type."""
        token = self.token
        if not (token.startswith("`") or re.fullmatch(r"\w+", token)):
            raise self.wrong("a column name")
        self.at += 1
        name = token[1:-1].replace("``", "`") if token.startswith("`") else token
        if separator:
            self.take(":")
        kind = self.type()
        nullable = True
        if self.take("not"):
            self.expect("null")
            nullable = False
        if self.take("comment"):
            if not self.token.startswith("'"):
                raise self.wrong("a quoted comment")
            self.at += 1
        return Field(name, kind, nullable)

    def type(self) -> pa.DataType:
        name = self.token.lower()
        if name in _SIMPLE:
            self.at += 1
            return _SIMPLE[name]
        if self.take("decimal", "dec", "numeric"):
            return self.decimal()
        if self.take("varchar", "char"):
            self.expect("(")
            self.number("a length")
            self.expect(")")
            return pa.string()
        if self.take("array"):
            self.expect("<")
            element = self.type()
            self.expect(">")
            return pa.list_(pa.field("element", element))
        if self.take("map"):
            self.expect("<")
            key = self.type()
            self.expect(",")
            value = self.type()
            self.expect(">")
            return pa.map_(key, value)
        if self.take("struct"):
            self.expect("<")
            fields = [self.field(separator=True)]
            while self.take(","):
                fields.append(self.field(separator=True))
            self.expect(">")
            return pa.struct([pa.field(field.name, field.type, field.nullable) for field in fields])
        raise self.wrong(f"a type ({_OFFERED})")

    def decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self.take("("):
            precision = self.number("a precision")
            scale = self.number("a scale") if self.take(",") else 0
            self.expect(")")
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise ValueError(
                f"decimal({precision},{scale}) is not a type: 1 <= precision <= 38, 0 <= scale <= precision"
            )
        return pa.decimal128(precision, scale)

    def number(self, expected: str) -> int:
        if not self.token.isdecimal():
            raise self.wrong(expected)
        self.at += 1
        return int(self.tokens[self.at - 1][0])
