"""GROUP BY at slide boundaries, as mergeable parts.

A combination counts at every boundary B (a multiple of the slide) with newest <= B <= deadline. The group state reduces
each block of new combinations by (first boundary, last boundary, keys), expands the result over its boundaries and
keeps it as parts per boundary. Parts that count at very many boundaries, or forever, are kept once and expanded only up
to the watermark. When the watermark passes a boundary, its parts are reduced once more and returned. Parts of several
slots merge in the same way; `finish` turns merged parts into answers.

A part has a form that Arrow can merge exactly. AVG is a sum and a count. A sum of integers is a decimal, because
Arrow's sums of integers wrap silently. A sum of long decimals is the sums of their two words, which would wrap as well.
The minimum or maximum float is its position in SQL's order, because Arrow ignores NaN, SQL's greatest number. The
minimum or maximum interval is an integer, because Arrow has no such aggregate of intervals.

Invariant: pending parts can be recomputed from the live base rows. A grouped query therefore keeps a base row until the
watermark has passed every boundary at which the row can count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.evaluate.codes import decimal_words
from anabranch.engine.evaluate.decimals import from_unscaled, quotients, unscaled
from anabranch.engine.evaluate.expression import evaluate, evaluate_mask
from anabranch.engine.kernels import Int64Array
from anabranch.engine.operators.aggregates import in_order, is_special, order_of, plain, raw, value_of
from anabranch.engine.operators.aggregates import merged as merged_special
from anabranch.engine.state.arena import Arena
from anabranch.errors import ExpressionError
from anabranch.lang.expr import AggregateCall, Column, Literal
from anabranch.lang.schema import TIMESTAMP, is_decimal, is_float
from anabranch.lang.window import FOREVER
from anabranch.plan.logical import BOUNDARY, ROW_NUMBER
from anabranch.plan.pregrouping import Part, parts_of
from anabranch.plan.query import Grouping, Query

ColumnReader = Callable[[Column], pa.Array]
_MERGE_AT = 8
LONG = 1 << 10
"""Parts that count at more boundaries than this are not expanded over all of them at once."""
_MERGED_BY = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}
_REPEATED = frozenset({"count", "sum", "squares"})
"""The parts in which merged rows count several times."""
_ROW = "row number"
NO_LIMITS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Carried:
    """For each row of a merged input: the number of rows it represents, and its parts of the aggregates."""

    weight: Int64Array
    parts: Mapping[str, pa.Array]


class GroupState:
    """Parts of the answers at boundaries that the watermark has not passed yet."""

    def __init__(self, arena: Arena, grouping: Grouping) -> None:
        self.arena = arena
        self.grouping = grouping
        self.pending: dict[int, list[pa.Table]] = {}
        self.long: pa.Table | None = None
        """Parts that count at many boundaries, each with its first and last boundary not passed yet."""
        self.passed: int | None = None
        """The last answered boundary number."""
        self.written = 0
        self._files: list[str] = []

    # --- life ---------------------------------------------------------------------------------------------------------

    def layout(self) -> dict[str, Any]:
        """Writes the pending parts to the arena and returns where they are."""
        for file in self._files:
            self.arena.release(file)
        self._files = []
        parts = [part for several in self.pending.values() for part in several]
        for kept in (pa.concat_tables(parts) if parts else None, self.long):
            if kept is not None and kept.num_rows:
                file = f"groups.{self.written}"
                self.written += 1
                self.arena.keep_batch(file, kept.combine_chunks().to_batches()[0])
                self._files.append(file)
        return {"passed": self.passed, "written": self.written, "files": self._files}

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self.passed, self.written, self._files = layout["passed"], layout["written"], list(layout["files"])
        for file in self._files:
            parts = pa.Table.from_batches([self.arena.open_batch(file)])
            if "boundary" in parts.column_names:
                self._keep(parts)
            else:
                self.long = parts

    @property
    def rows(self) -> int:
        return sum(part.num_rows for part in self._all())

    @property
    def bytes(self) -> int:
        return sum(int(part.nbytes) for part in self._all())

    def _all(self) -> list[pa.Table]:
        parts = [part for several in self.pending.values() for part in several]
        return parts if self.long is None else [*parts, self.long]

    # --- work ---------------------------------------------------------------------------------------------------------

    def add(
        self, newest: Int64Array, deadline: Int64Array, read: ColumnReader, carried: Sequence[Carried] = ()
    ) -> None:
        """Counts new combinations at their boundaries."""
        first, last = boundaries(newest, deadline, self.grouping)
        # Combinations that never expire get one common end, so that they can be merged.
        last = np.minimum(last, FOREVER // self.grouping.slide)
        if self.passed is not None:
            first = np.maximum(first, self.passed + 1)
        counts = first <= last
        if not counts.any():
            return
        keys = {f"key{i}": _key(evaluate(key, read, len(newest))) for i, key in enumerate(self.grouping.keys)}
        table = pa.table(keys | raw_parts(self.grouping, _parts(self.grouping), read, len(newest), carried))
        table = table.append_column("first", pa.array(first)).append_column("last", pa.array(last))
        if not counts.all():
            table = table.filter(pa.array(counts))
        if self.grouping.ranked is None:
            # A grouping by one column less is faster.
            by = ["first"] if (first == last).all() else ["first", "last"]
            parts = self._reduced(table, *by)
            if len(by) == 1:
                parts = parts.add_column(1, "last", parts.column("first"))
        else:
            # Ranked rows are sorted once, when they are answered or pending blocks are merged.
            parts = table.select(["first", "last", *parts_schema(self.grouping).names[1:]])
        first, last = _ends(parts)
        is_long = last - first >= LONG
        if is_long.any():
            added = parts.filter(pa.array(is_long))
            self.long = self._reduced(
                pa.concat_tables([added.slice(0, 0) if self.long is None else self.long, added]), "first", "last"
            )
            parts, last = parts.filter(pa.array(~is_long)), last[~is_long]
        if parts.num_rows:
            self._keep(_spread(parts, last))

    def pass_watermark(self, watermark: int) -> pa.Table:
        """Removes and returns the parts of all boundaries below the watermark, one row per boundary and group."""
        last = self.grouping.last_answered(watermark)
        if self.long is not None:
            self._pass_long(last)
        due = sorted(boundary for boundary in self.pending if boundary <= last)
        parts = [part for boundary in due for part in self.pending.pop(boundary)]
        self.passed = last if self.passed is None else max(self.passed, last)
        if not parts:
            return self.empty_parts()
        return self._reduced(pa.concat_tables(parts), "boundary").select(self.empty_parts().column_names)

    def _pass_long(self, passed: int) -> None:
        """Expands parts that count at many boundaries, up to boundary `passed`."""
        assert self.long is not None
        first, last = _ends(self.long)
        reached = first <= passed
        if reached.any():
            self._keep(_spread(self.long.filter(pa.array(reached)), np.minimum(last, passed)[reached]))
            rest = self.long.set_column(0, "first", pa.array(np.maximum(first, passed + 1)))
            rest = self._reduced(rest.filter(pa.array(last > passed)), "first", "last")
            self.long = rest if rest.num_rows else None

    def empty_parts(self) -> pa.Table:
        return parts_schema(self.grouping).empty_table()

    def _keep(self, parts: pa.Table) -> None:
        parts = parts.select(parts_schema(self.grouping).names)
        if self.grouping.gap:
            # Sessions arrive when the watermark has passed them, each with a boundary of its own.
            self.pending.setdefault(int(pc.min(parts.column("boundary")).as_py()), []).append(parts)
            return
        boundaries = parts.column("boundary").to_numpy()
        if (boundaries[1:] < boundaries[:-1]).any():
            parts = parts.take(pc.sort_indices(parts.column("boundary")))
            boundaries = parts.column("boundary").to_numpy()
        numbers, starts = np.unique(boundaries, return_index=True)
        stops = [*starts[1:], parts.num_rows]
        for number, start, stop in zip(numbers, starts, stops, strict=True):
            several = self.pending.setdefault(int(number), [])
            several.append(parts.slice(int(start), int(stop - start)))
            if len(several) >= _MERGE_AT:
                merged = self._reduced(pa.concat_tables(several), "boundary")
                self.pending[int(number)] = [merged.select(parts.column_names)]

    def _reduced(self, table: pa.Table, *by: str) -> pa.Table:
        return reduced(table, [*by, *_key_names(self.grouping)], _parts(self.grouping), limits_of(self.grouping))


def _ends(parts: pa.Table) -> tuple[Int64Array, Int64Array]:
    """The first and the last boundary of each part."""
    return parts.column("first").to_numpy(), parts.column("last").to_numpy()


def _spread(parts: pa.Table, last: Int64Array) -> pa.Table:
    """Repeats each part at every boundary from its first to the given last one."""
    first, _ = _ends(parts)
    counts = last - first + 1
    if (counts == 1).all():
        return parts.drop_columns(["first", "last"]).append_column("boundary", parts.column("first"))
    rows = np.repeat(np.arange(parts.num_rows), counts)
    boundary = first[rows] + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return parts.drop_columns(["first", "last"]).take(pa.array(rows)).append_column("boundary", pa.array(boundary))


def boundaries(newest: Int64Array, deadline: Int64Array, grouping: Grouping) -> tuple[Int64Array, Int64Array]:
    """The first and the last boundary number at which each combination counts; first > last if it counts at none."""
    return grouping.first_boundary(newest), grouping.last_boundary(deadline)


def parts_schema(grouping: Grouping) -> pa.Schema:
    """The columns exchanged between slots: boundary number, keys, and the parts of each aggregate."""
    fields = [pa.field("boundary", pa.int64())]
    fields += [pa.field(f"key{i}", key.type) for i, key in enumerate(grouping.keys)]
    fields += [pa.field(part.name, part.type) for part in _parts(grouping)]
    return pa.schema(fields)


def finish(query: Query, parts: pa.Table, *, is_merged: bool = False) -> tuple[pa.Table, Int64Array]:
    """Turns parts into answer rows, one per boundary and group that passes HAVING, and their event times.

    If parts are merged, each group of a boundary has one.
    """
    grouping = query.grouping
    assert grouping is not None
    merged = parts
    if not is_merged:
        merged = reduced(parts, ["boundary", *_key_names(grouping)], _parts(grouping), limits_of(grouping))
    columns: dict[str, pa.Array] = {
        BOUNDARY.name: pc.multiply(_flat(merged, "boundary"), grouping.slide).cast(pa.timestamp("us")).cast(TIMESTAMP)
    }
    columns |= {f"key{i}": _flat(merged, f"key{i}") for i in range(len(grouping.keys))}
    for i, aggregate in enumerate(grouping.aggregates):
        own = {part.name.partition(".")[2]: _flat(merged, part.name) for part in parts_of(i, aggregate)}
        if aggregate.ranking is not None:
            columns = _ranked(columns, own["items"])
        else:
            columns[f"aggregate{i}"] = _value(aggregate, own)

    def read(column: Column) -> pa.Array:
        return columns[column.name]

    length = len(columns[BOUNDARY.name])
    if grouping.having is not None:
        # Before the outputs, which may fail on groups that HAVING rejects.
        passes = pa.array(evaluate_mask(grouping.having, read, length))
        columns = {name: column.filter(passes) for name, column in columns.items()}
        length = len(columns[BOUNDARY.name])
    answers = [evaluate(output.expression, read, length) for output in query.outputs]
    times: Int64Array = columns[BOUNDARY.name].cast(pa.int64()).to_numpy(zero_copy_only=False)
    return pa.table(answers, names=list(query.schema.names)), times


def _ranked(columns: Mapping[str, pa.Array], lists: pa.Array) -> dict[str, pa.Array]:
    """Returns one row per ranked row instead of one per group: the columns of its group, its place and its values."""
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    groups = pa.array(np.repeat(np.arange(len(lengths)), lengths))
    found = {name: column.take(groups) for name, column in columns.items()}
    places = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    found[ROW_NUMBER.name] = pa.array(places + 1)
    items = lists.flatten()
    values = zip(items.type, items.flatten(), strict=True)
    return found | {f"ranked_{field.name}": value for field, value in values}


def _parts(grouping: Grouping) -> list[Part]:
    """Every part of every aggregate."""
    return [part for i, aggregate in enumerate(grouping.aggregates) for part in parts_of(i, aggregate)]


def _value(aggregate: AggregateCall, parts: Mapping[str, pa.Array]) -> pa.Array:
    """The value of an aggregate for each group, from its merged parts."""
    if aggregate.function == "avg":
        return _average(aggregate, parts)
    if aggregate.function in _MERGED_BY:
        return _final(aggregate, list(parts.values()))
    return value_of(aggregate, parts)


def _average(aggregate: AggregateCall, parts: Mapping[str, pa.Array]) -> pa.Array:
    count = parts["count"]
    if not is_decimal(aggregate.type):
        return pc.divide(parts["sum"], pc.if_else(pc.equal(count, 0), None, count).cast(pa.float64()))
    assert aggregate.argument is not None
    counts = count.to_numpy(zero_copy_only=False)
    if "word0" in parts:
        total = (unscaled(parts["word1"]) << 64) + unscaled(parts["word0"])
    else:
        total = unscaled(parts["sum"])
    shift = aggregate.type.scale - aggregate.argument.type.scale
    found = quotients(total, np.where(counts == 0, 1, counts).astype(object), shift)
    try:
        return from_unscaled(found, counts > 0, aggregate.type)
    except pa.ArrowInvalid as error:
        raise _too_large(aggregate, error) from error


def _final(aggregate: AggregateCall, parts: Sequence[pa.Array]) -> pa.Array:
    """The value of COUNT, SUM, MIN or MAX, from its merged parts."""
    part = parts[0] if len(parts) == 1 else _joined_words(parts[0], parts[1], aggregate.type.scale)
    if aggregate.function in {"min", "max"} and is_float(aggregate.type):
        return in_order(part).cast(aggregate.type)
    try:
        return part.cast(aggregate.type)
    except pa.ArrowInvalid as error:
        raise _too_large(aggregate, error) from error


def _too_large(aggregate: AggregateCall, error: pa.ArrowInvalid) -> ExpressionError:
    return ExpressionError(
        f"aggregate '{aggregate}' is too large for its type",
        detail=str(error),
        hint="cast its argument to decimal or double, or use a shorter window",
    )


def _joined_words(lower: pa.Array, upper: pa.Array, scale: int) -> pa.Array:
    """The sum of decimals, which may be too long, from the sums of their lower and upper words."""
    wide = pa.decimal256(38, 0)
    units = pc.add(pc.multiply(upper.cast(wide), pa.scalar(Decimal(2**64), pa.decimal256(20, 0))), lower.cast(wide))
    return pa.Array.from_buffers(pa.decimal256(76, scale), len(units), units.buffers(), offset=units.offset)


def raw_parts(
    grouping: Grouping, parts: Sequence[Part], read: ColumnReader, length: int, carried: Sequence[Carried]
) -> dict[str, pa.Array]:
    """Returns the parts of each combination, as if it were a group of its own.

    If inputs were merged, a combination represents as many combinations as the product of their weights. An aggregate
    over one merged input takes its parts from that input, repeated for every combination of the others.
    """
    arguments: dict[int, list[pa.Array]] = {}
    columns = {}
    for part in parts:
        holder = next((merged for merged in carried if part.name in merged.parts), None)
        others = [merged.weight for merged in carried if merged is not holder]
        if holder is not None:
            values = holder.parts[part.name]
        else:
            call = grouping.aggregates[part.aggregate]
            if part.aggregate not in arguments:
                arguments[part.aggregate] = [evaluate(argument, read, length) for argument in call.arguments]
            given = arguments[part.aggregate]
            if is_special(part):
                values = raw(part, given, np.multiply.reduce(others) if others else None)
            else:
                values = _raw_part(part, given[0] if given else None, length)
        columns[part.name] = _repeated(values, others) if part.function in _REPEATED else values
    return columns


def _raw_part(part: Part, argument: pa.Array | None, length: int) -> pa.Array:
    if part.function == "count":
        return pa.array(np.ones(length, dtype=np.int64)) if argument is None else argument.is_valid().cast(pa.int64())
    assert argument is not None
    if part.word is not None:
        words = np.ascontiguousarray(decimal_words(argument)[:, part.word])
        missing = argument.is_null().to_numpy(zero_copy_only=False)
        return pa.array(words if part.word else words.view(np.uint64), mask=missing).cast(part.type)
    if part.function != "sum" and is_float(argument.type):
        return order_of(argument)
    return argument.cast(part.type)


def _repeated(values: pa.Array, weights: Sequence[Int64Array]) -> pa.Array:
    """Multiplies counts or sums by the product of their weights."""
    if not weights:
        return values
    times = pa.array(np.multiply.reduce(weights))
    kind = values.type
    if not pa.types.is_decimal(kind):
        return pc.multiply(values, times.cast(kind))
    wide = pc.multiply(values.cast(pa.decimal256(kind.precision, kind.scale)), times.cast(pa.decimal256(19, 0)))
    # The widest decimal, as for a sum of single values before the cast to the type of the aggregate.
    return wide.cast(pa.decimal128(38, kind.scale))


def _key(values: pa.Array) -> pa.Array:
    """Normalises a key, so that equal keys form one group."""
    return plain(values).cast(values.type) if is_float(values.type) else values


def _key_names(grouping: Grouping) -> list[str]:
    return [f"key{i}" for i in range(len(grouping.keys))]


def reduced(table: pa.Table, keys: list[str], parts: Sequence[Part], limits: Mapping[str, int] = NO_LIMITS) -> pa.Table:
    """Merges the parts of rows with equal keys; NULL is a key like any other."""
    options = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
    simple = [part for part in parts if not is_special(part)]
    special = [part for part in parts if is_special(part)]
    calls: list[Any] = [(part.name, _MERGED_BY[part.function], options) for part in simple]
    given = table
    if special:
        table = table.append_column(_ROW, pa.array(np.arange(table.num_rows)))
        calls.append((_ROW, "list"))
    merged = table.group_by(keys, use_threads=False).aggregate(calls)
    found = {part.name: merged.column(f"{part.name}_{_MERGED_BY[part.function]}") for part in simple}
    if special:
        rows = _flat(merged, f"{_ROW}_list")
        lengths = pc.list_value_length(rows).to_numpy(zero_copy_only=False)
        numbers = rows.flatten().to_numpy(zero_copy_only=False)
        found |= merged_special(special, lambda name: _flat(given, name), numbers, lengths, limits)
    columns = [merged.column(key) for key in keys] + [found[part.name] for part in parts]
    fields = [merged.schema.field(key) for key in keys]
    renamed = pa.table(columns, names=[*keys, *(part.name for part in parts)])
    return renamed.cast(pa.schema(fields + [pa.field(part.name, part.type) for part in parts]))


def limits_of(grouping: Grouping) -> dict[str, int]:
    """The maximum number of items that the parts of each aggregate keep, where there is a limit."""
    return {
        f"part{i}.items": int(str(aggregate.others[1].value))
        for i, aggregate in enumerate(grouping.aggregates)
        if aggregate.function == "collect_list" and isinstance(aggregate.others[1], Literal)
    }


def _flat(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
