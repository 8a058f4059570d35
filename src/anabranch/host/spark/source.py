"""The streams of a query as one streaming frame in the wire layout, computed by Spark SQL.

Every relation becomes (relation, event time, codes, shared payload columns); the union of all is what a micro-batch
brings. A relation's filter travels as a boolean column until the largest event times have been observed: a row that
the filter rejects still tells how far its stream has come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

from anabranch.expr import Column
from anabranch.host.spark.expressions import key_code_sql, quote, spark_type, to_spark_sql
from anabranch.host.wire import RELATION, TIME, WireLayout
from anabranch.plan.join_graph import Relation
from anabranch.plan.partitioning import Partitioning, row_code

PASSES = "_passes"
SLOT = "_slot"
_MOST_RUNS = 8
_NOT_HASHED = (ArrayType, MapType, StructType, VariantType)


def tagged_union(layout: WireLayout, frames: Mapping[str, DataFrame]) -> DataFrame:
    """All relations in the wire layout, plus whether each row passes its relation's filter."""
    parts = [
        relation_frame(position, relation, layout, frames[relation.stream])
        for position, relation in enumerate(layout.query.graph.relations)
    ]
    return reduce(DataFrame.unionAll, parts)


def relation_frame(position: int, relation: Relation, layout: WireLayout, frame: DataFrame) -> DataFrame:
    def column(reference: Column) -> str:
        return quote(reference.name)

    keys = {key.name: key for key in layout.query.graph.keys_of([relation.name])}
    selected = {
        RELATION: f"CAST({position} AS TINYINT)",
        TIME: f"unix_micros(CAST({quote(relation.event_time)} AS TIMESTAMP))",
        PASSES: "TRUE" if relation.filter is None else f"coalesce({to_spark_sql(relation.filter, column)}, FALSE)",
    }
    for wire, code in zip(layout.code_columns, layout.codes[relation.name], strict=False):
        if code == row_code(relation.name):
            selected[wire] = f"xxhash64({', '.join(quote(name) for name in _hashable(frame))})"
        else:
            key = keys[code]
            selected[wire] = key_code_sql(to_spark_sql(key.expression(relation.name), column), key.type)
    placed = {wire: name for name, wire in layout.payload[relation.name].items()}
    expressions = []
    for field in [*layout.schema.names, PASSES]:
        if field in selected:
            text = selected[field]
        elif field in placed:
            text = quote(placed[field])
        else:
            text = f"CAST(NULL AS {spark_type(layout.schema.field(field).type)})"
        expressions.append(f"{text} AS {quote(field)}")
    return frame.where(f"{quote(relation.event_time)} IS NOT NULL").selectExpr(*expressions)


def to_slots(frame: DataFrame, layout: WireLayout, partitioning: Partitioning) -> DataFrame:
    """The rows of a micro-batch, each in the partition of every slot that needs it."""
    wire = [quote(name) for name in layout.schema.names]
    if partitioning.slots == 1:
        return frame.selectExpr(*wire).repartition(1)
    if partitioning.is_partition:
        slot = _by_relation(layout, partitioning, lambda slots: f"{slots[0]}")
    else:
        slot = _by_relation(layout, partitioning, lambda slots: f"array({', '.join(map(str, slots))})")
        slot = f"explode({slot})"
    # The slot's own column travels along: taking it off would cost a plan node, reading past it costs nothing.
    return frame.selectExpr(*wire, f"{slot} AS {SLOT}").repartitionById(partitioning.slots, SLOT)


def _by_relation(layout: WireLayout, partitioning: Partitioning, spell: Callable[[tuple[int, ...]], str]) -> str:
    """The slots of a row as SQL, depending on its relation and its coordinates."""
    names = layout.query.graph.names
    texts = [
        _entry([spell(slots) for slots in partitioning.slots_of(name)], _place(layout, partitioning, name))
        for name in names
    ]
    if len(set(texts)) == 1:
        return texts[0]
    whens = " ".join(f"WHEN {position} THEN {text}" for position, text in enumerate(texts[:-1]))
    return f"CASE {RELATION} {whens} ELSE {texts[-1]} END"


def _place(layout: WireLayout, partitioning: Partitioning, relation: str) -> str:
    """The mixed-radix coordinate of a row, as SQL; the same number as `engine.ownership` computes."""
    place = "0"
    for dimension in partitioning.members(relation):
        if dimension.share > 1:
            wire = layout.code_columns[layout.codes[relation].index(dimension.code)]
            coordinate = f"pmod(xxhash64({quote(wire)}), {dimension.share}L)"
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
