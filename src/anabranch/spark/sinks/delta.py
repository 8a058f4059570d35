"""A Delta table, written without Spark's connector: the library `deltalake` commits the files that the workers wrote.

A commit has two application transactions: the query with the number of the batch, and the query with its number of
files. Statistics of integers, dates and timestamps come from the Parquet footers.

Limit: tables whose columns have constraints, generated values or mapped names are refused. The library retries a commit
that conflicts with another writer, and requests that object storage refuses, a limited number of times.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from anabranch.errors import SinkError
from anabranch.lang.schema import Schema, is_integer, type_name
from anabranch.run.files.delta import delta_uri
from anabranch.spark.delta import open_delta
from anabranch.spark.sinks.folder import BatchFolder, open_place
from anabranch.spark.sinks.lake import Committed, named_table
from anabranch.spark.sinks.partitions import Partitions, partition_values
from anabranch.spark.sinks.sink import Batch

try:
    import deltalake
    from deltalake.transaction import AddAction, RemoveAction
except ImportError:
    pass  # `open_delta` raises the error


class DeltaLakeTable:
    """A Delta table at a path; validated on construction, created by `open`."""

    def __init__(self, path: str, schema: Schema, partition_by: tuple[str, ...]) -> None:
        self._path = path
        self._schema = schema
        names = tuple(field.name for name in partition_by if (field := schema.find(name)) is not None)
        self.partitions = Partitions(names)
        open_place(path)
        with named_table(self.title):
            self._table = open_delta(path)
        if self._table is not None:
            self._require_layout()
        elif BatchFolder(path, "parquet").has_files():
            raise SinkError(
                f"folder '{path}' has files and is not a Delta table",
                hint="write to another folder, or convert it: deltalake.convert_to_deltalake",
            )

    @property
    def title(self) -> str:
        return f"'delta' at '{self._path}'"

    @property
    def place(self) -> str:
        return BatchFolder(self._path, "parquet").place

    def open(self) -> str:
        if self._table is None:
            columns = pa.schema([pa.field(field.name, field.type) for field in self._schema])
            with named_table(self.title):
                self._table = deltalake.DeltaTable.create(
                    delta_uri(self._path), columns, mode="ignore", partition_by=list(self.partitions.columns)
                )
            self._require_layout()
        return self._path

    def committed(self, query_id: str) -> Committed | None:
        self._table.update_incremental()
        batch = self._table.transaction_version(_batches(query_id))
        return None if batch is None else Committed(batch, self._table.transaction_version(_files(query_id)))

    def files_of(self, prefix: str) -> list[str]:
        paths = pa.table(self._table.get_add_actions()).column("path").to_pylist()
        return [path for path in paths if path.rpartition("/")[2].startswith(prefix)]

    def commit(self, batch: Batch, folder: BatchFolder, added: Sequence[str], removed: Sequence[str]) -> None:
        now = time.time_ns() // 1_000_000
        actions: list[Any] = [RemoveAction(path, True, now) for path in removed]
        actions += [self._add(folder, name, now) for name in added]
        record = [
            deltalake.Transaction(_batches(batch.query_id), batch.number),
            deltalake.Transaction(_files(batch.query_id), len(added)),
        ]
        self._table.create_write_transaction(
            actions,
            "append",
            self._table.schema(),
            list(self.partitions.columns),
            commit_properties=deltalake.CommitProperties(app_transactions=record),
        )

    def _add(self, folder: BatchFolder, name: str, now: int) -> Any:
        footer = parquet.read_metadata(folder.path(name), filesystem=folder.files)
        size = folder.files.get_file_info(folder.path(name)).size
        return AddAction(name, size, partition_values(footer.metadata), now, True, _statistics(footer, self._schema))

    def _require_layout(self) -> None:
        """Refuses a table that these results do not fit."""
        table = self._table
        wanted = {field.name: field.type for field in pa.schema(table.schema())}
        selected = {field.name: field.type for field in self._schema}
        if wanted.keys() != selected.keys():
            raise SinkError(
                f"Delta table '{self._path}' has other columns than the query",
                detail=f"the table has {', '.join(wanted)}; the query selects {', '.join(selected)}",
                hint="write to another path, or give the selected columns the names of the table's columns",
            )
        for name, kind in selected.items():
            if deltalake.Schema.from_arrow(pa.schema([(name, kind)])) != deltalake.Schema.from_arrow(
                pa.schema([(name, wanted[name])])
            ):
                raise SinkError(
                    f"column '{name}' of Delta table '{self._path}' has another type than in the query",
                    detail=f"it is {type_name(wanted[name])} in the table and {type_name(kind)} in the query",
                    hint="cast it in the SELECT list, or write to another path",
                )
        found = tuple(table.metadata().partition_columns)
        if found != self.partitions.columns:
            raise SinkError(
                f"Delta table '{self._path}' has other partition columns",
                detail=f"the table has {_listed(found)}; the query has {_listed(self.partitions.columns)}",
                hint="use the partition columns of the table, or write to another path",
            )
        self._require_plain_columns()

    def _require_plain_columns(self) -> None:
        """Refuses rules on columns that the workers, which write the files, do not apply."""
        metadata = self._table.metadata()
        is_mapped = metadata.configuration.get("delta.columnMapping.mode", "none") != "none"
        rules = [key for key in metadata.configuration if key.startswith("delta.constraints.")]
        required = {field.name for field in self._schema if not field.nullable}
        for field in self._table.schema().fields:
            rules += [f"{field.name}: {key}" for key in field.metadata if key.startswith("delta.") and not is_mapped]
            if not field.nullable and field.name not in required:
                rules.append(f"{field.name}: NOT NULL")
        if is_mapped or rules:
            raise SinkError(
                f"Delta table '{self._path}' has rules on its columns that this sink does not apply",
                detail="its columns are mapped to other names" if is_mapped else f"found {', '.join(sorted(rules))}",
                hint="write to another path",
            )


def _batches(query_id: str) -> str:
    return f"anabranch-{query_id}"


def _files(query_id: str) -> str:
    return f"anabranch-{query_id}-files"


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(columns) or "none"


def _statistics(footer: parquet.FileMetaData, schema: Schema) -> str:
    """Returns the statistics of a file as the Delta protocol writes them."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    kinds = {field.name: field.type for field in schema}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for column in range(footer.num_columns if groups else 0):
        name = groups[0].column(column).path_in_schema
        found = [group.column(column).statistics for group in groups]
        if name not in kinds or not all(each is not None and each.has_min_max for each in found):
            continue
        if is_integer(kinds[name]) or pa.types.is_date32(kinds[name]) or pa.types.is_timestamp(kinds[name]):
            least[name] = _value(min(each.min for each in found))
            most[name] = _value(max(each.max for each in found))
    return json.dumps({"numRecords": footer.num_rows, "minValues": least, "maxValues": most, "nullCount": {}})


def _value(value: Any) -> Any:
    if isinstance(value, int):
        return value
    text = value.isoformat()
    return text.replace("+00:00", "Z")
