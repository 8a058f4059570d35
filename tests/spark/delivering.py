"""Lets the workers of a test write the results of a frame, as a stage of a batch does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from anabranch.plan.query_set import ALONE
from anabranch.spark.sinks.workers import WorkerWriter


def arrow_frame(spark: SparkSession, rows: Sequence[tuple[int | None, str]]) -> DataFrame:
    """A frame of rows (k, v) that the JVM holds; rows in a list would be unpickled by a Python worker in every job."""
    table = pa.table(
        {"k": pa.array([k for k, _ in rows], pa.int64()), "v": pa.array([v for _, v in rows], pa.string())}
    )
    return spark.createDataFrame(table)


def results(frame: DataFrame) -> Callable[[Mapping[str, WorkerWriter]], DataFrame]:
    """The frame without what the workers have written; of named queries it has a struct column for each."""
    schema = frame.schema

    def compute(writers: Mapping[str, WorkerWriter]) -> DataFrame:
        if not writers:
            return frame

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            with ExitStack() as stack:
                part = f"{context.partitionId():05d}"
                opened = {name: stack.enter_context(writer.open(part)) for name, writer in writers.items()}
                for batch in batches:
                    if ALONE in opened:
                        opened[ALONE].write(batch)
                        continue
                    for name in batch.schema.names:
                        own = batch.filter(batch.column(name).is_valid())
                        if name in opened and own.num_rows:
                            opened[name].write(pa.RecordBatch.from_struct_array(own.column(name)))
                    rest = [name for name in batch.schema.names if name not in opened]
                    for name in rest:
                        yield batch.filter(batch.column(name).is_valid())

        return frame.mapInArrow(write, schema)

    return compute
