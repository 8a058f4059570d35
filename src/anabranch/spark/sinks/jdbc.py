"""A database table with exactly-once delivery: a batch replaces its earlier attempt in one transaction.

The executors write a batch into a separate staging table with Spark's writer. Then the driver, in one transaction,
deletes the replaced rows from the target and inserts the new rows. One of two options selects the replaced rows:

    batchColumn   a column of the target that holds the number of the batch: the rows with this number
    keyColumns    columns whose values are unique among the results: the rows with the values of the batch (an upsert)

Invariant: the target shows all of a batch or nothing of it, and a repeated batch leaves its rows once. Spark may run a
task twice if its executor was lost, so the staged rows are counted before the insert.

Limit: the database must support transactions with DELETE and INSERT … SELECT. Without either option, results go through
Spark's plain writer, which appends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.errors import SinkError
from anabranch.run.sink_settings import JdbcTable
from anabranch.spark.internals.writers import jdbc_connection
from anabranch.spark.sinks.sink import Batch, Sink


@dataclass(frozen=True)
class JdbcSink(Sink):
    """Replaces the rows of a batch in a database table."""

    spark: SparkSession
    target: JdbcTable

    @property
    def table(self) -> str:
        return self.target.table

    @property
    def title(self) -> str:
        return f"'jdbc' at '{self.table}'"

    @property
    def place(self) -> str | None:
        return f"jdbc table {self.table}"

    def beside(self, batch: Batch) -> str:
        """Returns the staging table that the executors write."""
        return f"{self.table}_anabranch_{batch.query_id[:8] or 'batch'}"

    def write(self, frame: DataFrame, batch: Batch) -> None:
        rows = (
            frame
            if self.target.batch_column is None
            else frame.withColumn(self.target.batch_column, f.lit(batch.number))
        )
        # Creates the target if it does not exist.
        self._writer(rows.limit(0), self.table).mode("append").save()
        self._writer(rows, self.beside(batch)).mode("overwrite").option("truncate", "true").save()
        expected = frame.count()
        with self._connection() as (connection, _):
            found = _number(connection, f"SELECT COUNT(*) FROM {self.beside(batch)}")
            if found != expected:
                raise SinkError(
                    f"sink {self.title} has {found} rows of batch {batch.number} instead of {expected}",
                    detail="a task ran twice, or another query writes into its table",
                    hint="restart the query, which writes the batch again",
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
        if self.target.batch_column is not None:
            return f"{quote(self.target.batch_column)} = {batch.number}"
        # NULL is a valid key: groups may have it.
        pairs = [(f"beside.{quote(key)}", f"{self.table}.{quote(key)}") for key in self.target.keys]
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
        return frame.write.format("jdbc").options(**{**self.target.options, "dbtable": table})

    @contextmanager
    def _connection(self) -> Iterator[tuple[Any, Any]]:
        """Opens a connection in the driver as Spark does; yields it with the database's function that quotes names."""
        connection, quote = jdbc_connection(self.spark, {**self.target.options, "dbtable": self.table})
        try:
            yield connection, quote
        finally:
            # Rolls back an uncommitted transaction.
            if not connection.getAutoCommit():
                connection.rollback()
            connection.close()


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
