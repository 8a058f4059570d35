"""Results in the driver's memory, as Arrow and as a temporary view of the session; for notebooks and tests.

Limit: all results stay in the driver's memory.
"""

from __future__ import annotations

from threading import Lock

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from anabranch.lang.schema import Schema
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.sinks.sink import Batch, Sink


class MemorySink(Sink):
    """All results on the driver.

    The view is a union of parts whose sizes at least halve from one to the next, so each batch is sent to Spark a
    logarithmic number of times. A restart begins empty: the driver's memory is not durable. An existing view of the
    same name is replaced only by `begin` or the first results, so a refused query does not replace it.
    """

    def __init__(self, name: str, spark: SparkSession, schema: Schema) -> None:
        self.name = name
        self._spark = spark
        self._schema = schema.to_arrow()
        self._spark_schema = to_spark(schema)
        self._batches: dict[int, pa.Table] = {}
        self._written = self._schema.empty_table()
        self._parts: list[tuple[pa.Table, DataFrame]] = []
        self._showing = Lock()

    @property
    def title(self) -> str:
        return f"'memory' at '{self.name}'"

    @property
    def is_lasting(self) -> bool:
        return False

    @property
    def is_single_pass(self) -> bool:
        return True

    def begin(self) -> None:
        """Creates the view; it is empty unless a batch has already arrived."""
        with self._showing:
            if not self._parts:
                self._spark.createDataFrame([], self._spark_schema).createOrReplaceTempView(self.name)

    @property
    def takes_tables(self) -> bool:
        return True

    def write(self, frame: DataFrame, batch: Batch) -> None:
        self.take(frame.toArrow(), batch)

    def take(self, rows: pa.Table, batch: Batch) -> None:
        self._written = rows.cast(self._schema)

    def publish(self, batch: Batch) -> None:
        rows, is_replay = self._written, batch.number in self._batches
        self._batches[batch.number] = rows
        if is_replay:
            self._parts = []
            self._append(self.table())
        elif rows.num_rows:
            self._append(rows)

    def table(self) -> pa.Table:
        """Returns all rows so far, in batch order."""
        batches = dict(self._batches)
        return pa.concat_tables([self._schema.empty_table(), *(batches[key] for key in sorted(batches))])

    def _append(self, rows: pa.Table) -> None:
        while self._parts and self._parts[-1][0].num_rows <= 2 * rows.num_rows:
            rows = pa.concat_tables([self._parts.pop()[0], rows])
        with self._showing:
            self._parts.append((rows, self._spark.createDataFrame(rows, schema=self._spark_schema)))
            union = self._parts[0][1]
            for _, part in self._parts[1:]:
                union = union.unionAll(part)
            union.createOrReplaceTempView(self.name)
