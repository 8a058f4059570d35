"""Any other Spark batch writer, in append mode: JDBC, noop and formats from packages.

The writer appends, so the batch interrupted by a crash may appear twice, unless the target replaces rows by a key. A
Delta table of Spark's catalog drops a replayed batch by its transaction identifier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.readwriter import DataFrameWriter

from anabranch.spark.sinks.sink import Batch, Sink


@dataclass(frozen=True)
class WriterSink(Sink):
    """A Spark batch writer.

    Its frame is cached: a writer may read it twice, or compute several partitions in one task (JDBC with
    `numPartitions`), but a slot is identified by its task.
    """

    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        path = self.options.get("path")
        return f"'{self.format}' at '{path}'" if path else f"'{self.format}'"

    @property
    def place(self) -> str | None:
        return self.options.get("path", "").rstrip("/") or None

    @property
    def is_lasting(self) -> bool:
        return self.format.lower() != "noop"

    def write(self, frame: DataFrame, batch: Batch) -> None:
        writer = appending(frame, self.format, batch).options(**self.options)
        partitioned(writer, self.partition_by).save()


def appending(frame: DataFrame, format: str, batch: Batch) -> DataFrameWriter:
    """Returns a writer in append mode; for Delta with the transaction identifier of the batch."""
    writer = frame.write.mode("append")
    if format:
        writer = writer.format(format)
    if format == "delta":
        writer = writer.option("txnAppId", batch.query_id or "anabranch").option("txnVersion", str(batch.number))
    return writer


def partitioned(writer: DataFrameWriter, columns: tuple[str, ...]) -> DataFrameWriter:
    """Returns the writer with partition columns, if any."""
    return writer.partitionBy(*columns) if columns else writer
