"""Files of JSON lines are read by slots as Spark reads them, or by Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import anabranch
from anabranch.lang.ddl import parse_schema
from anabranch.run.files.json import Json
from anabranch.spark.file_streams import whole_reading
from tests.spark.stories import SPARK_COLUMNS, Story, cut, run, without_nan, write_apart, written
from tests.spark.test_file_streams import PAIR, THREE, is_read_by_slots, query_of, rows_in
from tests.support.oracle import describe_difference

pytestmark = pytest.mark.spark

DDL = "i bigint, j int, k tinyint, f double, g float, s string, b boolean, n decimal(9,2), d date, t timestamp"
COLUMNS = parse_schema(DDL).to_arrow().append(pa.field("in", pa.struct([("x", pa.int32()), ("s", pa.string())])))
ZONE = "spark.sql.session.timeZone"
NUMBERS = (
    *("0", "-0", "-0.0", "7", "-7", "1.5", "1.255", "1e2", "1E-3", "127", "128", "200", "-129", "2147483648", "1e999"),
    *("9223372036854775807", "9223372036854775808", "12345678901234567890123", "16777217.0", "1.0000000596046448"),
    *("1e-999", "4.9e-324", "01", "+1", ".5", "1.", "1e", "-", "NaN", "-Infinity", "Inf", "1" * 1001, "0e99", "1e40"),
)
TIMES = (
    *("2024-02-29", "2024-02-30", "2024-2-3", "2024", "2024-02-29T12", "2024-02-29T12:30", "2024-02-29T12:30Z"),
    *("2024-02-29T12:30:15", "2024-02-29 12:30:15.25", "2024-02-29T12:30:15Z", "2024-02-29T12:30:15.1234567Z"),
    *("2024-02-29T12:30:15+01:00", "2024-02-29 12:30:15.5-17:59", "2024-02-29T12:30:15+18:00", "0000-01-01T00:00:00Z"),
    *("2024-02-29T12:30:15+19:00", "2024-02-29T12:30:15+0100", "2024-02-29T12:30:15+01", "2024-02-29T12:30+01:00"),
    *("2024-02-29T24:00:00", "2024-02-29T12:30:60", "1582-10-10T00:00:00Z", "1900-01-01 00:00:00", "0001-01-01"),
    *("9999-12-31T23:59:59.999999Z", "2024-02-29T12:30:15z", "2024-02-29T12:30:15 Z", "2024-03-31T02:30:00"),
    *("2024-02-29T12:30:15-00:00", "2024-02-29T12:30:15.Z", "10000-01-01T00:00:00Z", "2024-02-29T12:30:15 UTC"),
)
WORDS = (
    "",
    "a",
    "bä",
    "😀",
    "\\u00e4",
    "\\ud83d\\ude00",
    "\\ud800",
    "\\udc00",
    "\\u0000",
    "\\n",
    "\\/",
    "\\x",
    "\t",
    "\x7f",
)
VALUES = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(TIMES).map('"{}"'.format),
    st.sampled_from((*WORDS, *NUMBERS[:12], "NaN", "INF", "true")).map('"{}"'.format),
    st.sampled_from(["null", "true", "false", "TRUE", "[]", "[1]", "{}", '{"x": 1}', '{"x": "1"}', '{"s": 1}', "'a'"]),
    st.sampled_from(['{"s": "a", "x": 2}', '{"x": 1, "x": 2}', '{"y": {"x": 1}}', '{"x": null}', "[[{}]]"]),
)
PLAIN = {
    "i": "1",
    "j": "-2",
    "k": "3",
    "f": "1.5",
    "g": "0.5",
    "s": '"one"',
    "b": "true",
    "n": "1.25",
    "d": '"2024-02-29"',
    "t": '"2024-02-29T12:00:00Z"',
    "in": '{"x": 1, "s": "a"}',
}
KEYS = st.sampled_from([*PLAIN, *PLAIN, "I", "other", "\\u0069", "", "k" * 50_001])
LINES = st.builds(
    lambda fields, blank: "{" + ("," + blank).join(f'"{name}":{blank}{value}' for name, value in fields) + "}",
    st.lists(st.tuples(KEYS, VALUES), max_size=4).map(lambda odd: [*PLAIN.items(), *odd][-max(2, len(odd)) :])
    | st.sampled_from(list(PLAIN)).flatmap(lambda name: VALUES.map(lambda value: list({**PLAIN, name: value}.items()))),
    st.sampled_from(["", " ", "\t"]),
)
SPOILT = st.builds(
    lambda line, at, put, taken: line[: at % (len(line) + 1)] + put + line[at % (len(line) + 1) + taken :],
    LINES,
    st.integers(0, 500),
    st.sampled_from(["", '"', "\\", "{", "}", ",", ":", "[", "]", " ", "\t", "\n", "\r", "\x00", "0", "-", "x", "//"]),
    st.integers(0, 2),
)
FILES = st.builds(
    lambda lines, end, first: (first + end.join(lines) + end).encode(),
    st.lists(LINES | LINES | SPOILT | st.sampled_from(["", " ", "null", "[]", "{}", "{}{}", "5"]), max_size=3),
    st.sampled_from(["\n", "\n", "\r\n", "\r", "\n\n"]),
    st.sampled_from(["", "", "", "", "\ufeff", " "]),
)


@contextmanager
def in_zone(spark: SparkSession, zone: str) -> Iterator[None]:
    known = str(spark.conf.get(ZONE))
    spark.conf.set(ZONE, zone)
    try:
        yield
    finally:
        spark.conf.set(ZONE, known)


def shown(rows: pa.Table) -> list[str]:
    """Rows in one order; times as numbers, since Python has no year 0."""
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in rows.columns]
    return sorted(map(str, pa.table(columns, names=rows.column_names).to_pylist()))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@settings(max_examples=8, deadline=None)
@given(files=st.lists(FILES, min_size=30, max_size=60))
def test_a_drawn_file_is_read_as_spark_reads_it_or_left_to_spark(
    zone: str, files: list[bytes], spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    # A file alone for each value, too: those of one file are accepted or refused together.
    for number, data in enumerate(files):
        (folder / f"{number}.json").write_bytes(data)
    with in_zone(spark, zone):
        frame = spark.read.schema(f"{DDL}, in struct<x int, s string>").json(str(folder))
        theirs = frame.withColumn("file", f.element_at(f.split(f.input_file_name(), "/"), -1)).toArrow()
    form, wanted = Json(zone == "UTC"), dict(zip(COLUMNS.names, COLUMNS.types, strict=True))
    for number in range(len(files)):
        path = str(folder / f"{number}.json")
        expected = theirs.filter(pa.compute.equal(theirs["file"], f"{number}.json"))
        for names in (COLUMNS.names, *([name] for name in COLUMNS.names)):
            chosen = {name: wanted[name] for name in names}
            footer = form.look_into(path, chosen)
            if footer.is_readable:
                assert shown(form.read(path, chosen)) == shown(expected.select(list(names))), files[number]


@pytest.mark.parametrize("column", COLUMNS.names)
def test_every_odd_value_is_read_as_spark_reads_it_or_left_to_spark(
    column: str, spark: SparkSession, tmp_path: Path
) -> None:
    values = [*NUMBERS, *(f'"{each}"' for each in (*TIMES, *WORDS, *NUMBERS)), "null", "true", "[1]", "{}", '{"x": 1}']
    for number, value in enumerate(values):
        (tmp_path / f"{number}.json").write_text(f'{{"{column}": {value}}}\n', newline="")
    kind = COLUMNS.field(column).type
    with in_zone(spark, "UTC"):
        frame = spark.read.schema(f"{DDL}, in struct<x int, s string>").json(str(tmp_path)).select(column)
        theirs = frame.withColumn("file", f.element_at(f.split(f.input_file_name(), "/"), -1)).toArrow()
    accepted = 0
    for number, value in enumerate(values):
        path = str(tmp_path / f"{number}.json")
        if Json().look_into(path, {column: kind}).is_readable:
            accepted += 1
            expected = theirs.filter(pa.compute.equal(theirs["file"], f"{number}.json")).select([column])
            assert shown(Json().read(path, {column: kind})) == shown(expected), value
    assert 1 < accepted < len(values)


STORIES = {
    "chain, three slots": Story(THREE + "a.x = b.x AND b.y = c.y", slots=3, disorder={"s1": 3}),
    "texts, one slot": Story(PAIR + "a.s = b.s", slots=1),
    "floats and decimals": Story(THREE + "a.d = b.d AND b.f = c.f", rows=40),
    "groups": Story(
        "SELECT WINDOW_END() AS at, a.s AS s, COUNT(*) AS n, SUM(b.x) AS x FROM s0 [RANGE 9 SECONDS SLIDE 3 SECONDS] "
        "AS a, s1 [RANGE 6 SECONDS SLIDE 3 SECONDS] AS b WHERE a.x = b.x GROUP BY a.s",
        slots=2,
        disorder={"s1": 3},
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_the_answer_is_the_batch_answer(name: str, spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads a batch with a number that is none, and one with a duplicate name; with a restart between them."""
    story = replace(STORIES[name], form="json", rows=90)
    tables = without_nan(story.tables())
    query = query_of(spark, story, tmp_path)
    for number, batch in enumerate(cut(tables, 4)):
        for stream, rows in batch.items():
            write_apart(tmp_path, stream, number, rows, "json")
        path = tmp_path / "s0" / f"part {number:04d}.json"
        written_at, data = path.stat().st_mtime, path.read_bytes()
        if number == 1:
            data = data.replace(b"{", b'{"other": NaN, ', 1)
        if number == 2:
            data = data.replace(b'"x"', b'"x": 7, "x"', 1)
        path.write_bytes(data)
        os.utime(path, (written_at, written_at))
        if number in (1, 3):
            handle = run(query, tmp_path, story.plan, story.slots)
            assert is_read_by_slots(handle)
            two = list(cut(tables, 4))[number - 1 : number + 1]
            assert handle.report()["rows_in"] == sum(map(rows_in, two))
    expected = story.expected(tables)
    assert len(expected) > 10
    assert not describe_difference(expected, written(tmp_path))


