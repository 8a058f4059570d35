"""GROUP BY at slide boundaries, as mergeable parts.

A combination counts at every boundary B (a multiple of the slide) with newest <= B <= deadline. Each block of new
combinations is first reduced by (first boundary, last boundary, keys), then spread over its boundaries and kept as
parts per boundary. When the watermark passes a boundary its parts are reduced once more and leave. Parts of several
slots merge the same way; `finish` turns merged parts into answers. AVG travels as a sum and a count, the sum of
integers as a decimal (Arrow's sums wrap silently), the least or greatest float as its place in SQL's order (Arrow
passes over NaN, which SQL takes for the greatest number).

The pending parts are derived: they can be recomputed from the live base rows, which a grouped query therefore keeps
until the watermark has passed every boundary they can count at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.evaluate import evaluate, evaluate_mask
from anabranch.engine.kernels import Int64Array
from anabranch.engine.state.arena import Arena
from anabranch.errors import ExpressionError
from anabranch.expr import AggregateCall, Column
from anabranch.plan.logical import BOUNDARY
from anabranch.plan.query import Grouping, Query
from anabranch.schema import TIMESTAMP, is_float, is_integer

ColumnReader = Callable[[Column], pa.Array]
_MERGE_AT = 8
_WHOLE_SUM = pa.decimal128(38, 0)
_MAGNITUDE = np.int64(2**63 - 1)
_MERGED_BY = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}


class GroupState:
    """Parts of the answers at boundaries that the watermark has not passed yet."""

    def __init__(self, arena: Arena, grouping: Grouping) -> None:
        self.arena = arena
        self.grouping = grouping
        self.pending: dict[int, list[pa.Table]] = {}
        self.passed: int | None = None
        """The last boundary number that has been answered."""
        self.written = 0
        self._files: list[str] = []

    # --- life ---------------------------------------------------------------------------------------------------------

    def layout(self) -> dict[str, Any]:
        """Keeps the pending parts in the arena and says where."""
        for file in self._files:
            self.arena.release(file)
        self._files = []
        parts = [part for several in self.pending.values() for part in several]
        if parts:
            file = f"groups.{self.written}"
            self.written += 1
            batch = pa.concat_tables(parts).combine_chunks().to_batches()[0]
            self.arena.keep_batch(file, batch)
            self._files.append(file)
        return {"passed": self.passed, "written": self.written, "files": self._files}

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self.passed, self.written, self._files = layout["passed"], layout["written"], list(layout["files"])
        for file in self._files:
            self._keep(pa.Table.from_batches([self.arena.open_batch(file)]))

    @property
    def rows(self) -> int:
        return sum(part.num_rows for several in self.pending.values() for part in several)

    @property
    def bytes(self) -> int:
        return sum(int(part.nbytes) for several in self.pending.values() for part in several)

    # --- work ---------------------------------------------------------------------------------------------------------

    def add(self, newest: Int64Array, deadline: Int64Array, read: ColumnReader) -> None:
        """Counts new combinations at their boundaries."""
        slide = self.grouping.slide
        first = -(-newest // slide)
        last = deadline // slide
        if self.passed is not None:
            first = np.maximum(first, self.passed + 1)
        if not (first <= last).any():
            return
        table = _raw_parts(self.grouping, read, len(newest))
        table = table.append_column("first", pa.array(first)).append_column("last", pa.array(last))
        table = table.filter(pa.array(first <= last))
        parts = _reduce(self.grouping, table, ["first", "last"])
        first, last = parts.column("first").to_numpy(), parts.column("last").to_numpy()
        counts = last - first + 1
        spread = np.repeat(np.arange(parts.num_rows), counts)
        boundary = first[spread] + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        spread_parts = parts.drop_columns(["first", "last"]).take(pa.array(spread))
        self._keep(spread_parts.append_column("boundary", pa.array(boundary)))

    def pass_watermark(self, watermark: int) -> pa.Table:
        """The parts of all boundaries strictly below the watermark, one row per boundary and group."""
        last = -(-watermark // self.grouping.slide) - 1
        due = sorted(boundary for boundary in self.pending if boundary <= last)
        parts = [part for boundary in due for part in self.pending.pop(boundary)]
        self.passed = last if self.passed is None else max(self.passed, last)
        if not parts:
            return self.empty_parts()
        return _reduce(self.grouping, pa.concat_tables(parts), ["boundary"]).select(self.empty_parts().column_names)

    def empty_parts(self) -> pa.Table:
        return parts_schema(self.grouping).empty_table()

    def _keep(self, parts: pa.Table) -> None:
        parts = parts.select(parts_schema(self.grouping).names)
        order = pc.sort_indices(parts.column("boundary"))
        parts = parts.take(order)
        numbers, starts = np.unique(parts.column("boundary").to_numpy(), return_index=True)
        stops = [*starts[1:], parts.num_rows]
        for number, start, stop in zip(numbers, starts, stops, strict=True):
            several = self.pending.setdefault(int(number), [])
            several.append(parts.slice(int(start), int(stop - start)))
            if len(several) >= _MERGE_AT:
                merged = _reduce(self.grouping, pa.concat_tables(several), ["boundary"])
                self.pending[int(number)] = [merged.select(parts.column_names)]


def parts_schema(grouping: Grouping) -> pa.Schema:
    """The columns that travel between slots: boundary number, keys, and the parts of each aggregate."""
    fields = [pa.field("boundary", pa.int64())]
    fields += [pa.field(f"key{i}", key.type) for i, key in enumerate(grouping.keys)]
    fields += [pa.field(name, kind) for name, _, kind in _parts(grouping)]
    return pa.schema(fields)


def finish(query: Query, parts: pa.Table) -> pa.Table:
    """The answer rows of merged parts: one per boundary and group that passes HAVING."""
    grouping = query.grouping
    assert grouping is not None
    merged = _reduce(grouping, parts, ["boundary"])
    columns: dict[str, pa.Array] = {
        BOUNDARY.name: pc.multiply(_flat(merged, "boundary"), grouping.slide).cast(pa.timestamp("us")).cast(TIMESTAMP)
    }
    columns |= {f"key{i}": _flat(merged, f"key{i}") for i in range(len(grouping.keys))}
    for i, aggregate in enumerate(grouping.aggregates):
        if aggregate.function == "avg":
            count = _flat(merged, f"part{i}.count")
            total = _flat(merged, f"part{i}.sum")
            columns[f"aggregate{i}"] = pc.divide(total, pc.if_else(pc.equal(count, 0), None, count).cast(pa.float64()))
        else:
            columns[f"aggregate{i}"] = _final(aggregate, _flat(merged, f"part{i}.{aggregate.function}"))

    def read(column: Column) -> pa.Array:
        return columns[column.name]

    answers = [evaluate(output.expression, read, merged.num_rows) for output in query.outputs]
    table = pa.table(answers, names=list(query.schema.names))
    if grouping.having is not None:
        table = table.filter(pa.array(evaluate_mask(grouping.having, read, merged.num_rows)))
    return table


def _parts(grouping: Grouping) -> list[tuple[str, str, pa.DataType]]:
    """Name, reducing function and type of every part of every aggregate."""
    parts = []
    for i, aggregate in enumerate(grouping.aggregates):
        match aggregate.function:
            case "avg":
                parts += [(f"part{i}.sum", "sum", pa.float64()), (f"part{i}.count", "count", pa.int64())]
            case "count":
                parts.append((f"part{i}.count", "count", pa.int64()))
            case "sum" if is_integer(aggregate.type):
                parts.append((f"part{i}.sum", "sum", _WHOLE_SUM))
            case "min" | "max" if is_float(aggregate.type):
                parts.append((f"part{i}.{aggregate.function}", aggregate.function, pa.int64()))
            case other:
                parts.append((f"part{i}.{other}", other, aggregate.type))
    return parts


def _final(aggregate: AggregateCall, part: pa.Array) -> pa.Array:
    """The value of an aggregate that travels as one part."""
    if aggregate.function in {"min", "max"} and is_float(aggregate.type):
        return _in_order(part).cast(aggregate.type)
    try:
        return part.cast(aggregate.type)
    except pa.ArrowInvalid as error:
        raise ExpressionError(
            f"aggregate '{aggregate}' is too large for its type",
            detail=str(error),
            hint="cast its argument to decimal or double, or use a shorter window",
        ) from error


def _order_of(floats: pa.Array) -> pa.Array:
    """Integers that compare as SQL compares the floats: NaN is greatest, zero has no sign."""
    bits = _plain(floats).to_numpy(zero_copy_only=False).view(np.int64)
    return pa.array(np.where(bits < 0, bits ^ _MAGNITUDE, bits), mask=floats.is_null().to_numpy(zero_copy_only=False))


def _in_order(places: pa.Array) -> pa.Array:
    """The floats at those places of the order; the inverse of `_order_of`."""
    bits = places.fill_null(0).to_numpy(zero_copy_only=False)
    floats = np.where(bits < 0, bits ^ _MAGNITUDE, bits).view(np.float64)
    return pa.array(floats, mask=places.is_null().to_numpy(zero_copy_only=False))


def _plain(floats: pa.Array) -> pa.Array:
    """Doubles of which equal ones have equal bits: one NaN, one zero."""
    doubles = floats.cast(pa.float64())
    return pc.if_else(pc.is_nan(doubles), np.nan, pc.add(doubles, 0.0))


def _raw_parts(grouping: Grouping, read: ColumnReader, length: int) -> pa.Table:
    """One part per combination: what each aggregate of a group of one would be."""
    columns = {f"key{i}": _key(evaluate(key, read, length)) for i, key in enumerate(grouping.keys)}
    arguments = [evaluate(a.argument, read, length) if a.argument is not None else None for a in grouping.aggregates]
    for name, function, kind in _parts(grouping):
        argument = arguments[int(name.removeprefix("part").split(".")[0])]
        if function == "count":
            ones = np.ones(length, dtype=np.int64) if argument is None else argument.is_valid().cast(pa.int64())
            columns[name] = pa.array(ones)
        else:
            assert argument is not None
            by_order = function != "sum" and is_float(argument.type)
            columns[name] = _order_of(argument) if by_order else argument.cast(kind)
    return pa.table(columns)


def _key(values: pa.Array) -> pa.Array:
    """The key as it is grouped by."""
    return _plain(values).cast(values.type) if is_float(values.type) else values


def _reduce(grouping: Grouping, table: pa.Table, by: list[str]) -> pa.Table:
    """One row per distinct `by` columns and keys, parts merged; NULL is a key like any other."""
    keys = [*by, *(f"key{i}" for i in range(len(grouping.keys)))]
    parts = _parts(grouping)
    options = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
    calls = [(name, _MERGED_BY[function], options) for name, function, _ in parts]
    reduced = table.group_by(keys, use_threads=False).aggregate(calls)
    renamed = reduced.select(keys + [f"{name}_{_MERGED_BY[function]}" for name, function, _ in parts])
    renamed = renamed.rename_columns(keys + [name for name, _, _ in parts])
    schema = pa.schema([renamed.schema.field(key) for key in keys] + [pa.field(name, kind) for name, _, kind in parts])
    return renamed.cast(schema)


def _flat(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
