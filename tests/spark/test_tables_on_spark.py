"""Tables beside streams on Spark: read again, pinned with their batch; from Python and from a spec."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

import anabranch
from anabranch.errors import CatalogError, SpecError
from anabranch.plan.query import Query
from anabranch.spec.file import parse
from anabranch.spec.launch import prepare
from tests.spark.stories import FEEDS, Story, cut, feed, register, run, written
from tests.support.oracle import Answer, batch_answer, describe_difference

pytestmark = pytest.mark.spark

OLD = pa.table({"x": pa.array([0, 1, 1, None], pa.int64()), "name": pa.array(["nil", "one", "eins", "nobody"])})
NEW = pa.table({"x": pa.array([0, 2, 3], pa.int64()), "name": pa.array(["zero", "two", "three"])})
JOIN = (
    "SELECT a.p AS p0, b.p AS p1, t.name AS name FROM s0 [RANGE 6 SECONDS] AS a JOIN s1 [RANGE 6 SECONDS] AS b "
    "ON a.y = b.y LEFT JOIN customers AS t ON t.x = a.x WHERE b.x IN (SELECT u.x FROM customers AS u)"
)


def test_a_table_is_read_again_and_met_by_later_batches(spark: SparkSession, tmp_path: Path) -> None:
    """A restart meets the last version with its first batch, which may be a repetition, and then the new one."""
    story = Story(JOIN)
    session = register(spark, story, tmp_path)
    folder = tmp_path / "customers"
    folder.mkdir()
    parquet.write_table(OLD, folder / "rows.parquet")
    session.table("customers", lambda: spark.read.parquet(str(folder)), refresh="1 hour")
    query = session.sql(JOIN)
    batches = list(cut(story.tables(), 4))
    feed(tmp_path, batches[0])
    run(query, tmp_path, "(a b)", 2)
    parquet.write_table(NEW, folder / "rows.parquet")
    feed(tmp_path, batches[1])
    feed(tmp_path, batches[2])
    run(query, tmp_path, "(b a)", 1)
    feed(tmp_path, batches[3])
    run(query, tmp_path, "(a b)", 3)
    expected = _expected(query.compiled.query, batches, [OLD, OLD, NEW, NEW])
    assert len(expected) > 10
    assert not describe_difference(expected, written(tmp_path))
    manifest = json.loads((tmp_path / "checkpoint" / "anabranch" / "manifests" / "000000003.json").read_text())
    assert manifest["tables"] == {"customers": "000000002-customers.arrow"}


def _write_parquet(rows: pa.Table, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    parquet.write_table(rows, folder / "rows.parquet")


def _write_delta(rows: pa.Table, folder: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="the extra 'delta' is not installed")
    deltalake.write_deltalake(str(folder), rows, mode="overwrite")


@pytest.mark.parametrize(
    ("format", "write", "version"),
    [
        ("parquet", _write_parquet, "files"),
        ("parquet", _write_parquet, "SELECT MAX(name) FROM parquet.`{folder}/customers`"),
        ("delta", _write_delta, "files"),
    ],
)
def test_a_spec_says_when_a_table_has_changed(
    format: str, write: Callable[[pa.Table, Path], None], version: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The first batch meets the old rows; the table changes while the query runs, and the others meet the new ones."""
    story = Story("SELECT a.p AS p, t.name AS name FROM s0 [NOW] AS a, customers AS t WHERE a.x = t.x")
    batches = list(cut(story.tables(), 3))
    write(OLD, tmp_path / "customers")
    feed(tmp_path, batches[0])
    text = f"""
streams: {{s0: {{format: parquet, path: {FEEDS}, schema: "ts timestamp, x bigint, p bigint", event_time: ts}}}}
tables:
  customers: {{format: {format}, path: customers, schema: "x bigint, name string", version: "{version}"}}
query: {story.cql}
sink: {{format: parquet, path: out}}
checkpoint: checkpoint
trigger: 100 milliseconds
slots: 2
"""
    handle = prepare(parse(text.replace("{folder}", str(tmp_path)), folder=tmp_path), spark).start()
    try:
        handle.processAllAvailable()
        write(NEW, tmp_path / "customers")
        for batch in batches[1:]:
            feed(tmp_path, batch)
            handle.processAllAvailable()
        sent = [each["adaptive"]["statistics"]["rowsIn"].get("a", 0) for each in handle.recentProgress]
    finally:
        handle.stop()
    # Rows whose key the table of the batch does not have are not sent.
    met = zip(batches, (OLD, NEW, NEW), strict=True)
    keys = [(batch["s0"]["x"].to_pylist(), {*table["x"].to_pylist()} - {None}) for batch, table in met]
    assert [count for count in sent if count] == [sum(x in known for x in given) for given, known in keys]
    expected = Answer(
        (p, name)
        for batch, table in zip(batches, (OLD, NEW, NEW), strict=True)
        for x, p in zip(*(batch["s0"][each].to_pylist() for each in "xp"), strict=True)
        for key, name in zip(*(table[each].to_pylist() for each in table.column_names), strict=True)
        if x is not None and x == key
    )
    assert len(expected) > 10
    assert not describe_difference(expected, written(tmp_path))


