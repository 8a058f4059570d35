"""Lookup tables of a running query on Spark: the driver reads them and copies them into the checkpoint.

A table is read at the start. A refreshed table is read again before a batch when its interval has passed or its version
value has changed. Unchanged rows make no new version.

Invariant: a repeated batch uses the versions of its first attempt. Limit: each version passes through the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from anabranch.errors import CatalogError
from anabranch.lang.schema import Schema
from anabranch.plan.query_set import QuerySet
from anabranch.run.store import Store
from anabranch.run.tables import TableVersions, read_columns
from anabranch.spark.arrow_schema import from_spark, to_spark
from anabranch.spark.failure import named_source

Rows: TypeAlias = DataFrame | pa.Table
"""The rows of a table, in Spark or in the driver."""


def schema_of(rows: Rows, name: str) -> Schema:
    """Returns the columns of a table, with the types that Spark gives them."""
    return from_spark(to_spark(Schema.from_arrow(rows.schema)) if isinstance(rows, pa.Table) else rows.schema, name)


@dataclass(frozen=True)
class TableSource:
    """The source of a table's rows, and when they are read again."""

    read: Callable[[], Rows]
    schema: Schema
    refresh: int | None = None
    """Microseconds of processing time after which the table is read again."""
    version: Callable[[], object] | None = None
    """Returns another value when the table has changed; called before every batch."""

    @property
    def is_read_again(self) -> bool:
        return self.refresh is not None or self.version is not None


class SparkTables:
    """The tables of one run."""

    def __init__(self, queries: QuerySet, store: Store, sources: Mapping[str, TableSource]) -> None:
        self._graph = queries.graph
        self._versions = TableVersions(queries, store)
        self._sources = {name: sources[name] for name in queries.graph.tables}
        self._read_at: dict[str, int] = {}
        self._observed: dict[str, object] = {}
        """The last value of each source's `version`, by table."""
        for name in self._sources:
            self._read(name)

    def small(self) -> frozenset[str]:
        """Returns the tables that every slot holds in full."""
        return self._versions.small()

    def read(self, version: str) -> pa.Table:
        """Returns the rows of a version."""
        return self._versions.read(version)

    def in_force(self, batch: int) -> dict[str, str]:
        """Returns the versions that a batch uses; reads tables again when due."""
        for name, source in self._sources.items():
            due = source.refresh is not None and _now() - self._read_at[name] >= source.refresh
            if due or (source.version is not None and source.version() != self._observed[name]):
                self._read(name)
        return self._versions.in_force(batch)

    def _read(self, name: str) -> None:
        source = self._sources[name]
        self._read_at[name] = _now()
        if source.version is not None:
            self._observed[name] = source.version()
        self._versions.offer(name, self._rows(name, source))

    def _rows(self, name: str, source: TableSource) -> pa.Table:
        wanted = read_columns(self._graph, name)
        types = {field.name: field.type for field in source.schema if field.name in wanted}
        with named_source(name, kind="table"):
            whole = source.read()
            found = {field.name: field.type for field in schema_of(whole, name)}
            if changed := [column for column in wanted if found.get(column) != types[column]]:
                raise CatalogError(
                    f"column '{changed[0]}' of table '{name}' is gone, or of another type than when it was registered",
                    hint="keep the columns of the table, or start a new query",
                )
            if isinstance(whole, pa.Table):
                rows = whole.select(wanted)
            else:
                rows = whole.select(*(f"`{column}`" for column in wanted)).toArrow()
        return rows.cast(pa.schema([(column, types[column]) for column in wanted]))


def _now() -> int:
    return time.time_ns() // 1000
