"""Converts a streaming frame to a scan of a source with projections and filters that the engine can compute.

A frame over a scan is converted layer by layer. Spark prints an expression as SQL text, CQL parses the text, and the
parsed expression is given back to Spark, which must plan it exactly like the user's own. Only then may the engine
compute it instead of Spark, because both evaluators agree on every expression of CQL.

Invariant: a converted frame has the rows that Spark would compute. Limit: a frame with an expression outside CQL is not
converted (None), and only Spark can read it. Plans are read by private calls of Spark (`internals.plans`); callers
handle versions of Spark without these calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from anabranch.cql import bind_expression
from anabranch.errors import AnabranchError
from anabranch.lang.expr import Column, Expr, can_fail, conjuncts, transform
from anabranch.lang.schema import Schema
from anabranch.spark.arrow_schema import from_spark
from anabranch.spark.expressions import quote, to_column
from anabranch.spark.internals.plans import (
    Expression,
    Plan,
    Source,
    child_of,
    condition_of,
    frame_of,
    is_filter,
    is_same,
    outputs_of,
    scan_below,
    source_of_scan,
)

_MOST_LAYERS = 8
_TYPED = re.compile(r"\b(\d+(?:\.\d+)?(?:E-?\d+)?)(?:D|L|BD)\b")
"""A number with the suffix of its type, which Spark prints but CQL does not accept."""
_STREAM = "stream"


@dataclass(frozen=True)
class Scan:
    """A frame as columns and conditions over the columns of a source."""

    source: Source
    schema: StructType
    """The columns of the source."""
    made: Mapping[str, Expr]
    """The columns of the frame, as expressions over those of the source."""
    conditions: tuple[Expr, ...] = ()
    """The conditions that rows of the source must satisfy, in the order of their evaluation."""


def source_of(frame: DataFrame) -> Source | None:
    """Returns the source that a frame reads, regardless of its projections and filters; None for several sources."""
    found = scan_below(frame)
    return None if found is None else source_of_scan(found[0])


def scan_of(frame: DataFrame) -> Scan | None:
    """Converts a frame; returns None if only Spark can compute its rows."""
    found = scan_below(frame)
    if found is None or len(found[1]) > _MOST_LAYERS:
        return None
    scan, layers = found
    session = frame.sparkSession
    try:
        schema = frame_of(session, scan).schema if layers else frame.schema
        made: dict[str, Expr] = dict(_columns(schema))
        conditions: tuple[Expr, ...] = ()
        for layer in layers:
            below = frame_of(session, child_of(layer))
            if is_filter(layer):
                asked = _condition(layer, below)
                conditions += tuple(_over(each, made) for each in conjuncts(asked))
            else:
                computed = _projection(layer, below)
                made = {name: _over(each, made) for name, each in computed.items()}
    except (AnabranchError, _NotUnderstood):
        return None
    return Scan(source_of_scan(scan), schema, made, conditions)


def made_column(made: Expr, name: str) -> SparkColumn:
    """Returns a column of a frame over the columns of its source; a column that is only renamed may have any type."""
    return (f.col(quote(made.name)) if isinstance(made, Column) else to_column(made)).alias(name)


class _NotUnderstood(Exception):
    """A part of a plan cannot be expressed in CQL."""


def _columns(schema: StructType) -> dict[str, Column]:
    """Returns the columns of a frame; refuses names that differ only in case."""
    fields = from_spark(schema, _STREAM)
    if len({name.lower() for name in fields.names}) < len(fields.names):
        raise _NotUnderstood
    return {field.name: Column(_STREAM, field.name, field.type, field.nullable) for field in fields}


def _projection(layer: Plan, below: DataFrame) -> dict[str, Expr]:
    fields = from_spark(below.schema, _STREAM)
    known = _columns(below.schema)
    outputs = outputs_of(layer)
    if outputs is None or len({name for name, _ in outputs}) < len(outputs):
        raise _NotUnderstood
    found: dict[str, Expr] = {
        name: _expression(value, fields, below) if value.column is None else known[value.column]
        for name, value in outputs
    }
    _require_same(layer, below.select(*(made_column(each, name) for name, each in found.items())))
    return found


def _condition(layer: Plan, below: DataFrame) -> Expr:
    found = _expression(condition_of(layer), from_spark(below.schema, _STREAM), below)
    _require_same(layer, below.where(to_column(found)))
    return found


def _expression(value: Expression, fields: Schema, below: DataFrame) -> Expr:
    """Parses the SQL text that Spark prints for an expression."""
    if not value.is_deterministic:
        raise _NotUnderstood
    found = bind_expression(_TYPED.sub(r"\1", value.sql), _STREAM, fields)
    is_ansi = str(below.sparkSession.conf.get("spark.sql.ansi.enabled")).lower() == "true"
    if can_fail(found) and not is_ansi:
        raise _NotUnderstood
    return found


def _require_same(layer: Plan, ours: DataFrame) -> None:
    """Raises an error if Spark plans our expressions differently from those of the layer."""
    if not is_same(layer, ours):
        raise _NotUnderstood


def _over(made: Expr, below: Mapping[str, Expr]) -> Expr:
    """Returns an expression with its columns replaced by the expressions that compute them."""
    return transform(made, lambda node: below[node.name] if isinstance(node, Column) else node)
