"""A table of a database, exactly once: the rows of a batch replace those of an earlier attempt in one transaction.

The executors write a batch into a table of its own beside the target, by Spark's writer. Then the driver, in one
transaction, removes from the target what the batch replaces and inserts the rows. What it replaces is said by one of
two options:

    batchColumn   a column of the target that holds the number of the batch: the rows with this number
    keyColumns    columns whose values are unique among the results: the rows with the values of the batch (an upsert)

Law: the target shows all of a batch or nothing of it, and a batch that is written again leaves its rows once. Spark may
run a task twice whose executor was lost; so the rows beside the target are counted before they are taken.

Limit: the database must have transactions that include DELETE and INSERT … SELECT. Without either option the results go
through Spark's plain writer, which appends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.errors import SinkError, SpecError
from anabranch.host.spark.sinks.sink import Batch, Sink
from anabranch.schema import Schema

BATCH, KEYS = "batchColumn", "keyColumns"
_OURS = (BATCH.lower(), KEYS.lower())


@dataclass(frozen=True)
class JdbcSink(Sink):
    """Replaces the rows of a batch in a table of a database."""

    spark: SparkSession
    table: str
    options: Mapping[str, str]
    """Spark's options of the connection, without the table."""
    batch_column: str | None = None
    keys: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"'jdbc' at '{self.table}'"

    @property
    def place(self) -> str | None:
        return f"jdbc table {self.table}"

    def beside(self, batch: Batch) -> str:
        """The table that the executors write."""
        return f"{self.table}_anabranch_{batch.query_id[:8] or 'batch'}"

    def write(self, frame: DataFrame, batch: Batch) -> None:
        rows = frame if self.batch_column is None else frame.withColumn(self.batch_column, f.lit(batch.number))
        # Creates the target if there is none.
        self._writer(rows.limit(0), self.table).mode("append").save()
        self._writer(rows, self.beside(batch)).mode("overwrite").option("truncate", "true").save()
        expected = frame.count()
        with self._connection() as (connection, _):
            found = _number(connection, f"SELECT COUNT(*) FROM {self.beside(batch)}")
            if found != expected:
                raise SinkError(
                    f"sink {self.title} has {found} rows of batch {batch.number} instead of {expected}",
                    detail="a task ran twice, or another query writes into its table",
                    hint="restart the query; the batch is written again",
                )

    def publish(self, batch: Batch) -> None:
        beside = self.beside(batch)
        with self._connection() as (connection, quote):
            connection.setAutoCommit(False)
            names = ", ".join(map(quote, self._columns(connection, beside)))
            _run(connection, f"DELETE FROM {self.table} WHERE {self._replaced(batch, beside, quote)}")
            _run(connection, f"INSERT INTO {self.table} ({names}) SELECT {names} FROM {beside}")
            connection.commit()

    def _replaced(self, batch: Batch, beside: str, quote: Any) -> str:
        if self.batch_column is not None:
            return f"{quote(self.batch_column)} = {batch.number}"
        # NULL is a key like any other: groups may have it.
        pairs = [(f"beside.{quote(key)}", f"{self.table}.{quote(key)}") for key in self.keys]
        same = " AND ".join(f"({new} = {old} OR ({new} IS NULL AND {old} IS NULL))" for new, old in pairs)
        return f"EXISTS (SELECT 1 FROM {beside} beside WHERE {same})"

    def _columns(self, connection: Any, table: str) -> list[str]:
        statement = connection.createStatement()
        try:
            found = statement.executeQuery(f"SELECT * FROM {table} WHERE 1 = 0").getMetaData()
            return [found.getColumnLabel(i + 1) for i in range(found.getColumnCount())]
        finally:
            statement.close()

    def _writer(self, frame: DataFrame, table: str) -> Any:
        return frame.write.format("jdbc").options(**{**self.options, "dbtable": table})

    @contextmanager
    def _connection(self) -> Iterator[tuple[Any, Any]]:
        """A connection of the driver, made as Spark makes its own, and how the database quotes a name."""
        jvm: Any = self.spark._jvm
        options = jvm.java.util.HashMap()
        for key, value in {**self.options, "dbtable": self.table}.items():
            options.put(key, value)
        known = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(jvm.PythonUtils.toScalaMap(options))
        dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(known.url())
        connection = dialect.createConnectionFactory(known).apply(-1)
        try:
            yield connection, dialect.quoteIdentifier
        finally:
            # A transaction that is not committed is undone.
            if not connection.getAutoCommit():
                connection.rollback()
            connection.close()


def make_jdbc(spark: SparkSession, schema: Schema, options: Mapping[str, str], table: str | None) -> JdbcSink | None:
    """The sink that the options ask for; None if they ask for Spark's plain writer."""
    lower = {key.lower(): value for key, value in options.items()}
    batch_column, keys = lower.get(BATCH.lower()), lower.get(KEYS.lower())
    if batch_column is None and keys is None:
        return None
    if batch_column is not None and keys is not None:
        raise SpecError(f"the 'jdbc' sink has both {BATCH} and {KEYS}", hint="give one of them")
    name = lower.get("dbtable") or table
    for option, value in (("url", lower.get("url")), ("dbtable", name)):
        if not value:
            raise SpecError(f"the 'jdbc' sink has no {option}", hint=f"give option('{option}', …)")
    assert name is not None
    columns = tuple(key.strip() for key in (keys or "").split(",") if key.strip())
    if keys is not None and not columns:
        raise SpecError(f"{KEYS} of the 'jdbc' sink names no column", hint="name the columns of a key of the results")
    for column in columns:
        if schema.find(column) is None:
            raise SpecError(
                f"key column '{column}' is not in the SELECT list",
                detail=f"the query selects {', '.join(schema.names)}",
                hint="select it, or use another key",
            )
    if batch_column is not None and schema.find(batch_column) is not None:
        raise SpecError(f"{BATCH} '{batch_column}' is a column of the results", hint="give it a name of its own")
    rest = {key: value for key, value in options.items() if key.lower() not in (*_OURS, "dbtable")}
    return JdbcSink(spark, name, rest, batch_column, columns)


def _run(connection: Any, sql: str) -> None:
    statement = connection.createStatement()
    try:
        statement.executeUpdate(sql)
    finally:
        statement.close()


def _number(connection: Any, sql: str) -> int:
    statement = connection.createStatement()
    try:
        found = statement.executeQuery(sql)
        found.next()
        return int(found.getLong(1))
    finally:
        statement.close()
