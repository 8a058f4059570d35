"""Aggregate parts that Arrow cannot merge by itself: moments, distinct values, best values, lists, histograms.

A part of an aggregate has one value per group, and parts of one group merge in any order to the same result. *Moments*
(of STDDEV and VARIANCE) are a count, a mean and a sum of squared distances from the mean; they merge by the formula of
Chan, Golub and LeVeque (1983), which does not cancel digits. All others are lists of items: merging concatenates the
lists and reduces them to the distinct items, the best item, the first items, or a count for each value.

Invariant: items are ordered by value, never by arrival, and equal items are interchangeable. So the result does not
depend on plans, batches or slots. Limit: lists are as long as the answer needs; COUNT(DISTINCT) and PERCENTILE keep
every distinct value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anabranch.engine.kernels import Int64Array
from anabranch.lang.expr import AggregateCall, Literal, Ranking
from anabranch.lang.schema import is_float
from anabranch.plan.pregrouping import Part

_MAGNITUDE = np.int64(2**63 - 1)
_ITEMS = frozenset({"distinct", "least_by", "greatest_by", "first_n", "histogram", "ranked"})


def is_special(part: Part) -> bool:
    """True for parts that `merged` merges."""
    return part.function in {"mean", "squares"} or part.function in _ITEMS


def order_of(floats: pa.Array) -> pa.Array:
    """Integers that compare as SQL compares the floats: NaN is greatest, zero has no sign."""
    bits = plain(floats).to_numpy(zero_copy_only=False).view(np.int64)
    return pa.array(np.where(bits < 0, bits ^ _MAGNITUDE, bits), mask=floats.is_null().to_numpy(zero_copy_only=False))


def in_order(places: pa.Array) -> pa.Array:
    """The floats at these positions of the order; the inverse of `order_of`."""
    bits = places.fill_null(0).to_numpy(zero_copy_only=False)
    floats = np.where(bits < 0, bits ^ _MAGNITUDE, bits).view(np.float64)
    return pa.array(floats, mask=places.is_null().to_numpy(zero_copy_only=False))


def plain(floats: pa.Array) -> pa.Array:
    """Normalises doubles, so that equal values have equal bits: one NaN, one zero."""
    doubles = floats.cast(pa.float64())
    return pc.if_else(pc.is_nan(doubles), np.nan, pc.add(doubles, 0.0))


# --- parts of single combinations ------------------------------------------------------------------------------------


def raw(part: Part, arguments: Sequence[pa.Array], weights: Int64Array | None) -> pa.Array:
    """Returns the part of each combination, as if it were a group of its own that represents `weights` equal ones."""
    value = arguments[0]
    length = len(value)
    match part.function:
        case "mean":
            return value.cast(pa.float64()).fill_null(0.0)
        case "squares":
            finite = pc.is_finite(value).fill_null(True).to_numpy(zero_copy_only=False)
            return pa.array(np.where(finite, 0.0, np.nan))
        case "distinct":
            kept = plain(value).cast(value.type) if is_float(value.type) else value
            return _lists(value.is_valid(), kept, part.type)
        case "histogram":
            counts = np.ones(length, np.int64) if weights is None else weights
            items = _struct(part, value=plain(value), count=pa.array(counts))
            return _lists(value.is_valid(), items, part.type)
        case "ranked":
            assert part.ranking is not None
            fields = list(part.type.value_type)
            columns = [each.cast(field.type) for field, each in zip(fields, arguments, strict=True)]
            items = pa.StructArray.from_arrays(columns, fields=fields)
            lists = pa.ListArray.from_arrays(pa.array(np.arange(length + 1, dtype=np.int32)), items)
            return lists if weights is None else _repeated(lists, np.minimum(weights, part.ranking.rows))
        case "first_n":
            items = _struct(part, by=_comparable(arguments[1]), value=value)
            lists = _lists(value.is_valid(), items, part.type)
            return lists if weights is None else _repeated(lists, weights)
        case _:
            by = _comparable(arguments[1])
            return _lists(by.is_valid(), _struct(part, by=by, value=value), part.type)


def _struct(part: Part, **columns: pa.Array) -> pa.Array:
    fields = list(part.type.value_type)
    return pa.StructArray.from_arrays([columns[f.name].cast(f.type) for f in fields], fields=fields)


def _comparable(values: pa.Array) -> pa.Array:
    """Converts values to a form that Arrow orders as SQL does."""
    if is_float(values.type):
        return order_of(values)
    if pa.types.is_timestamp(values.type) or pa.types.is_duration(values.type):
        return values.cast(pa.int64())
    return values


def _lists(present: pa.Array, items: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns a list of one item for each row where it is present, else an empty list."""
    mask = present.to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(mask)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), items.filter(present)).cast(kind)