@pytest.mark.parametrize(
    ("options", "form"),
    [
        ({}, Json()),
        ({"mode": "PERMISSIVE", "multiLine": "false", "maxFilesPerTrigger": "3"}, Json()),
        ({"mode": "FAILFAST"}, None),
        ({"mode": "DROPMALFORMED"}, None),
        ({"multiLine": "true"}, None),
        ({"timestampFormat": "yyyy"}, None),
        ({"timeZone": "UTC"}, None),
        ({"primitivesAsString": "true"}, None),
        ({"lineSep": ";"}, None),
        ({"encoding": "UTF-8"}, None),
    ],
)
def test_options_decide_who_reads(
    options: dict[str, str], form: Json | None, spark: SparkSession, tmp_path: Path
) -> None:
    with in_zone(spark, "UTC"):
        found = whole_reading(spark.readStream.schema(SPARK_COLUMNS).options(**options).json(str(tmp_path)))
    assert (None if found is None else found.form) == form


def test_settings_and_columns_decide_who_reads(spark: SparkSession, tmp_path: Path) -> None:
    def form(schema: str = SPARK_COLUMNS) -> Any:
        found = whole_reading(spark.readStream.schema(schema).json(str(tmp_path)))
        return None if found is None else found.form

    with in_zone(spark, "Asia/Tokyo"):
        assert form() == Json(is_utc=False)
    assert form(f"{SPARK_COLUMNS}, _corrupt_record string") is None
    spark.conf.set("spark.sql.json.enablePartialResults", "false")
    try:
        assert form() is None
    finally:
        spark.conf.unset("spark.sql.json.enablePartialResults")


def test_a_column_of_objects_is_joined(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "0.json").write_text(
        '{"ts": "2024-01-01T00:00:00Z", "of": {"id": 7, "name": "a"}}\n{"ts": "2024-01-01T00:00:01Z", "of": null}\n'
        '{"of": {"name": "b", "id": 7}, "ts": "2024-01-01T00:00:02Z"}\n'
    )
    session = anabranch.Session(spark)
    frame = spark.readStream.schema("ts timestamp, of struct<id: bigint, name: string>").json(str(tmp_path / "rows"))
    session.register("s", frame, "ts", watermark="0 seconds")
    query = session.sql(
        "SELECT a.of.name AS a, b.of.name AS b FROM s [RANGE 5 SECONDS] AS a, s [RANGE 5 SECONDS] AS b "
        "WHERE a.of.id = b.of.id AND a.ts < b.ts"
    )
    assert is_read_by_slots(run(query, tmp_path, slots=1))
    assert dict(written(tmp_path)) == {("a", "b"): 1}
