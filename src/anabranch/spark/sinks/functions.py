"""Sinks that pass each batch to a function on the driver: the user's own, or one that prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from anabranch.lang.schema import Schema
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.sinks.sink import Batch, Sink


@dataclass(frozen=True)
class ForeachBatchSink(Sink):
    """The user's function of (frame, batch number); it must be idempotent."""

    function: Callable[[DataFrame, int], None]

    @property
    def title(self) -> str:
        return "'foreachBatch'"

    @property
    def is_lasting(self) -> bool:
        return False

    def write(self, frame: DataFrame, batch: Batch) -> None:
        self.function(frame, batch.number)


@dataclass(frozen=True)
class ConsoleSink(Sink):
    """Prints the first rows of each batch on standard output."""

    spark: SparkSession
    rows: int = 20
    truncate: bool = True

    @property
    def title(self) -> str:
        return "'console'"

    @property
    def is_lasting(self) -> bool:
        return False

    @property
    def takes_tables(self) -> bool:
        return True

    def take(self, rows: pa.Table, batch: Batch) -> None:
        shown = rows.slice(0, self.rows + 1)
        self.write(self.spark.createDataFrame(shown, to_spark(Schema.from_arrow(shown.schema))), batch)

    def write(self, frame: DataFrame, batch: Batch) -> None:
        print(f"-------- batch {batch.number} --------")  # noqa: T201
        frame.show(self.rows, self.truncate)
