"""A table of Spark's catalog, written by Spark.

Invariant: the columns of the table are those of the query. Limit: only tables in a file format replace a repeated
batch; rows are appended to all others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from anabranch.errors import SinkError
from anabranch.lang.schema import Schema
from anabranch.run.formats import FILE_FORMATS, TYPED_FORMATS
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.sinks.files import FileSink
from anabranch.spark.sinks.sink import Batch, Sink
from anabranch.spark.sinks.spark_writer import appending, partitioned


class TableSink(Sink):
    """A table of Spark's catalog, created at the first batch if it does not exist.

    For a table in a file format, files are replaced per batch, as in `FileSink`. For any other table, rows are
    appended, as in `WriterSink`. An existing table keeps its own partitioning.
    """

    def __init__(
        self,
        name: str,
        spark: SparkSession,
        schema: Schema,
        *,
        format: str | None = None,
        options: Mapping[str, str] | None = None,
        partition_by: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self._spark = spark
        self._schema = to_spark(schema)
        self._format = format
        self._options = dict(options or {})
        self._partition_by = partition_by
        self._columns: tuple[str, ...] = ()
        self._files: FileSink | None = None

    @property
    def title(self) -> str:
        return f"'table' at '{self.name}'"

    @property
    def is_single_pass(self) -> bool:
        return self._files is not None

    def stage(self, batch: Batch) -> None:
        if not self._columns:
            self._open()
        if self._files is not None:
            self._files.stage(batch)

    def write(self, frame: DataFrame, batch: Batch) -> None:
        ordered = frame.select(*(f"`{column}`" for column in self._columns))
        if self._files is not None:
            self._files.write(ordered, batch)
            return
        writer = appending(ordered, self._format or "", batch).options(**self._options)
        partitioned(writer, self._partition_by).saveAsTable(self.name)

    def publish(self, batch: Batch) -> None:
        if self._files is None:
            return
        self._files.publish(batch)
        if self._partition_by:
            self._spark.catalog.recoverPartitions(self.name)
        self._spark.catalog.refreshTable(self.name)

    def _open(self) -> None:
        """Creates the table if needed, and reads its columns, partitioning and format."""
        catalog = self._spark.catalog
        if not catalog.tableExists(self.name):
            writer = self._spark.createDataFrame([], self._schema).write.options(**self._options)
            writer = writer if self._format is None else writer.format(self._format)
            partitioned(writer, self._partition_by).saveAsTable(self.name)
        columns = catalog.listColumns(self.name)
        found, selected = (
            sorted(name.lower() for name in names) for names in ([c.name for c in columns], self._schema.names)
        )
        if found != selected:
            raise SinkError(
                f"table '{self.name}' has other columns than the query",
                detail=f"the table has {', '.join(found)}; the query selects {', '.join(selected)}",
                hint="name another table, or give the selected columns the names of the table's columns",
            )
        described = self._spark.sql(f"DESCRIBE TABLE EXTENDED {self.name}").collect()
        facts = {row["col_name"]: row["data_type"] for row in described}
        self._partition_by = tuple(column.name for column in columns if column.isPartition)
        self._format = str(facts.get("Provider", "")).lower() or None
        if self._format in FILE_FORMATS and "Location" in facts:
            self._require_types()
            options = {key: value for key, value in self._file_options().items() if key.lower() != "path"}
            self._files = FileSink(self._format, facts["Location"], options, self._partition_by)
        self._columns = tuple(column.name for column in columns)

    def _require_types(self) -> None:
        """Refuses types that the table could not read back, for formats whose files store their types."""
        wanted = {field.name.lower(): field.dataType.simpleString() for field in self._spark.table(self.name).schema}
        for column in self._schema if self._format in TYPED_FORMATS else ():
            selected, expected = column.dataType.simpleString(), wanted[column.name.lower()]
            if selected != expected:
                raise SinkError(
                    f"column '{column.name}' of table '{self.name}' has another type than in the query",
                    detail=f"it is {expected} in the table and {selected} in the query",
                    hint=f"select CAST(… AS {expected.upper()}) AS {column.name}, or name another table",
                )

    def _file_options(self) -> dict[str, str]:
        """Returns the write options of the table's files, such as their header; the user's options take precedence."""
        described = self._spark.sql(f"DESCRIBE TABLE EXTENDED {self.name} AS JSON").collect()[0][0]
        stored: dict[str, str] = json.loads(described).get("storage_properties", {})
        given = {key.lower() for key in self._options}
        return {key: value for key, value in stored.items() if key.lower() not in given} | self._options
