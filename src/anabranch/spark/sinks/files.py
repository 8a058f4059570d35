"""Files of any format that Spark writes.

Invariant: a repeated batch replaces its own files and no others. Limit: a reader may see a part of the files of a batch
while it is published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from anabranch.spark.sinks.folder import BatchFolder
from anabranch.spark.sinks.sink import Batch, Sink
from anabranch.spark.sinks.spark_writer import partitioned

# The staging folder is hidden until the job is done, so tasks may commit directly into it without a success marker.
_COMMIT_ONCE = {
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


@dataclass
class FileSink(Sink):
    """A folder of files that reads back as a plain table of the SELECT columns.

    Spark writes a batch into a hidden folder. The files are then moved into place under names with the batch and the
    query, so that a replay replaces its own files and no others.
    """

    format: str
    path: str
    options: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.folder = BatchFolder(self.path, self.format, self.options)
        self.folder.refuse_logs()

    @property
    def title(self) -> str:
        return f"'{self.format}' at '{self.path}'"

    @property
    def place(self) -> str:
        return self.folder.place

    @property
    def is_single_pass(self) -> bool:
        return True

    def stage(self, batch: Batch) -> None:
        self.folder.stage(batch.number, batch.query_id)

    def write(self, frame: DataFrame, batch: Batch) -> None:
        writer = frame.write.format(self.format).mode("overwrite").options(**_COMMIT_ONCE).options(**self.options)
        partitioned(writer, self.partition_by).save(self.folder.staging)

    def publish(self, batch: Batch) -> None:
        self.folder.publish(batch.number, batch.query_id)