def test_a_spec_names_tables(spark: SparkSession, tmp_path: Path) -> None:
    story = Story("SELECT a.p AS p, t.name AS name FROM s0 [NOW] AS a, customers AS t WHERE a.x = t.x")
    tables = story.tables()
    feed(tmp_path, tables)
    parquet.write_table(OLD, tmp_path / "customers.parquet")
    text = f"""
streams: {{s0: {{format: parquet, path: {FEEDS}, schema: "ts timestamp, x bigint, p bigint", event_time: ts}}}}
tables: {{customers: {{format: parquet, path: customers.parquet, schema: "x bigint, name string"}}}}
query: {story.cql}
sink: {{format: parquet, path: out}}
checkpoint: checkpoint
slots: 2
"""
    handle = prepare(parse(text, folder=tmp_path), spark).start()
    handle.awaitTermination()
    expected = Answer(
        (p, name)
        for x, p in zip(*(tables["s0"][each].to_pylist() for each in "xp"), strict=True)
        for key, name in zip(*(OLD[each].to_pylist() for each in OLD.column_names), strict=True)
        if x is not None and x == key
    )
    assert len(expected) > 10
    assert not describe_difference(expected, written(tmp_path))


def test_what_a_table_lacks_is_named(spark: SparkSession) -> None:
    session = anabranch.Session(spark)
    frame = spark.createDataFrame([(1, "a")], "k bigint, v string")
    with pytest.raises(CatalogError, match="'a b' is not a valid table name"):
        session.table("a b", frame)
    with pytest.raises(CatalogError, match="which cannot be read again"):
        session.table("t", frame, refresh="1 minute")
    with pytest.raises(CatalogError, match="is not a DataFrame"):
        session.table("t", 7)  # type: ignore[arg-type]
    with pytest.raises(CatalogError, match="is not a batch DataFrame"):
        session.table("t", spark.readStream.format("rate").load())


WAITING = {
    "an outer join of streams": "SELECT a.p AS p, t.name AS n FROM s0 [RANGE 6 SECONDS] AS a "
    "LEFT JOIN s1 [RANGE 6 SECONDS] AS b ON a.y = b.y LEFT JOIN customers AS t ON t.x = a.x",
    "groups": "SELECT t.name AS name, COUNT(*) AS n FROM s0 [RANGE 6 SECONDS SLIDE 2 SECONDS] AS a, customers AS t "
    "WHERE t.x = a.x GROUP BY t.name",
}


@pytest.mark.parametrize("cql", WAITING.values(), ids=WAITING)
def test_a_table_that_must_keep_its_first_version_is_not_read_again(
    cql: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The setting was accepted and ignored."""
    session = register(spark, Story(JOIN), tmp_path)
    parquet.write_table(OLD, tmp_path / "customers.parquet")

    def read() -> DataFrame:
        return spark.read.parquet(str(tmp_path / "customers.parquet"))

    again: tuple[dict[str, Any], ...] = ({"refresh": "1 minute"}, {"version": lambda: 1})
    for setting in again:
        session.table("customers", read, **setting)
        with pytest.raises(SpecError, match="table 'customers' cannot be read again while the query runs") as caught:
            run(session.sql(cql), tmp_path)
        assert "the query wait for the watermark" in caught.value.detail
        with pytest.raises(SpecError, match="table 'customers' cannot be read again") as caught:
            session.together(alerts=session.sql(JOIN).writeStream, waits=session.sql(cql).writeStream)
        assert "query 'waits'" in caught.value.detail
    assert not (tmp_path / "checkpoint").exists()
    session.table("customers", read)
    run(session.sql(cql), tmp_path)


@pytest.mark.parametrize("refresh", ["", 0, False, [], "soon"])
def test_what_is_no_duration_is_not_taken_for_never(refresh: object, spark: SparkSession) -> None:
    session = anabranch.Session(spark)
    with pytest.raises(CatalogError, match="the refresh of table 't' is "):
        session.table("t", lambda: spark.range(1), refresh=refresh)  # type: ignore[arg-type]


def _expected(query: Query, batches: Sequence[Mapping[str, pa.Table]], beside: Sequence[pa.Table]) -> Answer:
    """Results of each batch: those of all rows so far less those of the rows before, with the table of the batch."""
    total = Answer()
    before = {name: rows.slice(0, 0) for name, rows in batches[0].items()}
    for batch, table in zip(batches, beside, strict=True):
        so_far = {name: pa.concat_tables([before[name], rows]) for name, rows in batch.items()}
        met = {"customers": table}
        total += batch_answer(query, {**so_far, **met}) - batch_answer(query, {**before, **met})
        before = so_far
    return total
