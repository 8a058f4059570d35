"""Queries over folders of an S3 server, which lives on loopback, refuses requests, cuts off answers and is slow."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxFiles

import anabranch
from anabranch.errors import CatalogError, HostError
from anabranch.lang.schema import Schema
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.runner import SparkRunner
from anabranch.spark.stored_files import OFF, FolderOptions, FolderStream, is_stored
from anabranch.spec.file import parse
from anabranch.spec.launch import start
from tests.spark.stories import (
    COLUMNS,
    SPARK_COLUMNS,
    Story,
    cut,
    put,
    register,
    run,
    table,
    without_nan,
    written,
)
from tests.spark.test_crash import FILES, crash, own_driver
from tests.spark.test_file_streams import READ_BY_SLOTS, rows_in
from tests.support.oracle import describe_difference
from tests.support.s3_server import HALF, SLOW, Fault, S3Server, s3_server

pytest.importorskip("moto", reason="no S3 server: pip install '.[dev]'")
pytestmark = pytest.mark.spark
FAULTS = (
    Fault("503", 2, path="list-type"),
    Fault(HALF, 1, path="list-type"),
    Fault("503", 2, path="part"),
    Fault("429", 1, path="part"),
    Fault("500", 1, method="HEAD"),
    Fault(HALF, 2, path="part"),
    Fault(SLOW, 1, path="part"),
)


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with s3_server() as found:
        yield found


def query_of(spark: SparkSession, story: Story, folder: Path) -> anabranch.ContinuousQuery:
    return register(spark, story, folder).sql(story.cql)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("chain, three slots", "parquet"),
        ("text", "json"),
        ("groups", "json"),
        pytest.param("nine slots", "parquet", marks=pytest.mark.slow),
        pytest.param("outer joins", "parquet", marks=pytest.mark.slow),
    ],
)
def test_the_answer_is_the_batch_answer_while_the_store_answers_badly(
    name: str, form: str, spark: SparkSession, store: S3Server, tmp_path: Path
) -> None:
    story = replace(READ_BY_SLOTS[name], form=form, store=store.endpoint)
    tables = story.tables() if form == "parquet" else without_nan(story.tables())
    for batch in cut(tables, 3):
        put(store, tmp_path, batch, form)
    store.answer_badly(*FAULTS)
    handle = run(query_of(spark, story, tmp_path), tmp_path, story.plan, story.slots)
    assert store.pending() == 0
    assert runner_of(handle).reads_files
    expected = story.expected(tables)
    assert len(expected) > 10
    assert not describe_difference(expected, written(tmp_path))
    report = handle.report()
    assert (len(report["batches"]), report["rows_in"], report["late_rows"]) == (3, rows_in(tables), 0)
    assert read_in(tmp_path, 2) == {name: ["part 0002." + form] for name in tables}


@own_driver
@pytest.mark.parametrize(("moment", "slots"), [("in the middle of a step", 3), ("committed", 2)])
def test_a_killed_driver_loses_and_repeats_nothing(
    moment: str, slots: int, spark: SparkSession, store: S3Server, tmp_path: Path
) -> None:
    story = replace(FILES, store=store.endpoint)
    tables = story.tables()
    for batch in cut(tables, 4):
        put(store, tmp_path, batch)
    crash(tmp_path, story, moment, 2, "mjoin", 2)
    store.answer_badly(*FAULTS)
    handle = run(query_of(spark, story, tmp_path), tmp_path, "((a b) c)", slots)
    assert handle.report()["late_rows"] == 0
    assert not describe_difference(story.expected(tables), written(tmp_path))


def test_a_store_that_is_down_ends_the_query_and_a_restart_goes_on(
    spark: SparkSession, store: S3Server, tmp_path: Path
) -> None:
    """Files that come meanwhile are read, too, although one of them has a name before all others."""
    story = replace(READ_BY_SLOTS["filters"], store=store.endpoint)
    tables = story.tables()
    first, *others, last = cut(tables, 4)
    put(store, tmp_path, first)
    query = query_of(spark, story, tmp_path)
    run(query, tmp_path)
    for batch in others:
        put(store, tmp_path, batch)
    store.answer_badly(Fault("503", 10_000, path="part%200001"), Fault("503", 10_000, path="part 0001"))
    with pytest.raises(HostError, match="cannot be read from its store"):
        run(query, tmp_path, slots=3)
    store.answer_badly()
    put(store, tmp_path, last)
    handle = run(query, tmp_path, slots=3)
    assert handle.report()["late_rows"] == 0
    assert not describe_difference(story.expected(tables), written(tmp_path))


SPEC = """
streams:
  s0: {{format: {form}, path: "{place}/s0", schema: "{columns}", event_time: ts, watermark: 1 second,
        max_ahead: 1000 days, options: {{maxFilesPerTrigger: 1}}}}
  s1: {{format: {form}, path: "{place}/s1", schema: "{columns}", event_time: ts, watermark: 1 second,
        select: {{ts: ts, x: x + 0, p: p, f: "f + rand() * 0"}}, where: "p > 1005",
        options: {{maxFilesPerTrigger: 1}}}}
tables:
  names: {{format: parquet, path: "{folder}/names", schema: "x bigint, name string"}}
query: SELECT a.p AS p0, b.p AS p1, n.name AS name FROM s0 [RANGE 8 SECONDS] AS a, s1 [RANGE 5 SECONDS] AS b, names AS n
  WHERE a.x = b.x AND a.x = n.x