def _repeated(lists: pa.Array, weights: Int64Array) -> pa.Array:
    """Repeats the items of each list as often as its row's weight."""
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(lists)), lengths)
    counts = weights[rows]
    items = lists.flatten().take(pa.array(np.repeat(np.arange(len(rows)), counts)))
    offsets = np.concatenate([[0], np.cumsum(lengths * weights)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), items)


# --- merging ---------------------------------------------------------------------------------------------------------


def merged(
    parts: Sequence[Part],
    read: Callable[[str], pa.Array],
    rows: Int64Array,
    lengths: Int64Array,
    limits: Mapping[str, int],
) -> dict[str, pa.Array]:
    """Merges the special parts of groups: `rows` are row numbers, group by group, `lengths` the rows of each group.

    `limits` holds the maximum number of items that a part keeps, by its name.
    """
    groups = np.repeat(np.arange(len(lengths)), lengths)
    found: dict[str, pa.Array] = {}
    for part in parts:
        if part.function == "mean":
            found |= _merged_moments(part, read, rows, groups, len(lengths))
        elif part.ranking is not None:
            lists = read(part.name).cast(part.type)
            if len(rows) == len(lengths):
                # Nothing to merge: a list is the first rows of its part already.
                found[part.name] = lists.take(pa.array(rows))
                continue
            owners = np.empty(len(rows), np.int64)
            owners[rows] = groups
            found[part.name] = _first_rows(part.type, part.ranking, lists, owners, len(lengths))
        elif part.function in _ITEMS:
            lists = read(part.name).cast(part.type).take(pa.array(rows))
            found[part.name] = _shrunk(part, lists, groups, len(lengths), limits.get(part.name, 1))
    return found


def _merged_moments(
    part: Part, read: Callable[[str], pa.Array], rows: Int64Array, groups: Int64Array, count: int
) -> dict[str, pa.Array]:
    stem = part.name.removesuffix("mean")
    numbers, means, squares = (
        read(stem + name).to_numpy(zero_copy_only=False)[rows] for name in ("count", "mean", "squares")
    )
    total = np.bincount(groups, numbers, count)
    with np.errstate(invalid="ignore", over="ignore"):
        # Groups of one part keep its numbers unchanged, even if they are not finite.
        mean = np.bincount(groups, np.where(numbers > 0, numbers * means, 0.0), count) / np.maximum(total, 1)
        apart = np.where(numbers > 0, numbers * (means - mean[groups]) ** 2, 0.0)
        several = np.bincount(groups, numbers > 0, count) > 1
        apart = np.where(several[groups], apart, 0.0)
        spread = np.bincount(groups, squares + apart, count)
    return {stem + "mean": pa.array(mean), stem + "squares": pa.array(spread)}


