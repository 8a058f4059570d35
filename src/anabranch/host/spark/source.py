"""The streams of a query as one streaming frame in the wire layout, computed by Spark SQL.

Every relation becomes (relation, event time, codes, shared payload columns, slot); the union of all is what a
micro-batch brings, and all that is left to do with it is to send each row to its slot.

A row that the relation's filter rejects still tells how far its stream has come. A filter that was written by the user
travels as a boolean column until the largest event times have been observed. A filter that only keeps NULL keys out
(most queries have no other) rejects few rows, and observing costs more than carrying those: they go to a slot under
the complement of their relation's number, as bare times (`WireLayout.without_rejected`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

from anabranch.expr import Call, Column, Expr, conjuncts
from anabranch.host.spark.anchor import SLOT, anchored, slot_keys
from anabranch.host.spark.expressions import key_code_sql, quote, spark_type, to_spark_sql
from anabranch.host.wire import RELATION, TIME, WireLayout
from anabranch.plan.bundle import Bundle
from anabranch.plan.join_graph import Relation
from anabranch.plan.partitioning import Partitioning, row_code

PASSES = "_passes"
_MOST_RUNS = 8
_NOT_HASHED = (ArrayType, MapType, StructType, VariantType)


def tagged_union(layout: WireLayout, partitioning: Partitioning, frames: Mapping[str, DataFrame]) -> DataFrame:
    """All relations in the wire layout, with the slot of each row, and whether it passes where that is to be observed.

    A row that several slots need is there several times. Each relation is one projection: Spark plans it anew for
    every micro-batch, so what is written shorter is planned faster.
    """
    relations = layout.query.graph.relations
    is_observed = has_observed_filters(relations)
    parts = []
    for position, relation in enumerate(relations):
        columns = wire_columns(position, relation, layout, frames[relation.stream])
        passes = columns.pop(PASSES)
        if relation.filter is not None and keeps_null_keys_out(relation.filter):
            columns[RELATION] = f"CAST(CASE WHEN {passes} THEN {position} ELSE {~position} END AS TINYINT)"
            passes = "TRUE"
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


def wire_columns(position: int, relation: Relation, layout: WireLayout, frame: DataFrame) -> dict[str, str]:
    """The SQL of every wire column of a relation, and of whether a row passes its filter."""

    def column(reference: Column) -> str:
        return quote(reference.name)

    keys = {key.name: key for key in layout.query.graph.keys_of([relation.name])}
    selected = {
        RELATION: f"CAST({position} AS TINYINT)",
        TIME: f"unix_micros(CAST({quote(relation.event_time)} AS TIMESTAMP))",
    }
    for wire, code in zip(layout.code_columns, layout.codes[relation.name], strict=False):
        if code == row_code(relation.name):
            selected[wire] = f"xxhash64({', '.join(quote(name) for name in _hashable(frame))})"
        else:
            key = keys[code]
            selected[wire] = key_code_sql(to_spark_sql(key.expression(relation.name), column), key.type)
            if isinstance(layout.query, Bundle):
                # Rows without this key are of use to the queries that do not compare it; the others filter them.
                selected[wire] = f"coalesce({selected[wire]}, 0L)"
    selected |= {wire: quote(name) for name, wire in layout.payload[relation.name].items()}
    columns = {
        field.name: selected.get(field.name, f"CAST(NULL AS {spark_type(field.type)})") for field in layout.schema
    }
    columns[PASSES] = "TRUE" if relation.filter is None else f"coalesce({to_spark_sql(relation.filter, column)}, FALSE)"
    return columns


def _selected(relation: Relation, frame: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    timed = frame.where(f"{quote(relation.event_time)} IS NOT NULL")
    return timed.selectExpr(*(f"{text} AS {quote(name)}" for name, text in columns.items()))


def to_slots(frame: DataFrame, partitioning: Partitioning, anchor: DataFrame | None = None) -> DataFrame:
    """The rows of a micro-batch, each in the partition of its slot; with an anchor, where that is.

    The slot's own column travels along: taking it off would cost a plan node, reading past it costs nothing.
    """
    rows = frame.repartition(partitioning.slots, SLOT)
    return rows if anchor is None else anchored(rows, anchor)


def _slot(layout: WireLayout, partitioning: Partitioning, relation: str, columns: Mapping[str, str]) -> str:
    """The key of a row's slot as SQL; a generator of them where a row goes to several."""
    keys = slot_keys(partitioning.slots)
    slots = [[keys[slot] for slot in of_cell] for of_cell in partitioning.slots_of(relation)]
    place = _place(layout, partitioning, relation, columns)
    if all(len(of_cell) == 1 for of_cell in slots):
        return _entry([str(of_cell[0]) for of_cell in slots], place)
    arrays = [f"array({', '.join(map(str, of_cell))})" for of_cell in slots]
    return f"explode({_entry(arrays, place)})"


def _place(layout: WireLayout, partitioning: Partitioning, relation: str, columns: Mapping[str, str]) -> str:
    """The mixed-radix coordinate of a row, as SQL; the same number as `engine.ownership` computes."""
    place = "0"
    for dimension in partitioning.members(relation):
        if dimension.share > 1:
            wire = layout.code_columns[layout.codes[relation].index(dimension.code)]
            coordinate = f"pmod(xxhash64({columns[wire]}), {dimension.share}L)"
            place = coordinate if place == "0" else f"({place} * {dimension.share} + {coordinate})"
    return place


def _entry(table: list[str], place: str) -> str:
    """The entry of a table at a place; the usual slot map is made of few runs, which become comparisons."""
    ends = [i for i in range(1, len(table)) if table[i] != table[i - 1]]
    if not ends:
        return table[0]
    if len(ends) > _MOST_RUNS:
        return f"element_at(array({', '.join(table)}), CAST({place} + 1 AS INT))"
    whens = " ".join(f"WHEN {place} < {end} THEN {table[end - 1]}" for end in ends)
    return f"CASE {whens} ELSE {table[-1]} END"


def _hashable(frame: DataFrame) -> list[str]:
    """The columns whose values Spark can hash."""
    return [field.name for field in frame.schema if not isinstance(field.dataType, _NOT_HASHED)]
