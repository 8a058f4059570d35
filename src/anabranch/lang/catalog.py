"""The streams and tables that a query may name: their columns and, for streams, event time and allowed disorder."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from anabranch.errors import CatalogError
from anabranch.lang.expr import OwnFunction
from anabranch.lang.schema import Schema, type_name


@dataclass(frozen=True)
class StreamDeclaration:
    """The declaration of one stream; `disorder` is in microseconds of event time."""

    name: str
    schema: Schema
    event_time: str
    disorder: int = 0
    query: object | None = None
    """The compiled query that produces these results; None for an external stream.

    Results carry their event time outside their columns, and `event_time` is empty.
    """

    def __post_init__(self) -> None:
        if self.query is not None:
            return
        column = self.schema.find(self.event_time)
        if column is None:
            raise CatalogError(
                f"stream '{self.name}' has no column '{self.event_time}' to take the event time from",
                detail=f"its columns are {', '.join(self.schema.names) or 'none'}",
                hint="name a timestamp column as the event time of the stream",
            )
        if not pa.types.is_timestamp(column.type):
            raise CatalogError(
                f"event time '{self.event_time}' of stream '{self.name}' is of type {type_name(column.type)}",
                hint="cast it to timestamp before the stream is registered",
            )
        if self.disorder < 0:
            raise CatalogError(
                f"stream '{self.name}' has a negative allowed disorder", hint="use 0 for an ordered stream"
            )


@dataclass(frozen=True)
class TableDeclaration:
    """The declaration of one table: rows without event time."""

    name: str
    schema: Schema


@dataclass
class Catalog:
    """Streams, tables and user-defined functions by case-insensitive name; streams and tables share one namespace."""

    streams: dict[str, StreamDeclaration] = field(default_factory=dict)
    functions: dict[str, OwnFunction] = field(default_factory=dict)
    """The user-defined functions, by lower-case name."""
    tables: dict[str, TableDeclaration] = field(default_factory=dict)

    def register(self, stream: StreamDeclaration) -> None:
        """Adds the stream, or replaces the stream or table of that name."""
        self.tables.pop(stream.name.lower(), None)
        self.streams[stream.name.lower()] = stream

    def register_table(self, table: TableDeclaration) -> None:
        """Adds the table, or replaces the stream or table of that name."""
        self.streams.pop(table.name.lower(), None)
        self.tables[table.name.lower()] = table

    def table(self, name: str) -> TableDeclaration | None:
        return self.tables.get(name.lower())

    def copy(self) -> Catalog:
        """Returns a copy that later registrations do not change."""
        return Catalog(dict(self.streams), dict(self.functions), dict(self.tables))

    def without_queries(self) -> Catalog:
        """Returns a copy without the results of queries."""
        streams = {name: each for name, each in self.streams.items() if each.query is None}
        return Catalog(streams, dict(self.functions), dict(self.tables))

    def find(self, name: str) -> StreamDeclaration | None:
        return self.streams.get(name.lower())

    def define(self, function: OwnFunction) -> None:
        """Adds the function, or replaces the one of that name."""
        self.functions[function.name.lower()] = function
