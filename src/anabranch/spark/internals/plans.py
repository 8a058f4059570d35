"""Private calls about the plans of frames: their layers, equality, preferred locations and execution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.spark.internals.driver import java_array, jvm_of

Plan: TypeAlias = Any
"""A logical plan in the JVM."""
_PROJECT, _FILTER, _ALIAS, _COLUMN = "Project", "Filter", "Alias", "AttributeReference"
_SCAN, _SCAN_V2 = "StreamingRelation", "StreamingRelationV2"
_THROUGH = ("EventTimeWatermark", "SubqueryAlias")
"""Nodes above a scan that change no row."""


@dataclass(frozen=True)
class Source:
    """The source of a streaming scan."""

    format: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class Expression:
    """An expression of a plan; `column` is the name if it is only a column."""

    sql: str
    column: str | None
    is_deterministic: bool


def scan_below(frame: DataFrame) -> tuple[Plan, list[Plan]] | None:
    """Returns the only streaming scan of a frame, and the projections and filters above it, lowest first.

    None if the frame has other operators. Without it, Spark reads all streams, and their sizes are unknown.
    """
    node, layers = _analyzed(frame), []
    while (name := node.nodeName()) not in (_SCAN, _SCAN_V2):
        if name in (_PROJECT, _FILTER):
            layers.append(node)
        elif name not in _THROUGH:
            return None
        node = node.children().apply(0)
    return node, layers[::-1]


def source_of_scan(scan: Plan) -> Source:
    """Returns the format and the options of a streaming scan; without it, as without `scan_below`."""
    if scan.nodeName() == _SCAN_V2:
        return Source(scan.sourceName(), dict(scan.extraOptions().asCaseSensitiveMap()))
    source = scan.dataSource()
    given = source.options()
    return Source(source.className(), {str(name): str(given.apply(name)) for name in listed(given.keys().toSeq())})


def is_filter(layer: Plan) -> bool:
    """Returns whether a layer is a filter, else a projection."""
    return bool(layer.nodeName() == _FILTER)


def outputs_of(layer: Plan) -> list[tuple[str, Expression]] | None:
    """Returns the names and expressions of a projection; None if one is neither a column nor an alias.

    Without it, as without `scan_below`.
    """
    outputs = listed(layer.projectList())
    kinds = [_kind(each) for each in outputs]
    if not set(kinds) <= {_ALIAS, _COLUMN}:
        return None
    return [
        (each.name(), _expression(each.child() if kind == _ALIAS else each))
        for each, kind in zip(outputs, kinds, strict=True)
    ]


def condition_of(layer: Plan) -> Expression:
    """Returns the condition of a filter; without it, as without `scan_below`."""
    return _expression(layer.condition())


def child_of(layer: Plan) -> Plan:
    """Returns the plan below a projection or a filter; without it, as without `scan_below`."""
    return layer.child()


def frame_of(spark: SparkSession, plan: Plan) -> DataFrame:
    """Returns the frame of a plan; without it, as without `scan_below`."""
    return DataFrame(jvm_of(spark).org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


def is_same(plan: Plan, frame: DataFrame) -> bool:
    """Returns whether Spark optimizes a plan and a frame to equal plans; without it, as without `scan_below`."""
    optimizer = frame.sparkSession._jsparkSession.sessionState().optimizer()
    return bool(optimizer.execute(plan).sameResult(optimizer.execute(_analyzed(frame))))


def located_frame(spark: SparkSession, column: str, keys: Sequence[int], places: Sequence[str]) -> DataFrame:
    """Returns a frame with one key per partition, a preferred location for each, and a declared hash partitioning.

    Without it, slots run where Spark first computes them.
    """
    jvm = jvm_of(spark)

    def sequence(values: Iterable[Any]) -> Any:
        several = jvm.java.util.ArrayList()
        for value in values:
            several.add(value)
        return jvm.scala.jdk.javaapi.CollectionConverters.asScala(several).toSeq()

    def row(key: int) -> Any:
        values = java_array(spark, jvm.java.lang.Object, key)
        return jvm.org.apache.spark.sql.catalyst.expressions.GenericInternalRow(values)

    parts = sequence(jvm.scala.Tuple2(row(key), sequence([at])) for key, at in zip(keys, places, strict=True))
    any_type = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("java.lang.Object"))
    session = spark._jsparkSession
    rdd = session.sparkContext().makeRDD(parts, any_type)
    output = _analyzed(spark.range(1).select(f.lit(0).alias(column))).output()
    hashed = jvm.org.apache.spark.sql.catalyst.plans.physical.HashPartitioning(output, len(keys))
    none = jvm.scala.Option.empty()
    arguments = [output, rdd, hashed, sequence([]), False, none, session, none, none]
    plans = jvm.org.apache.spark.sql.execution
    try:
        plan = plans.LogicalRDD(*arguments, False)
    except Py4JError:  # Spark before 4.3
        plan = plans.LogicalRDD(*arguments)
    return frame_of(spark, plan)


def run(frame: DataFrame) -> None:
    """Computes a frame and drops its rows, as part of the micro-batch's execution.

    A query whose workers write does not run without it. Public actions make an execution of their own: it is described
    as text, announced to listeners and collected through a socket.
    """
    frame._jdf.queryExecution().toRdd().count()


def listed(several: Any) -> list[Any]:
    """Returns the elements of a Scala sequence."""
    return [several.apply(place) for place in range(several.size())]


def _analyzed(frame: DataFrame) -> Plan:
    return frame._jdf.queryExecution().analyzed()


def _expression(value: Any) -> Expression:
    column = value.name() if _kind(value) == _COLUMN else None
    return Expression(value.sql(), column, value.deterministic())


def _kind(value: Any) -> str:
    return str(value.getClass().getSimpleName())
