"""Routes by a column that the query does not select: learnt from a sample, taken, restarted; Spark reads, or slots."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import anabranch
from anabranch.api import ContinuousQuery, ContinuousQueryWriter, QueryHandle, compiled
from anabranch.errors import UnknownAttribute
from anabranch.plan.classifier import attributes
from anabranch.plan.mesh import Mesh
from anabranch.plan.query_set import Plans
from anabranch.run.sample import Sample
from anabranch.spark.stored_files import OFF
from tests.spark.stories import write_apart
from tests.support.duckdb_sql import duckdb_answer
from tests.support.oracle import comparable, describe_difference, rows_as_multiset, timed_results
from tests.support.regions import MESH, ROWS, regional_batch, regional_query, regional_text

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("counted_costs")]

BATCHES = 12
SCHEMA = "ts timestamp, k0 bigint, k1 bigint, v bigint, region string, number bigint, moment timestamp"


def feed(folder: Path, number: int, rng: np.random.Generator) -> dict[str, pa.Table]:
    """A file of each stream."""
    rows = regional_batch(number, rng)
    for name, table in rows.items():
        write_apart(folder, name, number, table)
    return rows


def the_query(spark: SparkSession, folder: Path, schema: str = SCHEMA) -> ContinuousQuery:
    session = anabranch.Session(spark)
    for name in "hab":
        frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 3).parquet(str(folder / name))
        sample = spark.read.schema(schema).parquet(str(folder / name))
        session.register(name, frame, event_time="ts", watermark="0 seconds", sample=sample)
    return session.sql(regional_text())


def run(query: ContinuousQuery, folder: Path, plan: str, name: str) -> tuple[object, int, list[dict[str, Any]]]:
    """The plan, the matches of rows of h, and the routes of the last batch."""
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(folder / f"{name}-kept"))
    handle = writer.plan(plan).slots(1).trigger(availableNow=True).start(str(folder / name))
    handle.awaitTermination()
    seen = [each["adaptive"]["statistics"] for each in handle.recentProgress if each["adaptive"]]
    matches = sum(probe["matches"] for each in seen for probe in each["probes"] if probe["origin"] == "h")
    return handle.plan, matches, seen[-1]["routes"] if seen else []


def test_slots_read_an_unselected_column_and_its_mesh_is_learnt_taken_and_pays(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    batches = [feed(tmp_path, number, rng) for number in range(BATCHES)]
    query = the_query(spark, tmp_path)
    explained = query.explanation(plan="mesh")
    assert "mesh taken: requested" in explained
    assert "rows travel with their classes: region" in explained
    mesh, matches, routes = run(query, tmp_path, "mesh", "routed")
    assert isinstance(mesh, Mesh)
    assert "region" in attributes(mesh.of("h").classifier)
    assert {route["route"] for route in routes if route["relation"] == "h"} == {0, 1}
    _, plain, _ = run(query, tmp_path, "mjoin", "plain")
    assert matches < 0.6 * plain
    # A restart goes on with the mesh, also without a sample; rows of the checkpoint have no class.
    monkeypatch.setattr(compiled, "sample_streams", lambda queries, _: [Sample() for _ in queries])
    batches += [feed(tmp_path, number, rng) for number in range(BATCHES, BATCHES + 2)]
    again, _, routes = run(the_query(spark, tmp_path), tmp_path, "mesh", "routed")
    assert str(again) == str(mesh)
    assert {route["route"] for route in routes if route["relation"] == "h"} == {0, 1}
    assert not difference(tmp_path / "routed", batches)


def test_queries_together_route_by_columns_that_none_of_them_selects(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One learns its mesh from the sample, another joins with one of its own; a restart, and one leaves."""
    monkeypatch.setenv(OFF, "1")
    rng = np.random.default_rng(1)
    batches = [feed(tmp_path, number, rng) for number in range(4)]
    by_number = "mesh(h: a>b, b>a by (number <= 5500.0 or null ? 1 : (region in {'north'} ? 0 : 1)); a: h>b; b: h>a)"
    query = the_query(spark, tmp_path)

    def writer(name: str, plan: str) -> ContinuousQueryWriter:
        return query.writeStream.plan(plan).option("path", str(tmp_path / name))

    def start(**writers: ContinuousQueryWriter) -> QueryHandle:
        together = query.session.together(**writers).option("checkpointLocation", str(tmp_path / "kept"))
        return together.slots(2).start()

    def routes(handle: QueryHandle, name: str) -> set[int]:
        latest = [each["adaptive"]["queries"] for each in handle.recentProgress if each["adaptive"]][-1]
        return {route["route"] for route in latest[name]["statistics"]["routes"] if route["relation"] == "h"}

    handle = start(one=writer("one", "mesh"))
    try:
        handle.processAllAvailable()
        assert isinstance(handle.plan, Plans)
        mesh = handle.plan["one"]
        assert isinstance(mesh, Mesh)
        assert "region" in attributes(mesh.of("h").classifier)
        assert routes(handle, "one") == {0, 1}
        with pytest.raises(UnknownAttribute, match="'planet' is not a column of stream 'h'"):
            handle.add("two", writer("two", MESH.replace("region", "planet")))
        since = handle.add("two", writer("two", by_number))
        batches.append(feed(tmp_path, 4, rng))
        handle.processAllAvailable()
        assert routes(handle, "one") == routes(handle, "two") == {0, 1}
        handle.stop()
        # Again, and without a sample: the plan of the last batch says what travels.
        monkeypatch.setattr(compiled, "sample_streams", lambda queries, _: [Sample() for _ in queries])
        query = the_query(spark, tmp_path)
        handle = start(one=writer("one", "mesh"), two=writer("two", by_number))
        batches.append(feed(tmp_path, 5, rng))
        handle.processAllAvailable()
        assert routes(handle, "one") == routes(handle, "two") == {0, 1}
        handle.remove("two")
        batches.append(feed(tmp_path, 6, rng))
        handle.processAllAvailable()
        assert str(handle.plan) == f"one: {mesh}"
        assert routes(handle, "one") == {0, 1}
    finally:
        handle.stop()
    assert not difference(tmp_path / "one", batches)
    assert since is not None
    first = int(since.timestamp() * 1e6)
    whole = {name: pa.concat_tables([each[name] for each in batches[:6]]) for name in "hab"}
    expected = Counter(
        tuple(map(comparable, values)) for time, values in timed_results(regional_query(), whole) if time >= first
    )
    assert expected
    assert not describe_difference(expected, rows_as_multiset(pq.read_table(tmp_path / "two")))


