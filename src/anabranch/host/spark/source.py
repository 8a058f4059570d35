"""The streams of a query as one streaming frame in the wire layout, computed by Spark SQL.

Every relation becomes (relation, event time, codes, shared payload columns, slot). A micro-batch is a part of the union
of all relations; the runner only has to send each row to its slot.

A row that the relation's filter rejects still advances the clock of its stream. A filter that was written by the user
travels as a boolean column until the largest event times have been observed. A filter that only keeps NULL keys out
(most queries have no other) rejects few rows, and observing costs more than carrying those: they go to a slot under
the complement of their relation's number, as bare times (`WireLayout.without_rejected`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, ByteType, IntegerType, MapType, StructType, TimestampType, VariantType

from anabranch.expr import Call, Expr, conjuncts
from anabranch.host.spark.anchor import SLOT, anchored, slot_keys
from anabranch.host.spark.arrow_schema import nulls_of
from anabranch.host.spark.expressions import key_code, quote, to_column
from anabranch.host.wire import RELATION, TIME, WireLayout
from anabranch.plan.join_graph import Relation
from anabranch.plan.partitioning import Partitioning, row_code

PASSES = "_passes"
_MOST_RUNS = 8
_NOT_HASHED = (ArrayType, MapType, StructType, VariantType)


def tagged_union(layout: WireLayout, partitioning: Partitioning, frames: Mapping[str, DataFrame]) -> DataFrame:
    """All relations in the wire layout, with the slot of each row, and whether it passes where that is to be observed.

    A row that several slots need occurs several times. Each relation is one projection, because Spark plans it anew for
    every micro-batch. Expressions that the user did not write are built without SQL text: the first text of a session
    takes Spark's parser a second.
    """
    relations = layout.queries.graph.relations
    is_observed = has_observed_filters(relations)
    parts = []
    for position, relation in enumerate(relations):
        columns = wire_columns(position, relation, layout, frames[relation.stream])
        passes = columns.pop(PASSES)
        if relation.filter is not None and keeps_null_keys_out(relation.filter):
            columns[RELATION] = f.when(passes, position).otherwise(~position).cast(ByteType())
            passes = f.lit(True)
        columns[SLOT] = _slot(layout, partitioning, relation.name, columns)
        if is_observed:
            columns[PASSES] = passes
        parts.append(_selected(relation, frames[relation.stream], columns))
    return reduce(DataFrame.unionAll, parts)


def has_observed_filters(relations: Iterable[Relation]) -> bool:
    """True when some relation has a filter that rejects more than NULL keys."""
    return any(relation.filter is not None and not keeps_null_keys_out(relation.filter) for relation in relations)


def keeps_null_keys_out(condition: Expr) -> bool:
    """True of a conjunction of IS NOT NULL tests."""
    return all(isinstance(part, Call) and part.function == "is_not_null" for part in conjuncts(condition))


def relation_frame(position: int, relation: Relation, layout: WireLayout, frame: DataFrame) -> DataFrame:
    """One relation in the wire layout, with whether each row passes its filter."""
    return _selected(relation, frame, wire_columns(position, relation, layout, frame))


def wire_columns(position: int, relation: Relation, layout: WireLayout, frame: DataFrame) -> dict[str, Column]:
    """Every wire column of a relation, and whether a row passes its filter."""
    keys = {key.name: key for key in layout.queries.graph.keys_of([relation.name])}
    selected = {
        RELATION: f.lit(position).cast(ByteType()),
        TIME: event_micros(relation),
    }
    for wire, code in zip(layout.code_columns, layout.codes[relation.name], strict=False):
        if code == row_code(relation.name):
            selected[wire] = f.xxhash64(*map(_named, _hashable(frame)))
        else:
            key = keys[code]
            selected[wire] = key_code(key.expression(relation.name), key.type)
            if layout.queries.has_terms(relation.name):
                # Rows without this key are of use to the queries that do not compare it; the others filter them.
                selected[wire] = f.coalesce(selected[wire], f.lit(0))
    selected |= {wire: _named(name) for name, wire in layout.payload[relation.name].items()}
    nulls = {
        field.name: f.lit(None).cast(nulls_of(field.type, field.name))
        for field in layout.schema
        if field.name not in selected
    }
    columns = {name: (selected | nulls)[name] for name in layout.schema.names}
    columns[PASSES] = f.lit(True) if relation.filter is None else f.coalesce(to_column(relation.filter), f.lit(False))
    return columns


def event_micros(relation: Relation) -> Column:
    """The event time of a row of the relation, in microseconds."""
    return f.unix_micros(_named(relation.event_time).cast(TimestampType()))


def _selected(relation: Relation, frame: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    timed = frame.where(_named(relation.event_time).isNotNull())
    return timed.select(*(column.alias(name) for name, column in columns.items()))


def _named(column: str) -> Column:
    return f.col(quote(column))


def to_slots(frame: DataFrame, partitioning: Partitioning, anchor: DataFrame | None = None) -> DataFrame:
    """The rows of a micro-batch, each in the partition of its slot; with an anchor, where that is.

    The slot's own column travels along: taking it off would cost a plan node, reading past it costs nothing.
    """
    rows = frame.repartition(partitioning.slots, SLOT)
    return rows if anchor is None else anchored(rows, anchor)


def _slot(layout: WireLayout, partitioning: Partitioning, relation: str, columns: Mapping[str, Column]) -> Column:
    """The key of a row's slot; a generator of them where a row goes to several."""
    keys = slot_keys(partitioning.slots)
    slots = [tuple(keys[slot] for slot in of_cell) for of_cell in partitioning.slots_of(relation)]
    place = _place(layout, partitioning, relation, columns)
    if all(len(of_cell) == 1 for of_cell in slots):
        return _entry(slots, [f.lit(key) for (key,) in slots], place)
    return f.explode(_entry(slots, [f.array(*map(f.lit, of_cell)) for of_cell in slots], place))


def _place(layout: WireLayout, partitioning: Partitioning, relation: str, columns: Mapping[str, Column]) -> Column:
    """The mixed-radix coordinate of a row; the same number as `engine.ownership` computes."""
    place: Column | None = None
    for dimension in partitioning.members(relation):
        if dimension.share > 1:
            wire = layout.code_columns[layout.codes[relation].index(dimension.code)]
            coordinate = f.pmod(f.xxhash64(columns[wire]), f.lit(dimension.share))
            place = coordinate if place is None else place * dimension.share + coordinate
    return f.lit(0) if place is None else place


def _entry(table: list[tuple[int, ...]], entries: list[Column], place: Column) -> Column:
    """The entry of a table at a place; the usual slot map is made of few runs, which become comparisons."""
    ends = [i for i in range(1, len(table)) if table[i] != table[i - 1]]
    if not ends:
        return entries[0]
    if len(ends) > _MOST_RUNS:
        return f.element_at(f.array(*entries), (place + 1).cast(IntegerType()))
    found = f.when(place < ends[0], entries[0])
    for start, end in itertools.pairwise(ends):
        found = found.when(place < end, entries[start])
    return found.otherwise(entries[-1])


def _hashable(frame: DataFrame) -> list[str]:
    """The columns whose values Spark can hash."""
    return [field.name for field in frame.schema if not isinstance(field.dataType, _NOT_HASHED)]
