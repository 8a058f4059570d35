"""Frames over scans of files: what the engine understands of them, and that it reads CSV as Spark does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.lang.schema import TIMESTAMP
from anabranch.run.files.csv import Csv
from anabranch.spark.arrow_schema import from_spark
from anabranch.spark.scans import scan_of

pytestmark = pytest.mark.spark

COLUMNS = "n bigint, k int, x double, s string, t timestamp, d date, w timestamp_ntz"
UNDERSTOOD: dict[str, tuple[Callable[[DataFrame], DataFrame], dict[str, str], list[str]]] = {
    "times by number": (
        lambda frame: frame.select(f.timestamp_millis("n").alias("ts"), "s"),
        {"ts": "TIMESTAMP_MILLIS(stream.n)", "s": "stream.s"},
        [],
    ),
    "the same name again": (
        lambda frame: frame.select("n").withColumn("n", f.col("n") + 1).withColumn("n", f.col("n") * 2),
        {"n": "(stream.n + 1) * 2"},
        [],
    ),
    "other names": (
        lambda frame: frame.select(f.col("n").alias("k"), f.col("k").alias("n")),
        {"k": "stream.n", "n": "stream.k"},
        [],
    ),
    "rows left out, and a watermark": (
        lambda frame: frame.where("x > 1.5 AND s LIKE 'a%'").withWatermark("t", "1 second").select("t"),
        {"t": "stream.t"},
        ["stream.x > 1.5", "stream.s LIKE 'a%'"],
    ),
    "rows left out by what is computed": (
        lambda frame: frame.select((f.col("x") + 1).alias("y")).where("y < 3"),
        {"y": "stream.x + CAST(1 AS DOUBLE)"},
        ["(stream.x + CAST(1 AS DOUBLE)) < CAST(3 AS DOUBLE)"],
    ),
    "a clock without a zone, renamed": (
        lambda frame: frame.withColumn("c", f.col("s")).select(f.col("w").alias("v"), "c"),
        {"v": "stream.w", "c": "stream.s"},
        [],
    ),
    "a wider type": (
        lambda frame: frame.select(f.col("k").cast("bigint").alias("k")),
        {"k": "CAST(stream.k AS BIGINT)"},
        [],
    ),
}
NOT_UNDERSTOOD: dict[str, Callable[[DataFrame], DataFrame]] = {
    "chance": lambda frame: frame.withColumn("r", f.rand()),
    "the time of day": lambda frame: frame.withColumn("now", f.current_timestamp()),
    "a format of times": lambda frame: frame.withColumn("ts", f.to_timestamp("s", "dd.MM.yyyy")),
    "the clock of the session": lambda frame: frame.withColumn("h", f.hour("t")),
    "a function of one's own": lambda frame: frame.withColumn("u", f.udf(str)("n")),
    "division, which fails by zero": lambda frame: frame.withColumn("q", f.col("x") / f.col("n")),
    "rows made of rows": lambda frame: frame.withColumn("e", f.explode(f.array("n", "k"))),
    "repeated rows": lambda frame: frame.dropDuplicates(["n"]),
    "two scans": lambda frame: frame.select("n").unionAll(frame.select("n")),
    "where a row came from": lambda frame: frame.withColumn("file", f.input_file_name()),
}


@pytest.fixture
def frame(spark: SparkSession, tmp_path: Path) -> DataFrame:
    return spark.readStream.schema(COLUMNS).csv(str(tmp_path))


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_a_frame_is_taken_apart(name: str, frame: DataFrame) -> None:
    change, made, conditions = UNDERSTOOD[name]
    scan = scan_of(change(frame))
    assert scan is not None
    assert ({each: str(expr) for each, expr in scan.made.items()}, list(map(str, scan.conditions))) == (
        made,
        conditions,
    )


@pytest.mark.parametrize("name", NOT_UNDERSTOOD)
def test_what_the_language_cannot_say_is_left_to_spark(name: str, frame: DataFrame) -> None:
    assert scan_of(NOT_UNDERSTOOD[name](frame)) is None


def test_what_may_overflow_is_left_to_a_session_that_lets_it(spark: SparkSession, tmp_path: Path) -> None:
    legacy = spark.newSession()
    legacy.conf.set("spark.sql.ansi.enabled", "false")
    scan = legacy.readStream.schema(COLUMNS).csv(str(tmp_path))
    assert scan_of(scan.withColumn("m", f.col("n") + 1)) is None
    assert scan_of(scan.withColumn("y", f.col("x") + 1)) is not None


WRITTEN: dict[str, list[str]] = {
    "n bigint": [
        *("5", "-5", "+5", "005", "-0", "--1", "5.", "5.0", "1e3", "1_000", "0x10", "٣", "null", "NULL"),
        *("9223372036854775807", "9223372036854775808"),
    ],
    "k int": ["2147483647", "2147483648", "-2147483648", "7"],
    "y tinyint": ["127", "128", "-128"],
    "x double": [
        *("1.5", "1.", ".5", "-.5", "1e5", "1E-5", "1e400", "5e-324", "0.1", "123456789012345678901"),
        *("NaN", "nan", "Inf", "Infinity", "-Infinity", "1d", "1f", "0x1p3", "1_0"),
    ],
    "b boolean": ["true", "false", "TRUE", "True", "1", "0", "t", "yes", "null"],
    "d date": [
        *("2024-02-29", "2024-2-29", "2023-02-29", "2024", "2024-02", "0001-01-01", "1582-10-10", "9999-12-31"),
        *("10000-01-01", "2024-02-29T", "20240229"),
    ],
    "t timestamp": [
        *("2024-02-29 12:00:00", "2024-02-29T12:00:00", "2024-02-29 12:00:00.1", "2024-02-29 12:00:00.123456"),
        *("2024-02-29 12:00:00.1234567", "2024-02-29 12:00", "2024-02-29 12", "2024-02-29", "2024-2-29 12:00:00"),
        *("2024-02-29 12:00:00Z", "2024-02-29 12:00:00+02:00", "2024-02-30 00:00:00", "2024-02-29 24:00:00"),
        *("2024-06-30 23:59:60", "1582-10-10 00:00:00", "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"),
        *("2024-02-29  12:00:00", "2024-02-29 1:00:00.000000", "20240229 12:00:00.0000", "2024-02-29 12:00:00,5"),
    ],
    "s string": [
        *("a", "null", "NULL", "a b", "'a'", "#a", "ä", "–", "true", "-", "a\u00a0", "\u00a0a", "\u3000", "a,b"),
    ],
}


def plain(values: pa.ChunkedArray) -> list[Any]:
    """The values as Python's, days and times as numbers: not all of them are within Python's years."""
    number = {pa.date32(): pa.int32(), TIMESTAMP: pa.int64()}.get(values.type)
    return list((values if number is None else values.cast(number)).to_pylist())


@pytest.mark.parametrize("declared", WRITTEN)
def test_what_slots_read_of_csv_is_what_spark_reads(declared: str, spark: SparkSession, tmp_path: Path) -> None:
    """One value in each file, beside a plain one; a value is read by both alike, or by Spark alone."""
    values = WRITTEN[declared]
    for number, value in enumerate(values):
        (tmp_path / f"{number}.csv").write_text(f"{value};1\n;2\n")
    schema = f"{declared}, p int"
    read = spark.read.schema(schema).option("sep", ";").csv(str(tmp_path))
    name = declared.split(" ")[0]
    rows: dict[str, list[Any]] = {}
    numbered = read.select(f.regexp_extract(f.input_file_name(), r"(\d+)\.csv", 1), f.col(name), "p").toArrow()
    for number, value, place in zip(*map(plain, numbered.columns), strict=True):
        rows.setdefault(number, []).append((place, value))
    kinds = {field.name: field.type for field in from_spark(read.schema, "stream")}
    form = Csv((name, "p"), separator=";")
    assert form.can_hold(kinds[name])
    read_by_slots = 0
    for number, value in enumerate(values):
        path = str(tmp_path / f"{number}.csv")
        footer = form.look_into(path, kinds)
        if footer.is_readable:
            found = form.read(path, kinds)
            assert sorted(zip(plain(found["p"]), plain(found[name]), strict=True)) == sorted(rows[str(number)]), value
            read_by_slots += 1
    assert read_by_slots > 0


LETTERS = list("a10-.eé#' \t;\x01\x0b\x1f\x7f\x85\u2028\u00a0")
FILES = 300


@pytest.mark.parametrize("separator", [";", "\t"])
@pytest.mark.parametrize("declared", ["s string", "s string, r string", "n bigint, s string"])
def test_what_slots_read_of_drawn_files_is_what_spark_reads(
    declared: str, separator: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Lines of control characters alone were rows to slots and none to Spark."""
    rng, names = Random(7), [each.split()[0] for each in declared.split(",")]

    def drawn(name: str) -> str:
        if name == "n" and rng.random() < 0.8:
            return rng.choice(["0", "-1", "007", "12", ""])
        return "".join(rng.choices(LETTERS, k=rng.choice([0, 1, 1, 2, 3])))

    for number in range(FILES):
        lines = [separator.join(map(drawn, names)) for _ in range(rng.randint(0, 3))]
        if rng.random() < 0.05:
            lines.append("".join(rng.choices([*LETTERS, "|", "\n"], k=3)))
        text = "\n".join(lines) + rng.choice(["\n", "\n", "", "\n\n"])
        (tmp_path / f"{number}.csv").write_bytes(text.encode())
    read = spark.read.schema(declared).option("sep", separator).csv(str(tmp_path))
    rows: dict[str, list[tuple[Any, ...]]] = {}
    numbered = read.select(f.regexp_extract(f.input_file_name(), r"(\d+)\.csv", 1), *names).toArrow()
    for number_of, *values in zip(*map(plain, numbered.columns), strict=True):
        rows.setdefault(number_of, []).append(tuple(values))
    kinds = {field.name: field.type for field in from_spark(read.schema, "stream")}
    form, read_by_slots = Csv(tuple(names), separator), 0
    for number in range(FILES):
        path = tmp_path / f"{number}.csv"
        if form.look_into(str(path), kinds).is_readable:
            found = form.read(str(path), kinds)
            assert Counter(zip(*map(plain, found.columns), strict=True)) == Counter(rows.get(str(number), [])), (
                path.read_bytes()
            )
            read_by_slots += len(found) > 0
    assert read_by_slots > FILES // 50


def test_types_that_slots_do_not_read_from_csv() -> None:
    form = Csv(("d",), is_utc=False)
    for kind in (pa.decimal128(9, 2), pa.binary(), pa.float32(), pa.timestamp("us", "UTC")):
        assert not form.can_hold(kind)