def _shrunk(part: Part, lists: pa.Array, groups: Int64Array, count: int, limit: int) -> pa.Array:
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    items = lists.flatten()
    owners = np.repeat(groups, lengths)
    if part.function == "distinct":
        table = (
            pa.table({"group": owners, "value": items}).group_by(["group", "value"], use_threads=False).aggregate([])
        )
        return _regrouped(table.column("group").to_numpy(), table.column("value").combine_chunks(), count, part.type)
    columns = dict(zip([f.name for f in items.type], items.flatten(), strict=True))
    table = pa.table({"group": owners, **columns})
    if part.function == "histogram":
        table = table.group_by(["group", "value"], use_threads=False).aggregate([("count", "sum")])
        table = table.select(["group", "value", "count_sum"]).rename_columns(["group", "value", "count"])
        order = pc.sort_indices(table, sort_keys=[("group", "ascending"), ("value", "ascending")])
        table, limit = table.take(order), table.num_rows
    else:
        direction = "descending" if part.function == "greatest_by" else "ascending"
        tie = table.column("value")
        sorted_by = table.append_column("tie", tie.cast(pa.int8()) if pa.types.is_boolean(tie.type) else tie)
        keys = [("group", "ascending"), ("by", direction), ("tie", "ascending")]
        table = table.take(pc.sort_indices(sorted_by, sort_keys=keys))
    owners = table.column("group").to_numpy()
    kept = table.filter(pa.array(_places(owners) < limit))
    fields = list(part.type.value_type)
    struct = pa.StructArray.from_arrays([_one(kept.column(f.name)).cast(f.type) for f in fields], fields=fields)
    return _regrouped(kept.column("group").to_numpy(), struct, count, part.type)


def _first_rows(kind: pa.DataType, ranking: Ranking, lists: pa.Array, groups: Int64Array, count: int) -> pa.Array:
    """Returns the first rows of each group, in order; ties of all sort keys are ordered by the values of the rows.

    `groups` has the group of each list.
    """
    owners = np.repeat(groups, pc.list_value_length(lists).to_numpy(zero_copy_only=False))
    items = lists.flatten()
    columns = items.flatten()
    values, keys = columns[: -len(ranking.is_descending)], columns[-len(ranking.is_descending) :]
    directions = zip(keys, ranking.is_descending, ranking.nulls_first, strict=True)
    codes = [code for each in directions for code in sort_codes(*each)]
    # An unstable sort will do, because ties are ordered below.
    order = by_group(np.argsort(codes[0]) if len(codes) == 1 else np.lexsort(codes[::-1]), owners, count)
    found = owners[order]
    place = _places(found)
    begins = place == 0
    begins[1:] |= np.logical_or.reduce([code[order][1:] != code[order][:-1] for code in codes])
    if not begins.all():
        runs = np.cumsum(begins) - 1
        # Ties matter only if they begin among the first rows.
        tied = (place[begins][runs] < ranking.rows) & ~(begins & np.append(begins[1:], True))
        if tied.any():
            rows = order[tied]
            ties = [code for each in values for code in sort_codes(each.take(pa.array(rows)), False, True)]
            order[tied] = rows[np.lexsort([*ties[::-1], runs[tied]])]
    first = place < ranking.rows
    sizes = np.bincount(found[first], minlength=count)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), items.take(pa.array(order[first]))).cast(kind)


@numba.njit("int64[::1](int64[::1], int64[::1], int64)", cache=True, nogil=True)
def by_group(order: Int64Array, owners: Int64Array, count: int) -> Int64Array:
    """Returns positions group by group, in each group in the given order; owners are groups below `count`."""
    next_place = np.zeros(count + 1, dtype=np.int64)
    for owner in owners:
        next_place[owner + 1] += 1
    for group in range(count):
        next_place[group + 1] += next_place[group]
    found = np.empty_like(order)
    for position in order:
        owner = owners[position]
        found[next_place[owner]] = position
        next_place[owner] += 1
    return found


def sort_codes(values: pa.Array, is_descending: bool, nulls_first: bool) -> list[Int64Array]:
    """Returns integers that compare as SQL compares the values, after a flag that puts NULLs in their place."""
    missing = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    if is_float(values.type):
        values = order_of(values)
    if pa.types.is_integer(values.type) or pa.types.is_timestamp(values.type) or pa.types.is_duration(values.type):
        found = values.cast(pa.int64())
    elif pa.types.is_boolean(values.type):
        found = values.cast(pa.int8()).cast(pa.int64())
    else:
        found = pc.rank(values, tiebreaker="dense").cast(pa.int64())
    numbers = found.fill_null(0).to_numpy(zero_copy_only=False)
    numbers = ~numbers if is_descending else numbers
    if missing is None:
        return [numbers]
    return [(~missing if nulls_first else missing).astype(np.int64), np.where(missing, 0, numbers)]


