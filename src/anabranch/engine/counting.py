"""Count windows: the order in which rows are counted, and when later rows push a row out.

Rows are counted in order of event time. Rows with the same time are ordered by their values, column by column, NULL
first. Rows that agree in all columns are interchangeable, so the order depends only on the rows. It is final for rows
that the watermark has passed, and only those are counted (`execution.WatermarkBuffer`).

Invariant: in each part (rows that agree in the columns of PARTITION BY), deadlines ascend in this order. So the live
rows are the last ones of the part, and the rows before them can be dropped without changing any deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.batch import RelationBatch
from anabranch.engine.evaluate.codes import combine_codes, equal_values
from anabranch.engine.evaluate.rows import present_codes
from anabranch.engine.kernels import BoolArray, Int64Array
from anabranch.engine.operators.aggregates import order_of
from anabranch.engine.state.columns import validity
from anabranch.errors import HostError
from anabranch.lang.schema import Schema, is_float, is_nested
from anabranch.lang.window import CountWindow, SessionWindow
from anabranch.plan.join_graph import Relation


def in_counting_order(batch: RelationBatch) -> RelationBatch:
    """Sorts rows into counting order."""
    times = batch.times
    if not bool((times[1:] >= times[:-1]).all()):
        batch = batch.take(np.argsort(times, kind="stable"))
        times = batch.times
    same = times[1:] == times[:-1]
    if not same.any() or not batch.payload.num_columns:
        return batch
    tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    order = np.arange(len(batch))
    order[tied] = tied[_by_values(batch.take(tied))]
    return batch.take(order)


def _by_values(rows: RelationBatch) -> Int64Array:
    """Returns the positions of rows in order of time and values."""
    columns = {"time": pa.array(rows.times)}
    for number, values in enumerate(rows.payload):
        if values.null_count:
            columns[f"valid{number}"] = values.is_valid()
        columns[f"value{number}"] = _sortable(values)
    keys = [(name, "ascending") for name in columns]
    return np.asarray(pc.sort_indices(pa.table(columns), sort_keys=keys).to_numpy(), dtype=np.int64)


def _sortable(values: pa.Array) -> pa.Array:
    if is_float(values.type):
        return order_of(values)
    # Arrow does not sort nested values. Only rows with equal times get here.
    return (
        pa.array([None if value is None else repr(value) for value in values.to_pylist()], pa.string())
        if is_nested(values.type)
        else values
    )


def part_codes(window: CountWindow | SessionWindow, schema: Schema, rows: pa.RecordBatch) -> Int64Array | None:
    """Returns one code per row, equal where the PARTITION BY columns are; None if all rows are counted together."""
    codes = []
    for name in window.partition:
        values, field = rows.column(name), schema.find(name)
        codes.append(present_codes(values, values.type))
        if field is None or field.nullable:
            codes.append(validity(values).astype(np.int64))
    if not codes:
        return None
    return codes[0] if len(codes) == 1 else combine_codes(codes)


@dataclass(frozen=True)
class Parts:
    """The parts that rows belong to: their codes, and the row positions in order of code."""

    codes: Int64Array
    order: Int64Array


def parts_of(window: CountWindow | SessionWindow, schema: Schema, rows: pa.RecordBatch) -> Parts | None:
    """Groups rows by PARTITION BY; None if all rows are counted together."""
    codes = part_codes(window, schema, rows)
    return None if codes is None else Parts(codes, np.argsort(codes, kind="stable"))


def count_deadlines(window: CountWindow | SessionWindow, times: Int64Array, parts: Parts | None) -> Int64Array:
    """Returns the deadlines of rows in counting order, as far as these rows alone determine them."""
    if isinstance(window, SessionWindow):
        return _session_deadlines(window.gap, times, parts)
    until: Int64Array = times + window.reach
    n = window.rows
    if len(times) <= n:
        return until
    if parts is None:
        until[:-n] = np.minimum(until[:-n], times[n:] - 1)
        return until
    here, later = parts.order[:-n], parts.order[n:]
    closed = parts.codes[here] == parts.codes[later]
    here, later = here[closed], later[closed]
    until[here] = np.minimum(until[here], times[later] - 1)
    return until


def _session_deadlines(gap: int, times: Int64Array, parts: Parts | None) -> Int64Array:
    """Returns for each row the end of its session, as far as these rows alone determine it."""
    until: Int64Array = times + gap
    if not len(times):
        return until
    order = np.arange(len(times)) if parts is None else parts.order
    ordered = times[order]
    begins = np.append(True, ordered[1:] - ordered[:-1] > gap)
    if parts is not None:
        begins |= np.append(True, parts.codes[order][1:] != parts.codes[order][:-1])
    lasts = np.append(np.flatnonzero(begins)[1:], len(times)) - 1
    until[order] = (ordered[lasts] + gap)[np.cumsum(begins) - 1]
    return until


def refuse_equal_codes(
    relation: Relation, names: Sequence[str], one: Callable[[str], pa.Array], other: Callable[[str], pa.Array]
) -> None:
    """Raises an error if rows with equal codes, paired in `one` and `other`, have different values."""
    for name in names:
        left, right = one(name), other(name)
        if not (equal_values(left, right) | (validity(left) + validity(right) == 0)).all():
            raise HostError(
                f"two different values of '{', '.join(names)}' of '{relation.name}' have the same code",
                detail="rows of different parts of a window would be counted together",
                hint="partition by a bigint, or by other columns",
            )


def still_counted(relation: Relation, batch: RelationBatch, low: int) -> RelationBatch:
    """Returns the rows of a relation with a count window that may still be needed, given all rows that a slot has.

    A row whose deadline is before `low` is not needed. Rows that fail the relation's filter are kept as long as the
    others, because they are counted.
    """
    window = relation.window
    assert isinstance(window, CountWindow | SessionWindow)
    rows = in_counting_order(batch)
    alive: BoolArray = count_deadlines(window, rows.times, parts_of(window, relation.schema, rows.payload)) >= low
    return rows if alive.all() else rows.take(np.flatnonzero(alive))
