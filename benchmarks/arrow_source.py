"""A source that only Spark can read: a Python data source of Arrow batches, one file of a stream per micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

FORMAT = "arrow-files"


class ArrowFiles(DataSource):
    """The data source registered with Spark."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> ArrowFileReader:
        return ArrowFileReader(Path(self.options["path"]), schema.fieldNames())


class ArrowFileReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is the number of files so far, in the order of their names."""

    def __init__(self, folder: Path, columns: list[str]) -> None:
        self._folder, self._columns = folder, columns

    def initialOffset(self) -> dict[str, Any]:
        return {"files": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxFiles(1)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"files": min(start["files"] + 1, len(self._files()))}

    def prepareForTriggerAvailableNow(self) -> None:
        """All files are there from the start."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(str(path)) for path in self._files()[start["files"] : end["files"]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from pq.read_table(partition.value, columns=self._columns).to_batches()

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.parquet"))
