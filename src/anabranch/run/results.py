"""The layout in which the results of a set of queries are sent together, from the step of a slot to the sinks.

The results of a query that runs alone are sent unchanged. Those of named queries are sent in one frame with a struct
column for each query that has a sink: a row has a value in the column of its query and NULL in all others, and a batch
has rows of one query only.

A grouped query yields parts. Several slots may find parts of one group (`merging`); these are merged before they become
results.

Invariant: `split` returns the rows that `wrap` received, by query.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import pyarrow as pa

from anabranch.engine.evaluate.codes import combine_codes, key_codes
from anabranch.engine.kernels import Int64Array
from anabranch.engine.operators.group_by import finish, parts_schema
from anabranch.engine.state.columns import to_numpy
from anabranch.lang.schema import Field, Schema, is_float
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query import Grouping
from anabranch.plan.query_set import ALONE, Member, QuerySet

_MANY = 1 << 13
"""Blocks of up to this many results share their NULLs."""


@dataclass(frozen=True)
class ResultLayout:
    """The position of each query's results in the common frame."""

    queries: QuerySet

    @cached_property
    def schema(self) -> Schema:
        """The columns of the finished results."""
        if not self.queries.is_named:
            return self.queries.member(ALONE).query.schema
        return Schema(tuple(Field(each.name, _struct(each.query.schema), True) for each in self.queries.delivered))

    @cached_property
    def _arrow(self) -> pa.Schema:
        return self.schema.to_arrow()

    def wrap(self, query: str, results: pa.RecordBatch) -> pa.RecordBatch:
        """Converts results of a query to the common frame."""
        if query == ALONE:
            return results
        value = pa.StructArray.from_arrays(results.columns, fields=list(self._arrow.field(query).type))
        columns = [value if f.name == query else _nulls(f.type, len(value)) for f in self._arrow]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow)

    def join(self, results: Mapping[str, list[pa.RecordBatch]]) -> pa.Table:
        """Returns the finished results of all queries that have a sink, as one table."""
        wrapped = [
            self.wrap(each.name, batch) for each in self.queries.delivered for batch in results.get(each.name, ())
        ]
        return pa.Table.from_batches(wrapped, self._arrow)

    def split(self, results: pa.Table) -> dict[str, pa.Table]:
        """Returns the finished results of each query that has a sink."""
        if not self.queries.is_named:
            return {ALONE: results}
        return {each.name: _own(results.column(each.name)) for each in self.queries.delivered}


@dataclass(frozen=True)
class Results:
    """Finished results of a query, and their event times if other queries read them."""

    rows: pa.RecordBatch
    times: Int64Array | None = None


def results_of(member: Member, batch: pa.RecordBatch, *, is_merged: bool = False) -> Results:
    """Returns the results in a batch that the step of a slot yields; for a grouped query, it must hold whole groups.

    If the batch is merged, it has one part of each group.
    """
    if member.query.grouping is not None:
        answers, times = finish(member.query, pa.Table.from_batches([batch]), is_merged=is_merged)
        return Results(_in_one(answers, member.query.schema.to_arrow()), times)
    if not member.feeds:
        return Results(batch)
    rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=member.query.schema.to_arrow())
    return Results(rows, to_numpy(batch.column(batch.num_columns - 1)))


def merging(queries: QuerySet, partitioning: Partitioning) -> frozenset[str]:
    """Returns the grouped queries whose groups may have parts in several slots."""
    if len(partitioning.working) == 1:
        return frozenset()
    return frozenset(each.name for each in queries.grouped if not _is_found_in_one_slot(each, partitioning))


def finished(
    queries: QuerySet, partitioning: Partitioning, found: Iterable[tuple[str, pa.RecordBatch]]
) -> dict[str, list[Results]]:
    """Returns the results of each query, from the output of the slots in one stage; merges groups where needed."""
    merged = merging(queries, partitioning)
    parts: dict[str, list[pa.RecordBatch]] = {}
    results: dict[str, list[Results]] = {}
    for name, batch in found:
        if name in merged:
            parts.setdefault(name, []).append(batch)
        else:
            results.setdefault(name, []).append(results_of(queries.member(name), batch, is_merged=True))
    for name, several in parts.items():
        member = queries.member(name)
        results[name] = [results_of(member, parts_table(member, several))]
    return results


def _is_found_in_one_slot(member: Member, partitioning: Partitioning) -> bool:
    """Returns True when the key of a group determines the one slot that finds its combinations.

    It does not while groups move on parallel tracks: the old slot finds the combinations that have an old row, the new
    slot the others. Nor does it for a heavy key, whose combinations are spread over slots by their rows.
    """
    grouping, graph = member.query.grouping, member.query.graph
    assert grouping is not None
    if partitioning.leaving is not None:
        return False
    if any(not partitioning.dimension(heavy.code).relations.isdisjoint(graph.names) for heavy in partitioning.heavy):
        return False
    keys = {key.name: key for key in graph.keys}
    for dimension in partitioning.dimensions:
        if dimension.share == 1 or dimension.relations.isdisjoint(graph.names):
            continue
        key = keys.get(dimension.code)
        if key is None or is_float(key.type):
            return False
        # A full join emits rows of its side without a row of the core: every slot finds some of their NULL group.
        present = dimension.relations - member.query.may_be_absent
        own = [expression for name, expression in key.members if name in present]
        if not any(expression in grouping.keys for expression in own):
            return False
    return True


def group_codes(grouping: Grouping, parts: pa.RecordBatch) -> Int64Array:
    """Returns a hash of the boundary and the key of each part, which is the same for all parts of a group."""
    columns = [to_numpy(parts.column(0))]
    for position, key in enumerate(grouping.keys):
        values = parts.column(1 + position)
        codes = key_codes(values, key.type)
        columns.append(
            np.where(values.is_null().to_numpy(zero_copy_only=False), 0, codes) if values.null_count else codes
        )
    codes_of_groups: Int64Array = combine_codes(columns)
    return codes_of_groups


def parts_table(member: Member, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenates parts of a grouped query into one batch."""
    assert member.query.grouping is not None
    schema = parts_schema(member.query.grouping)
    return _in_one(pa.Table.from_batches(parts, schema), schema)


def _in_one(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    columns = [column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _struct(schema: Schema) -> pa.DataType:
    """Returns the struct type of a query's rows; fields are nullable, because rows of other queries have no value."""
    return pa.struct([pa.field(field.name, field.type) for field in schema])


def _nulls(kind: pa.DataType, count: int) -> pa.Array:
    """Returns this many NULLs, from a cache: a block of results has that many for each of the other queries."""
    return _many_nulls(kind).slice(0, count) if count <= _MANY else pa.nulls(count, kind)


@lru_cache(maxsize=256)
def _many_nulls(kind: pa.DataType) -> pa.Array:
    return pa.nulls(_MANY, kind)


def _own(column: pa.ChunkedArray) -> pa.Table:
    kept = column.filter(column.is_valid()).combine_chunks()
    return pa.Table.from_arrays(kept.flatten(), schema=pa.schema(list(column.type)))
