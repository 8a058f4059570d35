"""Converts rows of streams and results of queries to rows of relations: with event times, filtered, and coded.

Invariant: a row gets the same codes from every reader. Limit: all rows of one call are converted at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import Classes, RelationBatch
from anabranch.engine.evaluate.codes import combine_codes, key_codes
from anabranch.engine.evaluate.expression import evaluate
from anabranch.engine.evaluate.routed import routed_mask
from anabranch.engine.evaluate.rows import present_codes
from anabranch.engine.kernels import Int64Array
from anabranch.engine.state.columns import to_numpy
from anabranch.lang.expr import Column
from anabranch.lang.schema import is_fixed_width, is_text
from anabranch.plan.classes import ClassColumn
from anabranch.plan.classify import assign_routes, hours
from anabranch.plan.join_graph import Relation
from anabranch.plan.partitioning import row_code
from anabranch.run.wire import WireLayout


def relation_batch(relation: Relation, layout: WireLayout, table: pa.Table) -> RelationBatch:
    """Returns rows of a stream as rows of one of its relations; drops rows without an event time."""
    timed = table.column(relation.event_time)
    if timed.null_count:
        table = table.filter(timed.is_valid())
        timed = table.column(relation.event_time)
    columns = {name: flat(table.column(name)) for name in table.column_names}
    return coded(relation, layout, columns, times(flat(timed)))


def result_batch(relation: Relation, layout: WireLayout, results: pa.RecordBatch, times: Int64Array) -> RelationBatch:
    """Returns results of a query as rows of a relation that reads them.

    The event times are those of the relation's event-time column if it has one, else `times`.
    """
    if relation.event_time:
        times = to_numpy(results.column(relation.event_time).cast(pa.int64()))
    return coded(relation, layout, dict(zip(results.schema.names, results.columns, strict=True)), times)


def coded(relation: Relation, layout: WireLayout, columns: Mapping[str, pa.Array], times: Int64Array) -> RelationBatch:
    """Returns rows as rows of a relation: filtered, with codes, and with only the payload columns."""
    values = dict(columns)

    def read(column: Column) -> pa.Array:
        return values[column.name]

    if relation.filter is not None:
        kept = routed_mask(relation.filter, values, len(times))
        if not kept.all():
            accepted = pa.array(kept)
            values = {name: each.filter(accepted) for name, each in values.items()}
            times = times[kept]
    keys = {key.name: key for key in layout.queries.graph.keys_of([relation.name])}
    codes, is_counted = {}, relation.window.is_counted
    for code in layout.codes[relation.name]:
        if code == row_code(relation.name):
            codes[code] = _row_codes(times, values)
        else:
            key = keys[code]
            members = evaluate(key.expression(relation.name), read, len(times))
            # In a count window, rows without a key count too, and all get the same code.
            codes[code] = present_codes(members, key.type) if is_counted else key_codes(members, key.type)
    payload = pa.RecordBatch.from_pydict({field.name: values[field.name].cast(field.type) for field in relation.schema})
    classes = {each.digest: _classes(each, values[each.column], len(times)) for each in relation.classes}
    return RelationBatch(times, codes, payload, classes)


def _classes(wanted: ClassColumn, values: pa.Array, rows: int) -> Classes:
    """Returns the class of each value."""
    column = values.cast(wanted.type) if wanted.column == wanted.attribute else hours(values)
    return assign_routes(wanted.tree, {wanted.attribute: column}, rows).astype(np.int8)


def _row_codes(times: Any, columns: Mapping[str, pa.Array]) -> Any:
    """Returns a hash of each row that spreads rows evenly and is the same in every reader."""
    ordered = (columns[name] for name in sorted(columns))
    hashed = (values for values in ordered if is_fixed_width(values.type) or is_text(values.type))
    return combine_codes([times, *(key_codes(values, values.type) for values in hashed)])


def times(column: pa.Array) -> Int64Array:
    """Returns the event times that are not NULL, in microseconds."""
    micros = column.drop_null() if column.null_count else column
    unit = pa.timestamp("us", column.type.tz)
    return to_numpy(micros if micros.type == unit else micros.cast(unit))


def flat(column: pa.ChunkedArray) -> pa.Array:
    """Returns the column as one array; times in nanoseconds, as pandas writes them, are truncated to microseconds."""
    # `combine_chunks` would copy a single chunk.
    values = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
        return values.cast(pa.timestamp("us", values.type.tz), safe=False)
    return values
