"""A table of a database gets every batch once: on Derby, which Spark brings, and on PostgreSQL and MariaDB.

Servers and their JDBC drivers are those of the system's packages. A test that lacks one is skipped, and names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from anabranch.errors import SinkError, SpecError
from anabranch.lang.schema import Field, Schema
from anabranch.plan.query_set import ALONE
from anabranch.spark.sinks import jdbc
from anabranch.spark.sinks.delivery import deliver
from anabranch.spark.sinks.make import make_sink
from anabranch.spark.sinks.sink import Batch, Sink
from anabranch.spark.sinks.spark_writer import WriterSink
from tests.contract.databases import SERVERS, Server
from tests.spark import jdbc_story
from tests.spark.delivering import arrow_frame, results
from tests.spark.jdbc_story import MOMENTS

pytestmark = pytest.mark.spark

SCHEMA = Schema((Field("k", pa.int64()), Field("v", pa.string())))
Rows: TypeAlias = list[tuple[int, str]]


@dataclass(frozen=True)
class Database:
    spark: SparkSession
    options: dict[str, str]

    def sink(self, **more: str) -> Sink:
        options = {**self.options, "dbtable": "results", **more}
        return make_sink("jdbc", options, spark=self.spark, schema=SCHEMA)

    def read(self) -> Rows:
        frame = self.spark.read.format("jdbc").options(**self.options, dbtable="results").load()
        return sorted((row["k"], row["v"]) for row in frame.select("k", "v").collect())

    def write(self, sink: Sink, rows: Rows, batch: int) -> None:
        frame = arrow_frame(self.spark, rows).repartition(2, "k")
        deliver({ALONE: sink}, Batch(batch, "0badcafe"), results(frame))


def derby(spark: SparkSession, folder: Path) -> Iterator[Database]:
    url = f"jdbc:derby:{folder / 'derby'}"
    yield Database(spark, {"url": f"{url};create=true", "driver": "org.apache.derby.jdbc.EmbeddedDriver"})
    assert spark._jvm is not None
    with pytest.raises(Py4JJavaError, match="shut"):  # Derby tells its end by an error
        spark._jvm.java.sql.DriverManager.getConnection(f"{url};shutdown=true")


DATABASES: dict[str, Callable[[SparkSession, Path], Iterator[Database]]] = {"derby": derby}


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Database]:
    yield from DATABASES[request.param](spark, tmp_path)


@pytest.mark.parametrize("mode", [{"batchColumn": "batch"}, {"keyColumns": "k"}], ids=["batch", "key"])
def test_a_batch_that_comes_again_is_there_once(database: Database, mode: dict[str, str]) -> None:
    for number, rows in enumerate([[(1, "a"), (2, "b")], [], [(3, "c")]]):
        database.write(database.sink(**mode), rows, number)
    database.write(database.sink(**mode), [(3, "c")], 2)
    assert database.read() == [(1, "a"), (2, "b"), (3, "c")]


def test_another_attempt_at_a_batch_replaces_the_first(database: Database) -> None:
    sink = database.sink(batchColumn="batch")
    database.write(sink, [(1, "a")], 0)
    database.write(sink, [(2, "half"), (3, "half")], 1)
    database.write(database.sink(batchColumn="batch"), [(2, "b")], 1)
    assert database.read() == [(1, "a"), (2, "b")]


def test_a_row_with_a_known_key_is_replaced(database: Database) -> None:
    sink = database.sink(keyColumns="k")
    database.write(sink, [(1, "a"), (2, "b")], 0)
    database.write(sink, [(2, "new")], 1)
    assert database.read() == [(1, "a"), (2, "new")]


def test_null_is_a_key_like_any_other(database: Database) -> None:
    """A group may have the key NULL; its row, too, is there once."""
    sink = database.sink(keyColumns="k")
    for batch in (0, 0, 1):
        frame = arrow_frame(database.spark, [(None, "a"), (1, "b")])
        deliver({ALONE: sink}, Batch(batch, "0badcafe"), results(frame))
    table = database.spark.read.format("jdbc").options(**database.options, dbtable="results").load()
    assert table.count() == 2


def test_a_failure_amid_the_transaction_shows_nothing_of_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = database.sink(batchColumn="batch")
    database.write(sink, [(1, "a")], 0)
    real = jdbc._run

    def lost(connection: object, sql: str) -> None:
        real(connection, sql)
        if sql.startswith("INSERT"):
            raise ConnectionError("the database went away")

    monkeypatch.setattr(jdbc, "_run", lost)
    with pytest.raises(SinkError, match="'jdbc' at 'results' failed on batch 0"):
        database.write(sink, [(9, "z")], 0)
    assert database.read() == [(1, "a")], "the rows of the first attempt stay until the second is whole"
    monkeypatch.undo()
    database.write(sink, [(9, "z")], 0)
    assert database.read() == [(9, "z")]


def test_rows_that_a_task_wrote_twice_are_not_taken(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jdbc, "_number", lambda connection, sql: 3)
    with pytest.raises(SinkError, match="3 rows of batch 0 instead of 2"):
        database.write(database.sink(batchColumn="batch"), [(1, "a"), (2, "b")], 0)
    assert database.read() == []


@pytest.mark.parametrize("mode", [{"batchColumn": "batch"}, {}], ids=["exactly once", "appended"])
def test_a_password_is_in_no_error(spark: SparkSession, mode: dict[str, str]) -> None:
    url = "jdbc:nosuch://me:hunter2@nowhere/db?password=hunter2"
    options = {"url": url, "dbtable": "t", "user": "me", "password": "hunter2", **mode}
    sink = make_sink("jdbc", options, spark=spark, schema=SCHEMA)
    with pytest.raises(SinkError) as refused:
        Database(spark, {}).write(sink, [(1, "a")], 0)
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in sink.title


def test_options_are_checked(spark: SparkSession) -> None:
    def sink(**options: str) -> Sink:
        return make_sink("jdbc", {"url": "jdbc:derby:x", "dbtable": "t", **options}, spark=spark, schema=SCHEMA)

    assert isinstance(sink(), WriterSink)
    for options, words in (
        ({"batchColumn": "b", "keyColumns": "k"}, "both batchColumn and keyColumns"),
        ({"keyColumns": "q"}, "key column 'q' is not in the SELECT list"),
        ({"keyColumns": " , "}, "names no column"),
        ({"batchColumn": "k"}, "'k' is a column of the results"),
        ({"batchColumn": "b", "dbtable": ""}, "has no dbtable"),
    ):
        with pytest.raises(SpecError, match=words) as refused:
            sink(**options)
        assert refused.value.hint


# --- servers ---------------------------------------------------------------------------------------------------------

SLOW = [pytest.mark.slow]
KILLED = [
    pytest.param(server, mode, moments, marks=marks, id=f"{server.name}, {title}")
    for server in SERVERS
    for mode, moments, marks, title in (
        ({"batchColumn": "batch"}, ("commit",), [], "once"),
        ({"keyColumns": "p0,p1,p2"}, ("commit",), SLOW, "by key"),
        ({"batchColumn": "batch"}, MOMENTS, SLOW, "every moment"),
    )
]


@pytest.mark.xdist_group("drivers of their own")
@pytest.mark.parametrize(("server", "mode", "moments"), KILLED)
def test_a_server_has_every_result_once_though_the_driver_is_killed(
    server: Server, mode: dict[str, str], moments: tuple[str, ...], tmp_path: Path
) -> None:
    if missing := server.missing():
        pytest.skip(missing)
    with server.running() as url:
        options = {"url": url, "driver": server.driver, **mode}
        jdbc_story.check(options, str(server.jar), tmp_path, moments)
