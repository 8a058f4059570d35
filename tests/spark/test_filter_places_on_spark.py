"""`late_filters: auto` on Spark: a dear filter is put off, explained, kept by the checkpoint, and changes no answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.sql import SparkSession

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.run import filters
from anabranch.spec.file import load
from anabranch.spec.launch import prepare
from tests.support.duckdb_sql import duckdb_answer
from tests.support.oracle import Answer, describe_difference, rows_as_multiset

pytestmark = pytest.mark.spark

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("note", pa.string())])
SCHEMA = "ts timestamp, k bigint, note string"
TEXT = (
    "SELECT a.k AS k FROM a [RANGE 10 MILLISECONDS], b [RANGE 10 MILLISECONDS] "
    "WHERE a.k = b.k AND a.note RLIKE '.*lot [0-9]+ was.*'"
)
DEAR = "RLIKE(a.note, '.*lot [0-9]+ was.*')"
ROWS = 4_000


def feed(folder: Path, number: int, rng: np.random.Generator) -> dict[str, pa.Table]:
    """Forty milliseconds of each stream: b is slow, so that hardly any row of a meets one of its rows."""
    tables = {}
    for name in "ab":
        count = ROWS if name == "a" else ROWS // 20
        times = np.sort(rng.integers(0, 40_000, count)) + 40_000 * number
        notes = [f"lot {each} was" if each % 10 else "nothing" for each in range(count)]
        instants = pa.array(times).cast(pa.timestamp("us")).cast(TIMESTAMP)
        columns = {"ts": instants, "k": rng.integers(0, 1_000, count), "note": notes}
        tables[name] = pa.table(columns, schema=COLUMNS)
        (folder / name).mkdir(exist_ok=True)
        pq.write_table(tables[name], folder / name / f"{number}.parquet")
    return tables


def spec(folder: Path, **entries: object) -> Path:
    streams = {name: {"format": "parquet", "path": name, "schema": SCHEMA, "event_time": "ts"} for name in "ab"}
    document = {
        "streams": streams,
        "query": TEXT,
        "sink": {"format": "parquet", "path": "out"},
        "checkpoint": "checkpoint",
        "slots": 1,
        "trigger": "available_now",
        "late_filters": "auto",
        **entries,
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(document))
    return folder / "spec.yaml"


def costing(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check takes so long, and nine rows in ten pass."""
    monkeypatch.setattr(filters, "timed", lambda condition, rows: (0.9 * len(rows), seconds * len(rows)))


def test_a_dear_filter_is_put_off_and_stays_there(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    batches = [feed(tmp_path, number, rng) for number in range(2)]
    path = spec(tmp_path)
    costing(1e-8, monkeypatch)
    assert f"{DEAR} is checked before the joins: 10 ns a row, 90% pass" in prepare(load(path), spark).explanation()
    costing(5e-6, monkeypatch)
    run = prepare(load(path), spark)
    assert f"{DEAR} is checked by the joins: 5000 ns a row, 90% pass" in run.explanation()
    assert run.queries.late_filters == (DEAR,)
    run.start().awaitTermination()
    # The rows of the checkpoint were not filtered: a restart leaves the filter where it is, whatever it costs now.
    costing(1e-8, monkeypatch)
    batches.append(feed(tmp_path, 2, rng))
    run = prepare(load(path), spark)
    assert f"as in the checkpoint: late are {DEAR}" in run.explanation()
    run.start().awaitTermination()
    expected = answer(batches)
    assert expected
    assert not describe_difference(expected, rows_as_multiset(pq.read_table(tmp_path / "out")))
    # Named by hand, it moves.
    run = prepare(load(spec(tmp_path, late_filters=[])), spark)
    assert run.queries.late_filters == ()
    run.start().awaitTermination()


def answer(batches: Sequence[Mapping[str, pa.Table]]) -> Answer:
    """The batch answer of the query."""
    catalog = Catalog()
    for name in "ab":
        catalog.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts"))
    whole = {name: pa.concat_tables([each[name] for each in batches]) for name in "ab"}
    return rows_as_multiset(duckdb_answer(compile_query(TEXT, catalog), whole))


def together(folder: Path, **queries: str) -> Path:
    path = spec(
        folder,
        queries={
            name: {"query": text, "late_filters": "auto", "sink": {"format": "parquet", "path": f"out_{name}"}}
            for name, text in queries.items()
        },
    )
    document = yaml.safe_load(path.read_text())
    for entry in ("query", "sink", "late_filters"):
        del document[entry]
    path.write_text(yaml.safe_dump(document))
    return path


def test_filters_of_queries_that_run_together_are_placed_together(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [feed(tmp_path, 0, np.random.default_rng(1))]
    costing(5e-6, monkeypatch)
    other = TEXT.replace("SELECT a.k AS k", "SELECT b.k AS k")
    path = together(tmp_path, one=TEXT, other=other)
    run = prepare(load(path), spark)
    both = (f"one: {DEAR}", f"other: {DEAR}")
    assert run.queries.late_filters == both, "one decision for both"
    assert run.explanation().count(f"{DEAR} is checked by the joins: 5000 ns a row, 90% pass") == 1
    run.start().awaitTermination()
    # A restart leaves them where they are, and so does a query that joins in another spec of these queries.
    costing(1e-8, monkeypatch)
    batches.append(feed(tmp_path, 1, np.random.default_rng(2)))
    run = prepare(load(path), spark)
    assert run.queries.late_filters == both
    assert run.explanation().count(f"as in the checkpoint: late are {DEAR}") == 1
    run.start().awaitTermination()
    expected = answer(batches)
    assert expected
    for name in ("one", "other"):
        assert not describe_difference(expected, rows_as_multiset(pq.read_table(tmp_path / f"out_{name}")))


def test_a_filter_of_rows_that_another_query_wants_anyway_is_checked_by_the_joins(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rejects nearly everything: alone, it belongs before the joins. Here it would spare no row from travelling."""
    feed(tmp_path, 0, np.random.default_rng(1))
    monkeypatch.setattr(filters, "timed", lambda condition, rows: (0.01 * len(rows), 5e-7 * len(rows)))
    wide = "SELECT a.k AS k, a.note AS note FROM a [RANGE 10 MILLISECONDS], b [RANGE 10 MILLISECONDS] WHERE a.k = b.k"
    alone = prepare(load(together(tmp_path, one=TEXT)), spark)
    assert alone.queries.late_filters == ()
    pair = prepare(load(together(tmp_path, one=TEXT, wide=wide)), spark)
    assert pair.queries.late_filters == (f"one: {DEAR}",), pair.explanation()
