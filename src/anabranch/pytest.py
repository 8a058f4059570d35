"""Tests of continuous queries: rows in, rows out, in this process, without Spark.

The fixture `continuous_query` of pytest (`pytest_plugin`) compiles a query, or one of a spec file, and runs it on the
in-process host, with the engine that runs on Spark. Each call of `batch` is one micro-batch.

Invariant: results equal those on Spark over the same rows, because they depend on neither plan, slots nor batches.
Limit: sources, sinks and the Spark expressions of a spec (`select`, `where`) are not part of the test.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from anabranch.cql import compile_query, declared_results
from anabranch.errors import BatchError, SpecError
from anabranch.lang.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.lang.schema import Schema
from anabranch.lang.window import parse_duration
from anabranch.plan.mesh import parse_plan
from anabranch.plan.physical import mjoin
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, Plans, alone
from anabranch.run.clock import Clocks
from anabranch.run.ingest import columns_to_read
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from anabranch.spec.file import load

Row = Mapping[str, Any] | Sequence[Any]
"""A row by column names, or in the order of the columns."""
_END = 1 << 61
"""An event time, in microseconds, after all windows of a test."""


@dataclass(frozen=True)
class Stream:
    """A stream of a test: its columns as in a spec, its event time, and how far rows may lag."""

    schema: str
    event_time: str = "ts"
    watermark: str = "0 seconds"


@dataclass(frozen=True)
class Table:
    """A table of a test, with its rows."""

    schema: str
    rows: Sequence[Row] = ()


class ContinuousQueryFactory(Protocol):
    """The fixture `continuous_query`."""

    def __call__(self, text: str, *, plan: str | None = None, **sources: Stream | Table) -> RunningQuery:
        """Compiles a query over the given streams and tables, and starts it."""

    def from_spec(
        self,
        path: str | Path,
        query: str = ALONE,
        *,
        plan: str | None = None,
        tables: Mapping[str, Sequence[Row]] | None = None,
    ) -> RunningQuery:
        """Starts the query of a spec file, or the named one of its `queries`, with rows for its tables."""


class RunningQuery:
    """A query of a test; it lives as long as the test."""

    def __init__(self, query: Query, catalog: Catalog, tables: Mapping[str, Sequence[Row]], plan: str | None) -> None:
        queries = alone(query)
        plans = {each.name: mjoin(each.query.graph.names) for each in queries.members}
        chosen = Plans(plans if plan is None else {**plans, ALONE: parse_plan(plan)})
        self._schemas = {name: declared.schema for name, declared in catalog.streams.items()}
        given = {name: as_table(name, catalog.tables[name].schema, rows) for name, rows in tables.items()}
        read = {name: given[name] for name in queries.graph.tables if name in given}
        self._host = LocalHost(queries, chosen, tables=read)
        self.query = query

    def batch(self, **rows: Iterable[Row]) -> list[dict[str, Any]]:
        """Takes one micro-batch, rows by stream; returns its results as dictionaries, ordered by their values."""
        if unknown := sorted(set(rows) - self._schemas.keys()):
            raise BatchError(
                f"the test has no stream '{unknown[0]}'", hint=f"its streams are {', '.join(sorted(self._schemas))}"
            )
        tables = {name: as_table(name, self._schemas[name], each) for name, each in rows.items()}
        return self._step({name: table for name, table in tables.items() if name in self._host.queries.streams})

    def end(self) -> list[dict[str, Any]]:
        """Moves event time past all windows; returns the results that waited for it: groups, and unmatched rows."""
        clocks = self._host.round.clocks.streams
        self._host.round.clocks = Clocks({name: replace(clock, floor=_END) for name, clock in clocks.items()})
        return self._step({})

    @property
    def late(self) -> dict[str, int]:
        """The late rows so far, by stream."""
        return dict(self._host.late)

    def _step(self, rows: Mapping[str, pa.Table]) -> list[dict[str, Any]]:
        wanted = columns_to_read(self._host.queries)
        cut = {name: table.select(list(wanted[name])) for name, table in rows.items()}
        results = ResultLayout(self._host.queries).split(self._host.step(cut))[ALONE]
        return sorted(results.to_pylist(), key=lambda row: [(value is not None, str(value)) for value in row.values()])


def as_table(name: str, schema: Schema, rows: Iterable[Row]) -> pa.Table:
    """Returns rows of a test in the columns of a stream or table; a text may stand for a time, a date or a decimal."""
    columns: dict[str, list[Any]] = {field.name: [] for field in schema}
    for row in rows:
        if not isinstance(row, Mapping):
            if len(row) != len(columns):
                raise BatchError(
                    f"a row of '{name}' has {len(row)} values: {row!r}", hint=f"it has the columns {', '.join(columns)}"
                )
            row = dict(zip(columns, row, strict=True))
        if unknown := sorted(set(row) - columns.keys()):
            raise BatchError(
                f"a row of '{name}' has a column '{unknown[0]}'", hint=f"its columns are {', '.join(columns)}"
            )
        for field in schema:
            columns[field.name].append(_value(row.get(field.name), field.type))
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in schema})


def _value(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, str) and pa.types.is_timestamp(kind):
        moment = datetime.datetime.fromisoformat(value)
        return moment if moment.tzinfo is not None or kind.tz is None else moment.replace(tzinfo=datetime.UTC)
    if isinstance(value, str) and not pa.types.is_string(kind):
        return pa.scalar(value).cast(kind).as_py()
    return value


class _Factory:
    def __call__(self, text: str, *, plan: str | None = None, **sources: Stream | Table) -> RunningQuery:
        catalog, rows = Catalog(), {}
        for name, each in sources.items():
            schema = parse_schema(each.schema)
            if isinstance(each, Table):
                catalog.register_table(TableDeclaration(name, schema))
                rows[name] = each.rows
            else:
                disorder = parse_duration(each.watermark)
                catalog.register(StreamDeclaration(name, schema, each.event_time, disorder))
        return RunningQuery(compile_query(text, catalog), catalog, rows, plan)

    def from_spec(
        self,
        path: str | Path,
        query: str = ALONE,
        *,
        plan: str | None = None,
        tables: Mapping[str, Sequence[Row]] | None = None,
    ) -> RunningQuery:
        spec = load(str(path))
        if query not in spec.queries:
            raise SpecError(
                f"'{path}' has no query '{query}'", hint=f"it has {', '.join(spec.queries) or 'one without a name'}"
            )
        catalog = spec.catalog()
        streams = catalog.without_queries()
        for name in spec.in_order():
            each = spec.queries[name]
            compiled = compile_query(each.query, catalog, allow_unbounded=each.allow_unbounded)
            if name == query:
                return RunningQuery(compiled, streams, tables or {}, plan)
            catalog.register(declared_results(name, compiled))
        raise AssertionError(query)


def factory() -> ContinuousQueryFactory:
    """Returns the value of the fixture `continuous_query`, for tests without pytest."""
    return _Factory()
