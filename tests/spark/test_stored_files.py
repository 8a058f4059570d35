"""Queries over folders of an S3 server, which lives on loopback, refuses requests, cuts off answers and is slow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import anabranch
from anabranch.spark.runner import SparkRunner
from anabranch.testing.oracle import describe_difference
from anabranch.testing.s3_server import HALF, SLOW, Fault, S3Server, s3_server
from tests.spark.stories import Story, cut, put, register, run, without_nan, written
from tests.spark.test_file_streams import READ_BY_SLOTS, rows_in

pytest.importorskip("moto", reason="no S3 server: pip install '.[dev]'")
pytestmark = pytest.mark.spark
CSV = "text"
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


@pytest.mark.parametrize("form", ["parquet", "json"])
@pytest.mark.parametrize("name", ["chain, three slots", "text", "nine slots", "filters", "groups", "outer joins"])
def test_the_answer_is_the_batch_answer_while_the_store_answers_badly(
    name: str, form: str, spark: SparkSession, store: S3Server, tmp_path: Path
) -> None:
    story = replace(READ_BY_SLOTS[name], form=form, store=store)
    tables = story.tables() if form == "parquet" else without_nan(story.tables())
    for batch in cut(tables, 3):
        put(store, tmp_path, batch, form)
    store.answer_badly(*FAULTS)
    handle = run(query_of(spark, story, tmp_path), tmp_path, story.plan, story.slots)
    assert store.pending() == 0
    runner = handle._runner
    assert isinstance(runner, SparkRunner)
    assert runner.reads_files
    expected = story.expected(tables)
    assert len(expected) > 10
    assert not describe_difference(expected, written(tmp_path))
    report = handle.report()
    assert (report["batches"], report["rows_in"], report["late_rows"]) == (3, rows_in(tables), 0)
    assert read_in(tmp_path, 2) == {name: ["part 0002." + form] for name in tables}


def read_in(folder: Path, batch: int) -> dict[str, list[str]]:
    """The files of a batch in its manifest, without their sizes."""
    manifest = json.loads((folder / "checkpoint" / "anabranch" / "manifests" / f"{batch:09d}.json").read_text())
    return {name: [path.rpartition(":")[0] for path in paths] for name, paths in manifest["pieces"].items()}
