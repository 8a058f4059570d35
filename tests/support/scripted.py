"""Scenarios: a query, rows by time and the expected answers, as a text that reads like a timeline.

    # Anything after a '#' is for people, above all a drawing of the timeline.
    stream a (k bigint, v string)
    stream b (k bigint, v string) disorder 2 seconds
    idle 30 seconds
    query SELECT a.v AS x, b.v AS y FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS]
          WHERE a.k = b.k
    batch at 5
      a  0  1  x
      b  4  1  y
    answer
      x y
    late a 1

Every stream gets an event time `ts` before its columns. A row is the stream, its time in seconds since the epoch, and
its values; `-` is NULL. The lines of a batch are in order of arrival; `at` is the processing time in seconds, which
affects only idleness. Answers are compared as multisets of lines, with times in seconds. `late` counts the late rows of
the batch.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.lang.window import parse_duration

SECOND = 1_000_000
NULL = "-"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class ScriptedBatch:
    """One micro-batch of a scenario: the arriving rows, the time, and the expected output."""

    rows: Mapping[str, pa.Table]
    now: int
    answer: tuple[str, ...]
    late: Mapping[str, int]


@dataclass(frozen=True)
class Script:
    """A whole scenario; `idle_timeout` is in microseconds."""

    catalog: Catalog
    query: str
    batches: tuple[ScriptedBatch, ...]
    idle_timeout: int | None = None


def read_script(text: str) -> Script:
    """Parses a scenario; raises a ValueError that names the line."""
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.split("#", 1)[0].rstrip()
        if content:
            try:
                reader.take(content)
            except ValueError as error:
                raise ValueError(f"line {number} of the scenario, '{content.strip()}': {error}") from error
    batches = tuple(
        ScriptedBatch(read_rows(reader.catalog, b.rows), b.now, tuple(sorted(b.answer)), b.late) for b in reader.batches
    )
    return Script(reader.catalog, " ".join(reader.query), batches, reader.idle_timeout)


def read_rows(catalog: Catalog, lines: Iterable[str]) -> dict[str, pa.Table]:
    """Parses rows written as `stream time value…` to tables by stream name; only streams that have rows."""
    rows: dict[str, list[list[Any]]] = {}
    for line in lines:
        name, *words = line.split()
        stream = catalog.find(name)
        if stream is None:
            raise ValueError(f"no stream '{name}'; there are {', '.join(catalog.streams)}")
        if len(words) != len(stream.schema):
            raise ValueError(f"row '{line}' has {len(words)} values, stream '{name}' has {len(stream.schema)} columns")
        values = [_value(word, column) for word, column in zip(words, stream.schema, strict=True)]
        rows.setdefault(stream.name, []).append(values)
    return {name: _table(catalog, name, several) for name, several in rows.items()}


def answer_lines(table: pa.Table) -> tuple[str, ...]:
    """Formats a table as scenarios write answers, sorted."""
    columns = [[_text(value) for value in column.to_pylist()] for column in table.columns]
    return tuple(sorted(" ".join(values) for values in zip(*columns, strict=True)))


@dataclass
class _Batch:
    now: int
    rows: list[str] = field(default_factory=list)
    answer: list[str] = field(default_factory=list)
    late: dict[str, int] = field(default_factory=dict)


class _Reader:
    """The parser state; an indented line continues the section above it."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.query: list[str] = []
        self.batches: list[_Batch] = []
        self.idle_timeout: int | None = None
        self._section: list[str] | None = None

    def take(self, line: str) -> None:
        if line[0].isspace():
            if self._section is None:
                raise ValueError("expected a batch, an answer or a query above it")
            self._section.append(line.strip())
            return
        word, _, rest = line.partition(" ")
        self._section = None
        match word:
            case "stream":
                self._stream(rest.strip())
            case "idle":
                self.idle_timeout = parse_duration(rest)
            case "query":
                self.query = [rest.strip()]
                self._section = self.query
            case "batch":
                now = float(rest.removeprefix("at ")) if rest else 0.0
                self.batches.append(_Batch(round(now * SECOND)))
                self._section = self.batches[-1].rows
            case "answer":
                self._section = self._last().answer
            case "late":
                name, count = rest.split()
                self._last().late[name] = int(count)
            case _:
                raise ValueError("expected stream, idle, query, batch, answer or late")

    def _stream(self, text: str) -> None:
        head, _, tail = text.partition("(")
        listed, closing, disorder = tail.rpartition(")")
        if not closing:
            raise ValueError("expected a column list in parentheses")
        schema = Schema((Field("ts", TIMESTAMP), *parse_schema(listed)))
        allowed = parse_duration(disorder.strip().removeprefix("disorder ")) if disorder.strip() else 0
        self.catalog.register(StreamDeclaration(head.strip(), schema, "ts", allowed))

    def _last(self) -> _Batch:
        if not self.batches:
            raise ValueError("expected a batch before it")
        return self.batches[-1]


def _table(catalog: Catalog, name: str, rows: list[list[Any]]) -> pa.Table:
    stream = catalog.find(name)
    assert stream is not None
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, column.type) for values, column in zip(columns, stream.schema, strict=True)]
    return pa.table(arrays, schema=stream.schema.to_arrow())


def _value(word: str, column: Field) -> Any:
    if word == NULL:
        return None
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _EPOCH + datetime.timedelta(microseconds=round(float(word) * SECOND))
    if pa.types.is_integer(kind):
        return int(word)
    if pa.types.is_floating(kind):
        return float(word)
    if pa.types.is_decimal(kind):
        return Decimal(word)
    if pa.types.is_date(kind):
        return datetime.date.fromisoformat(word)
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}[word]
    return word


def _text(value: Any) -> str:
    match value:
        case None:
            return NULL
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case datetime.datetime():
            return f"{(value - _EPOCH) / datetime.timedelta(seconds=1):g}"
        case _:
            return str(value)