def _places(owners: NDArray[Any]) -> Int64Array:
    """Returns the place of each item among those of its group, from 0; the items of a group are side by side."""
    starts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1])[: len(owners)])
    lengths = np.diff(np.append(starts, len(owners)))
    places: Int64Array = np.arange(len(owners)) - np.repeat(starts, lengths)
    return places


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks()


def _regrouped(owners: NDArray[Any], items: pa.Array, count: int, kind: pa.DataType) -> pa.Array:
    """Collects items into one list per group."""
    order = np.argsort(owners, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=count))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), items.take(pa.array(order))).cast(kind)


# --- values ----------------------------------------------------------------------------------------------------------


def value_of(aggregate: AggregateCall, parts: Mapping[str, pa.Array]) -> pa.Array:
    """Returns the value of an aggregate for each group; `parts` are named without the aggregate's name."""
    match aggregate.function:
        case "count_distinct":
            return pc.list_value_length(parts["items"]).cast(pa.int64())
        case "min_by" | "max_by":
            return pc.list_element(_at_least_one(parts["items"]), 0).field("value").cast(aggregate.type)
        case "collect_list":
            return _values_only(parts["items"], aggregate.type)
        case "percentile":
            share = aggregate.others[0]
            assert isinstance(share, Literal)
            return _percentile(parts["items"], float(str(share.value)))
        case _:
            return _spread(aggregate.function, parts)


def _at_least_one(lists: pa.Array) -> pa.Array:
    """The lists, with a NULL item where there is none."""
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    starts = lists.offsets.to_numpy()[:-1]
    picked = lists.values.take(pa.array(starts.astype(np.int64), mask=lengths == 0))
    return pa.ListArray.from_arrays(pa.array(np.arange(len(lists) + 1, dtype=np.int32)), picked)


def _values_only(lists: pa.Array, kind: pa.DataType) -> pa.Array:
    flat = lists.flatten().field("value") if len(lists) else lists.values.field("value")
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), flat).cast(kind)


def _percentile(lists: pa.Array, share: float) -> pa.Array:
    """Returns the value at a share of the sorted values, with linear interpolation."""
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    items = lists.flatten()
    values, counts = (items.field(name).to_numpy(zero_copy_only=False) for name in ("value", "count"))
    ends = np.cumsum(counts)
    last = np.cumsum(lengths) - 1
    total = np.where(lengths > 0, ends[last] if len(ends) else 0, 0)
    before = np.where(lengths > 0, np.concatenate([[0], ends])[np.cumsum(lengths) - lengths], 0)
    size = total - before
    place = share * np.maximum(size - 1, 0)
    low = np.floor(place).astype(np.int64)
    rest = place - low
    if not len(values):
        return pa.nulls(len(lists), pa.float64())
    bound = len(values) - 1
    lower = values[np.minimum(np.searchsorted(ends, before + low, side="right"), bound)]
    upper = values[np.minimum(np.searchsorted(ends, before + np.minimum(low + 1, size - 1), side="right"), bound)]
    with np.errstate(invalid="ignore"):
        found = np.where(rest > 0, (1 - rest) * lower + rest * upper, lower)
    return pa.array(found, mask=lengths == 0)


def _spread(function: str, parts: Mapping[str, pa.Array]) -> pa.Array:
    """STDDEV and VARIANCE, of a sample or of the population."""
    counts = parts["count"].to_numpy(zero_copy_only=False)
    divisor = counts - function.endswith("samp")
    with np.errstate(invalid="ignore"):
        found = parts["squares"].to_numpy(zero_copy_only=False) / np.maximum(divisor, 1)
        found = np.sqrt(found) if function.startswith("stddev") else found
    return pa.array(found, mask=divisor < 1)
