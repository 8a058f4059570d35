"""A changed query takes over its checkpoint on Spark: asked first, then allowed, then exact."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from anabranch.api import ContinuousQuery
from anabranch.errors import QueryChanged
from tests.spark.stories import Story, feed, register
from tests.support.oracle import Answer, comparable, describe_difference, rows_as_multiset, timed_results

PAIR = Story("SELECT a.p AS p, b.p AS q FROM s0 [RANGE 8 SECONDS] AS a, s1 [RANGE 8 SECONDS] AS b WHERE a.x = b.x")
LONGER = PAIR.cql.replace("a.p AS p", "a.p AS p, a.s AS s").replace("8 SECONDS", "9 SECONDS")


def start(query: ContinuousQuery, folder: Path, sink: str, evolve: str) -> dict[str, int | None]:
    """Runs the query to its end; returns from when on a changed one answers."""
    writer = query.writeStream.option("checkpointLocation", str(folder / "checkpoint")).evolve(evolve).slots(2)
    handle = writer.option("path", str(folder / sink)).trigger(availableNow=True).start()
    handle.awaitTermination()
    return next((record["joined"] for record in handle.history if "joined" in record), {})


def written(folder: Path) -> Answer:
    files = sorted(folder.glob("part-*.parquet"))
    return sum((rows_as_multiset(parquet.read_table(file)) for file in files), Counter())


def test_a_changed_query_goes_on_from_the_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    session = register(spark, PAIR, tmp_path)
    old, new = session.sql(PAIR.cql), session.sql(LONGER)
    tables = PAIR.tables()
    feed(tmp_path, {name: rows.slice(0, 30) for name, rows in tables.items()})
    start(old, tmp_path, "old", "refuse")
    feed(tmp_path, {name: rows.slice(30) for name, rows in tables.items()})
    with pytest.raises(QueryChanged, match="has changed") as caught:
        start(new, tmp_path, "new", "ask")
    assert "would be complete from event time" in (caught.value.detail or "")
    since = start(new, tmp_path, "new", "allow")[""]
    assert since is not None
    first: dict[str, pa.Table] = {name: rows.slice(0, 30) for name, rows in tables.items()}
    expected: Answer = Counter(tuple(map(comparable, row)) for _, row in timed_results(old.compiled.query, first))
    assert not describe_difference(expected, written(tmp_path / "old"))
    results = timed_results(new.compiled.query, tables)
    expected = Counter(tuple(map(comparable, row)) for time, row in results if time >= since)
    assert expected
    assert not describe_difference(expected, written(tmp_path / "new"))
