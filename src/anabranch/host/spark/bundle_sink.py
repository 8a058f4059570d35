"""The sinks of queries that run together: one job computes the results of all, then each sink takes its own.

Results travel in one frame with a column for each query (`Bundle.schema`). Those that go to Parquet files the workers
write themselves and hand nothing on; the frame of the others is kept while their sinks take what is theirs of it.

Law: a sink that fails leaves the batch uncommitted, and the replay replaces what the others have of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from anabranch.host.spark.failure import evaluating
from anabranch.host.spark.parquet_sink import ParquetSink, StagedFile
from anabranch.host.spark.sink import Sink, evaluated


@dataclass(frozen=True)
class BundleSink:
    """The sink of each query, by name."""

    sinks: Mapping[str, Sink]

    def in_workers(
        self, frame: DataFrame, batch_id: int
    ) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None:
        """The function that takes what goes to Parquet files out of a worker's results; None where nothing does."""
        files = {name: sink.staged(frame, batch_id) for name, sink in self._parquet.items()}
        return split_function(files) if files else None

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """Runs the step once, and hands each query's results to its sink."""
        others = {name: sink for name, sink in self.sinks.items() if name not in self._parquet}
        if not others:
            with evaluating(batch_id):
                frame.collect()
            self._publish(frame, batch_id)
            return
        with evaluated(frame, "together", batch_id):
            self._publish(frame, batch_id)
            for name, sink in others.items():
                sink.write(frame.where(f.col(name).isNotNull()).select(f"{name}.*"), batch_id)

    def _publish(self, frame: DataFrame, batch_id: int) -> None:
        for sink in self._parquet.values():
            sink.publish(frame, batch_id)

    @property
    def _parquet(self) -> dict[str, ParquetSink]:
        return {name: sink for name, sink in self.sinks.items() if isinstance(sink, ParquetSink)}


def split_function(
    files: Mapping[str, StagedFile],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that writes the results of some queries to their files and hands on those of the others."""

    def split(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with ExitStack() as stack:
            opened = {name: stack.enter_context(file.open()) for name, file in files.items()}
            for batch in batches:
                # A batch of the engine is of one query.
                name = next(n for n in batch.schema.names if batch.column(n).null_count == 0)
                if name in opened:
                    opened[name].write(pa.RecordBatch.from_struct_array(batch.column(name)))
                else:
                    yield batch

    return split
