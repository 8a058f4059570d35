"""The rows of a sample in the wire layout, computed by Spark SQL (`spark/sample`)."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, ByteType, MapType, StructType, TimestampType, VariantType

from anabranch.plan.cost_rank import costliest_last
from anabranch.plan.join_graph import Relation
from anabranch.plan.partitioning import row_code
from anabranch.run.wire import RELATION, TIME, WireLayout
from anabranch.spark.arrow_schema import nulls_of
from anabranch.spark.expressions import key_code, quote, to_column
from anabranch.spark.own import register_functions

PASSES = "_passes"
_NOT_HASHED = (ArrayType, MapType, StructType, VariantType)


def relation_frame(position: int, relation: Relation, layout: WireLayout, frame: DataFrame) -> DataFrame:
    """One relation in the wire layout, with whether each row passes its filter."""
    return _selected(relation, frame, wire_columns(position, relation, layout, frame))


def wire_columns(position: int, relation: Relation, layout: WireLayout, frame: DataFrame) -> dict[str, Column]:
    """Every wire column of a relation, and whether a row passes its filter."""
    keys = {key.name: key for key in layout.queries.graph.keys_of([relation.name])}
    computed = [key.expression(relation.name) for key in keys.values()]
    computed += [relation.filter] if relation.filter is not None else []
    register_functions(frame.sparkSession, computed, relation.stream)
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
            has_nulls = layout.queries.has_terms(relation.name) or layout.queries.has_sides
            if has_nulls or relation.window.is_counted:
                # Rows without this key are of use to the queries that do not compare it; the others filter them. In
                # an outer join they come out alone, and a count window counts them.
                selected[wire] = f.coalesce(selected[wire], f.lit(0))
    selected |= {wire: _named(name) for name, wire in layout.payload[relation.name].items()}
    nulls = {
        field.name: f.lit(None).cast(nulls_of(field.type, field.name))
        for field in layout.schema
        if field.name not in selected
    }
    columns = {name: (selected | nulls)[name] for name in layout.schema.names}
    columns[PASSES] = (
        f.lit(True) if relation.filter is None else f.coalesce(to_column(costliest_last(relation.filter)), f.lit(False))
    )
    return columns


def event_micros(relation: Relation) -> Column:
    """The event time of a row of the relation, in microseconds."""
    return f.unix_micros(_named(relation.event_time).cast(TimestampType()))


def _selected(relation: Relation, frame: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    timed = frame.where(_named(relation.event_time).isNotNull())
    return timed.select(*(column.alias(name) for name, column in columns.items()))


def _named(column: str) -> Column:
    return f.col(quote(column))


def _hashable(frame: DataFrame) -> list[str]:
    """The columns whose values Spark can hash."""
    return [field.name for field in frame.schema if not isinstance(field.dataType, _NOT_HASHED)]
