"""How the results of a set of queries travel together, from the step of a slot to the sinks.

The results of a query that runs alone travel as they are. Those of named queries travel in one frame with a struct
column for each query: a row has a value in the column of its query and NULL in all others, and a batch has rows of one
query only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from anabranch.engine.operators.group_by import parts_schema
from anabranch.plan.query_set import ALONE, QuerySet
from anabranch.schema import Field, Schema


@dataclass(frozen=True)
class ResultLayout:
    """Where the results of each query of a set stand in the common frame."""

    queries: QuerySet

    @cached_property
    def schema(self) -> Schema:
        """The columns of the finished results."""
        if not self.queries.is_named:
            return self.queries.members[0].query.schema
        return Schema(tuple(Field(each.name, _struct(each.query.schema), True) for each in self.queries.members))

    @cached_property
    def parts(self) -> pa.Schema:
        """The columns of the results of a step; a grouped query gives partial aggregates."""
        grouped = self.queries.grouped
        return self._arrow if grouped is None or grouped.grouping is None else parts_schema(grouped.grouping)

    @cached_property
    def _arrow(self) -> pa.Schema:
        return self.schema.to_arrow()

    def wrap(self, query: str, results: pa.RecordBatch) -> pa.RecordBatch:
        """Results of a query as they travel."""
        if query == ALONE:
            return results
        value = pa.StructArray.from_arrays(results.columns, fields=list(self._arrow.field(query).type))
        columns = [value if f.name == query else pa.nulls(len(value), f.type) for f in self._arrow]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow)

    def split(self, results: pa.Table) -> dict[str, pa.Table]:
        """The finished results of each query."""
        if not self.queries.is_named:
            return {ALONE: results}
        return {name: _own(results.column(name)) for name in self.queries.names}


def unwrapped(batch: pa.RecordBatch) -> tuple[str, pa.RecordBatch]:
    """The query of a batch that named queries sent, and its results; the inverse of `ResultLayout.wrap`."""
    query = next(name for name in batch.schema.names if batch.column(name).null_count == 0)
    return query, pa.RecordBatch.from_struct_array(batch.column(query))


def _struct(schema: Schema) -> pa.DataType:
    """Rows as values; every field may be NULL, because a row of another query has no value."""
    return pa.struct([pa.field(field.name, field.type) for field in schema])


def _own(column: pa.ChunkedArray) -> pa.Table:
    kept = column.filter(column.is_valid()).combine_chunks()
    return pa.Table.from_arrays(kept.flatten(), schema=pa.schema(list(column.type)))
