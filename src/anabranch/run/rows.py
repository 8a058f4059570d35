"""Rows as the engine takes them: timed, filtered and coded.

Rows of a stream (`run.ingest`), and results of a query that another one reads, become rows of a relation here.
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
    """The rows of a stream as rows of one of its relations: filtered, timed, coded, only the payload kept."""
    timed = table.column(relation.event_time)
    if timed.null_count:
        table = table.filter(timed.is_valid())
        timed = table.column(relation.event_time)
    columns = {name: flat(table.column(name)) for name in table.column_names}
    return coded(relation, layout, columns, times(flat(timed)))


def result_batch(relation: Relation, layout: WireLayout, results: pa.RecordBatch, times: Int64Array) -> RelationBatch:
    """Results of a query, and their event times, as rows of a relation that reads them.

    A relation that names a column has the event times of that column.
    """
    if relation.event_time:
        times = to_numpy(results.column(relation.event_time).cast(pa.int64()))
    return coded(relation, layout, dict(zip(results.schema.names, results.columns, strict=True)), times)


def coded(relation: Relation, layout: WireLayout, columns: Mapping[str, pa.Array], times: Int64Array) -> RelationBatch:
    """Rows with their event times as rows of a relation: filtered, coded, only the payload kept."""
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
            # Rows that are counted but have no key go one way.
            codes[code] = present_codes(members, key.type) if is_counted else key_codes(members, key.type)
    payload = pa.RecordBatch.from_pydict({field.name: values[field.name].cast(field.type) for field in relation.schema})
    classes = {each.digest: _classes(each, values[each.column], len(times)) for each in relation.classes}
    return RelationBatch(times, codes, payload, classes)


def _classes(wanted: ClassColumn, values: pa.Array, rows: int) -> Classes:
    """The class of each value."""
    column = values.cast(wanted.type) if wanted.column == wanted.attribute else hours(values)
    return assign_routes(wanted.tree, {wanted.attribute: column}, rows).astype(np.int8)


def _row_codes(times: Any, columns: Mapping[str, pa.Array]) -> Any:
    """A hash of each row that spreads rows evenly; every reader of the row gives the same hash."""
    ordered = (columns[name] for name in sorted(columns))
    hashed = (values for values in ordered if is_fixed_width(values.type) or is_text(values.type))
    return combine_codes([times, *(key_codes(values, values.type) for values in hashed)])


def times(column: pa.Array) -> Int64Array:
    """The event times that are there."""
    micros = column.drop_null() if column.null_count else column
    unit = pa.timestamp("us", column.type.tz)
    return to_numpy(micros if micros.type == unit else micros.cast(unit))


def flat(column: pa.ChunkedArray) -> pa.Array:
    """The column in one piece; times that count in nanoseconds, as pandas makes them, cut to microseconds."""
    # What is in one piece already would be copied.
    values = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
        return values.cast(pa.timestamp("us", values.type.tz), safe=False)
    return values