def test_files_without_the_column_and_a_stream_that_has_lost_it(spark: SparkSession, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    batches = [feed(tmp_path, number, rng) for number in range(3)]
    run(the_query(spark, tmp_path), tmp_path, MESH, "routed")
    # Such a file is left to Spark, which fills in NULL: its rows take the route of NULL.
    batches.append(regional_batch(3, rng))
    for name, table in batches[-1].items():
        pq.write_table(table.drop_columns(["region"]), tmp_path / name / "003.parquet")
    _, _, routes = run(the_query(spark, tmp_path), tmp_path, MESH, "routed")
    assert {route["route"]: route["rows"] for route in routes if route["relation"] == "h"} == {0: ROWS}
    assert not difference(tmp_path / "routed", batches)
    lost = the_query(spark, tmp_path, SCHEMA.replace("region string, ", ""))
    with pytest.raises(UnknownAttribute, match="'region' is not a column of stream 'h'"):
        run(lost, tmp_path, MESH, "routed")
    run(lost, tmp_path, "mjoin", "routed")


def difference(folder: Path, batches: list[dict[str, pa.Table]]) -> str:
    whole = {name: pa.concat_tables([each[name] for each in batches]) for name in "hab"}
    return describe_difference(
        rows_as_multiset(duckdb_answer(regional_query(), whole)), rows_as_multiset(pq.read_table(folder))
    )