sink: {{format: parquet, path: "{folder}/out"}}
late: {{format: parquet, path: "{folder}/late"}}
checkpoint: "{folder}/checkpoint"
trigger: available_now
slots: 3
"""


@pytest.mark.parametrize("by_spark", [False, True])
def test_a_spec_with_late_rows_a_table_and_computed_columns(
    by_spark: bool, spark: SparkSession, store: S3Server, tmp_path: Path
) -> None:
    """A frame that only Spark understands makes Spark's tasks read the files, with the same rows."""
    story = replace(READ_BY_SLOTS["text"], rows=60)
    tables = story.tables()
    late = table([(-500, 1, 9001), (-501, 2, 9002)])
    for batch in cut(tables, 2):
        put(store, tmp_path, batch)
    put(store, tmp_path, {"s0": late})
    (tmp_path / "names").mkdir()
    parquet.write_table(pa.table({"x": [0, 1], "name": ["zero", "one"]}), tmp_path / "names" / "x.parquet")
    place = store.uri(f"bucket/{tmp_path.name}/").partition("?")
    text = SPEC.format(form="parquet", place="PLACE", columns=SPARK_COLUMNS, folder=tmp_path)
    for name in ("s0", "s1"):
        text = text.replace(f"PLACE/{name}", f"{place[0]}{name}?{place[2]}")
    if not by_spark:
        text = text.replace("f + rand() * 0", "f").replace("x + 0", "x")
    started = start(parse(text, folder=tmp_path), spark)
    started.awaitTermination()
    assert runner_of(started).reads_files != by_spark
    rows = {name: each.to_pylist() for name, each in tables.items()}
    expected = Counter(
        (a["p"], b["p"], {0: "zero", 1: "one"}[a["x"]])
        for a in rows["s0"]
        for b in rows["s1"]
        if a["x"] == b["x"] and a["x"] in (0, 1) and b["p"] > 1005 and is_near(a["ts"], b["ts"])
    )
    assert sum(expected.values()) > 10
    assert Counter(map(tuple, map(dict.values, parquet.read_table(tmp_path / "out").to_pylist()))) == expected
    diverted = parquet.read_table(tmp_path / "late")
    assert diverted["stream"].to_pylist() == ["s0", "s0"]
    assert sorted(diverted["event_time"].to_pylist()) == sorted(late["ts"].to_pylist())


def is_near(first: datetime, second: datetime) -> bool:
    return -8 <= (first - second).total_seconds() <= 5


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"fileFormat": "orc"}, "'fileFormat' is 'orc'"),
        ({"fileFormat": "json", "multiLine": "true"}, "has no option 'multiline'"),
        ({"fileFormat": "json", "header": "true"}, "has no option 'header'"),
        ({"fileFormat": "csv", "sep": "x"}, "'sep' is 'x'"),
        ({"fileFormat": "csv", "maxFilesPerTrigger": "0"}, "'maxFilesPerTrigger' is '0'"),
        ({"fileFormat": "csv", "maxFileAge": "7d"}, "'maxFileAge' is '7d'"),
        ({"fileFormat": "csv", "pathGlobFilter": "{a,b}"}, r"use \* and \? only"),
        ({"fileFormat": "csv", "path": ""}, "has no path"),
    ],
)
def test_options_that_are_not_known_are_refused(options: dict[str, str], found: str) -> None:
    given = {"path": "s3://bucket/x", **options}
    with pytest.raises(CatalogError) as error:
        FolderOptions.of({name: value for name, value in given.items() if value})
    assert re.search(found, str(error.value))


def test_offsets_of_sparks_file_source_are_refused() -> None:
    options = FolderOptions.of({"path": "s3://bucket/x", "fileFormat": "parquet"})
    stream = FolderStream(options, to_spark(Schema.from_arrow(COLUMNS)))
    with pytest.raises(CatalogError, match="offsets of Spark's file source"):
        stream.latestOffset({"logOffset": 3}, ReadMaxFiles(1))
    with pytest.raises(CatalogError, match="cannot be read from csv files"):
        FolderStream(replace(options, format="csv"), to_spark(Schema.from_arrow(COLUMNS)))


@pytest.mark.parametrize(
    ("format", "path", "is_ours"),
    [
        ("parquet", "s3://b/x", True),
        ("json", "S3A://b/x", True),
        ("csv", "gs://b/x", True),
        ("orc", "s3://b/x", False),
        ("parquet", "hdfs://b/x", False),
        ("parquet", "/data/x", False),
        ("kafka", None, False),
    ],
)
def test_object_stores_are_read_by_this_source(
    format: str, path: str | None, is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_stored(format, path) == is_ours
    monkeypatch.setenv(OFF, "1")
    assert not is_stored(format, path)


def runner_of(handle: Any) -> SparkRunner:
    runner = handle._runner
    assert isinstance(runner, SparkRunner)
    return runner


def read_in(folder: Path, batch: int) -> dict[str, list[str]]:
    """The files of a batch in its manifest, without their sizes."""
    manifest = json.loads((folder / "checkpoint" / "anabranch" / "manifests" / f"{batch:09d}.json").read_text())
    return {name: [path.rpartition(":")[0] for path in paths] for name, paths in manifest["pieces"].items()}
