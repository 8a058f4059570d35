"""An Iceberg table, written without Spark's connector: the library `pyiceberg` adds the files that the workers wrote.

The record of a query (its last batch and the number of its files) is in the properties of the table, which outlive
expired snapshots; each snapshot also names its query and batch. The library reads statistics and partition values from
the Parquet footers.

Limit: the table has identity partitions only. The library retries a commit that conflicts with another writer as the
table's properties `commit.retry.*` say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from anabranch.errors import SinkError, SpecError, installation
from anabranch.lang.schema import Schema
from anabranch.run.sink_settings import IcebergTarget
from anabranch.spark.sinks.folder import BatchFolder
from anabranch.spark.sinks.lake import Committed, named_table
from anabranch.spark.sinks.partitions import Partitions
from anabranch.spark.sinks.sink import Batch

try:
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
    from pyiceberg.io.pyarrow import pyarrow_to_schema
    from pyiceberg.transforms import IdentityTransform

    is_installed = True
except ImportError:
    is_installed = False


class IcebergLakeTable:
    """A table of an Iceberg catalog; validated on construction, created by `open`."""

    def __init__(self, target: IcebergTarget, schema: Schema, partition_by: tuple[str, ...]) -> None:
        if not is_installed:
            raise SpecError("format 'iceberg' needs the package 'pyiceberg'", hint=installation("iceberg"))
        self._target = target
        self._schema = schema
        names = tuple(field.name for name in partition_by if (field := schema.find(name)) is not None)
        self.partitions = Partitions(names, are_stored=True)
        with named_table(self.title):
            self._catalog: Catalog = load_catalog(target.catalog, **target.properties)
            try:
                self._table: Any = self._catalog.load_table(target.table)
            except (NoSuchTableError, NoSuchNamespaceError):
                self._table = None
            if self._table is not None:
                self._require_layout()

    @property
    def title(self) -> str:
        return f"'iceberg' at '{self._target.table}'"

    @property
    def place(self) -> str:
        return f"iceberg table {self._target.catalog}:{self._target.table}"

    def open(self) -> str:
        if self._table is None:
            with named_table(self.title):
                self._catalog.create_namespace_if_not_exists(self._target.table.rpartition(".")[0])
                self._table = self._catalog.create_table_if_not_exists(self._target.table, _nullable(self._schema))
                if self.partitions.columns and not self._table.spec().fields and not self._table.snapshots():
                    with self._table.update_spec() as spec:
                        for name in self.partitions.columns:
                            spec.add_identity(name)
                self._require_layout()
        properties: dict[str, str] = self._table.properties
        return properties.get("write.data.path") or f"{self._table.location().rstrip('/')}/data"

    def committed(self, query_id: str) -> Committed | None:
        self._table.refresh()
        properties = self._table.properties
        batch = properties.get(_batches(query_id))
        return None if batch is None else Committed(int(batch), int(properties[_files(query_id)]))

    def files_of(self, prefix: str) -> list[str]:
        paths = [task.file.file_path for task in self._table.scan().plan_files()]
        return [path for path in paths if path.rpartition("/")[2].startswith(prefix)]

    def commit(self, batch: Batch, folder: BatchFolder, added: Sequence[str], removed: Sequence[str]) -> None:
        record = {_batches(batch.query_id): str(batch.number), _files(batch.query_id): str(len(added))}
        snapshot = {"anabranch.query-id": batch.query_id, "anabranch.batch": str(batch.number)}
        with self._table.transaction() as transaction:
            transaction.set_properties(record)
            if removed:
                gone = set(removed)
                with transaction.update_snapshot(snapshot_properties=snapshot).overwrite() as rewrite:
                    for task in self._table.scan().plan_files():
                        if task.file.file_path in gone:
                            rewrite.delete_data_file(task.file)
            if added:
                transaction.add_files(
                    [folder.uri(name) for name in added], snapshot_properties=snapshot, check_duplicate_files=False
                )

    def _require_layout(self) -> None:
        """Refuses a table that these results do not fit."""
        name, schema = self._target.table, self._table.schema()
        found, selected = sorted(field.name for field in schema.fields), sorted(self._schema.names)
        if found != selected:
            raise SinkError(
                f"Iceberg table '{name}' has other columns than the query",
                detail=f"the table has {', '.join(found)}; the query selects {', '.join(selected)}",
                hint="name another table, or give the selected columns the names of the table's columns",
            )
        ours = pyarrow_to_schema(_nullable(self._schema), name_mapping=schema.name_mapping)
        for column in self._schema:
            wanted, given = schema.find_field(column.name), ours.find_field(column.name)
            if wanted.field_type != given.field_type or (wanted.required and column.nullable):
                raise SinkError(
                    f"column '{column.name}' of Iceberg table '{name}' has another type than in the query",
                    detail=f"it is {wanted.field_type}{' NOT NULL' if wanted.required else ''} in the table and "
                    f"{given.field_type} in the query",
                    hint="cast it in the SELECT list, or name another table",
                )
        fields = self._table.spec().fields
        ours_listed = ", ".join(self.partitions.columns) or "none"
        columns = tuple(schema.find_column_name(field.source_id) for field in fields)
        is_plain = all(isinstance(field.transform, IdentityTransform) for field in fields)
        if columns != self.partitions.columns or not is_plain:
            raise SinkError(
                f"Iceberg table '{name}' has other partitions",
                detail=f"the table has {self._table.spec()}; the query has {ours_listed}",
                hint="partition by the columns of the table, without transforms, or name another table",
            )


def _nullable(schema: Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _batches(query_id: str) -> str:
    return f"anabranch.{query_id}.batch"


def _files(query_id: str) -> str:
    return f"anabranch.{query_id}.files"
