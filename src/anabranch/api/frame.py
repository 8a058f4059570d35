"""Queries in the style of DataFrames: `session.frame(df).alias("i").join(…).groupBy(…).agg(…).writeStream`.

A frame is a value with the clauses of a SELECT; every method returns another frame. Invariant: a frame becomes a query
through its CQL text, so text and methods have the same meaning. Limit: each input has an alias, which is also the name
of its stream.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from anabranch.api.query import ContinuousQuery
from anabranch.api.writer import ContinuousQueryWriter
from anabranch.errors import CatalogError, SpecError
from anabranch.spark import session as spark_host
from anabranch.spark.internals.columns import column_text

if TYPE_CHECKING:
    from anabranch.api.session import Session

_JOINS = {
    "inner": "JOIN",
    "cross": "CROSS JOIN",
    "left": "LEFT JOIN",
    "leftouter": "LEFT JOIN",
    "right": "RIGHT JOIN",
    "rightouter": "RIGHT JOIN",
    "full": "FULL JOIN",
    "outer": "FULL JOIN",
    "fullouter": "FULL JOIN",
    "semi": "LEFT SEMI JOIN",
    "leftsemi": "LEFT SEMI JOIN",
    "anti": "LEFT ANTI JOIN",
    "leftanti": "LEFT ANTI JOIN",
}
JoinCondition: TypeAlias = "str | spark_host.Column | list[str] | list[spark_host.Column] | tuple[str, ...]"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


_INTERNAL = frozenset({"session", "inputs", "source", "conditions", "selected", "keys", "query"})
"""The parts of a frame, which completion leaves out."""


@dataclass(frozen=True, repr=False)
class Frame:
    """A query that is built by methods, like a PySpark DataFrame.

    Examples
    --------
    >>> shown = session.frame(impressions).alias("i")  # doctest: +SKIP
    >>> clicked = session.frame(clicks).alias("c")  # doctest: +SKIP
    >>> on = "c.id = i.id AND c.ts BETWEEN i.ts AND i.ts + INTERVAL 20 SECONDS"
    >>> counts = shown.join(clicked, on, "left").groupBy(F.window("i.ts", "1 minute")).count()  # doctest: +SKIP
    >>> counts.writeStream.format("memory").queryName("counts").start()  # doctest: +SKIP
    """

    session: Session
    inputs: Mapping[str, spark_host.DataFrame]
    """The DataFrames by alias; the alias of a single one may still be missing ("")."""
    source: str = ""
    """The FROM clause; empty before the first join."""
    conditions: tuple[str, ...] = ()
    selected: tuple[str, ...] = ()
    keys: tuple[str, ...] | None = None
    """The group keys; None for a query without groups."""

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def __repr__(self) -> str:
        return f"Frame[{self.text}]"

    def alias(self, alias: str) -> Frame:
        """Names the input, for conditions and columns such as `i.ts`."""
        if self.source or not isinstance(alias, str) or _IDENTIFIER.fullmatch(alias) is None:
            raise SpecError(
                f"'{alias}' cannot be the alias of this frame",
                hint="give each input an alias of letters, digits and _ before it is joined",
            )
        (frame,) = self.inputs.values()
        return replace(self, inputs={alias: frame})

    def join(self, other: Frame, on: JoinCondition | None = None, how: str = "inner") -> Frame:
        """Joins another input on a condition, as SQL text or as a Column, or on the names of columns of both sides."""
        kind = _JOINS.get(how.lower().replace("_", ""))
        if kind is None:
            raise SpecError(f"a join of kind '{how}' is not supported", hint=f"use one of {', '.join(_JOINS)}")
        if not isinstance(other, Frame) or other.source or other.conditions or other.selected:
            raise SpecError("a join takes an input", hint="write join(session.frame(df).alias('b'), …)")
        (name,) = other.inputs
        if name in self.inputs:
            raise SpecError(f"two inputs have the alias '{name}'", hint="give each input a different alias")
        condition = "" if on is None else f" {_on(on)}"
        kind = "CROSS JOIN" if on is None and kind == "JOIN" else kind
        return replace(self, inputs={**self.inputs, **other.inputs}, source=f"{self._from} {kind} {name}{condition}")

    def where(self, condition: str | spark_host.Column) -> Frame:
        """Keeps the results for which a condition is true."""
        if self.selected:
            raise SpecError("where comes before select and groupBy", hint="filter first, then select")
        return replace(self, conditions=(*self.conditions, _sql(condition)))

    filter = where

    def select(self, *columns: str | spark_host.Column) -> Frame:
        """Sets the columns of the results."""
        return replace(self, selected=tuple(map(_sql, columns)))

    def groupBy(self, *keys: str | spark_host.Column) -> Frame:
        """Groups the results; one of the keys is `F.window(event_time, size, slide)`."""
        return replace(self, keys=tuple(map(_sql, keys)))

    def agg(self, *aggregates: str | spark_host.Column) -> Frame:
        """Sets the aggregates of the groups; the results have the keys and then the aggregates, as in PySpark."""
        if self.keys is None:
            raise SpecError("agg needs groups", hint="write groupBy(…).agg(…)")
        return replace(self, selected=(*self.keys, *map(_sql, aggregates)))

    def count(self) -> Frame:
        """Counts the rows of each group."""
        return self.agg("COUNT(*) AS count")

    @property
    def text(self) -> str:
        """The query as CQL."""
        where = f" WHERE {' AND '.join(f'({each})' for each in self.conditions)}" if self.conditions else ""
        group = f" GROUP BY {', '.join(self.keys)}" if self.keys else ""
        return f"SELECT {', '.join(self.selected) or '*'} FROM {self._from}{where}{group}"

    @cached_property
    def query(self) -> ContinuousQuery:
        """The compiled query."""
        session = self.session.without_queries()
        for name, frame in self.inputs.items():
            if not name:
                raise SpecError("a frame has no alias", hint="write session.frame(df).alias('a')")
            if not frame.isStreaming:
                session.table(name, frame)
                continue
            times = list(spark_host.watermarks(frame))
            if len(times) != 1:
                raise CatalogError(
                    f"frame '{name}' has no event time",
                    detail=f"its columns with a watermark are {', '.join(times) or 'none'}",
                    hint="write withWatermark('ts', '10 seconds') on the DataFrame",
                )
            session.register(name, frame, times[0])
        return session.sql(self.text)

    @property
    def schema(self) -> spark_host.StructType:
        """The columns of the results, as a Spark schema."""
        return self.query.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns of the results."""
        return list(self.schema.names)

    def printSchema(self, level: int | None = None) -> None:
        """Prints the columns of the results as a tree."""
        self.query.printSchema(level)

    def explain(self, stage: str = "choice", plan: str = "auto") -> None:
        """Prints one compilation stage; see `ContinuousQuery.explanation`."""
        self.query.explain(stage, plan)

    @property
    def writeStream(self) -> ContinuousQueryWriter:
        """A new writer, which sets the sink and the run and ends with `start()`."""
        return self.query.writeStream

    @property
    def _first(self) -> str:
        return next(iter(self.inputs))

    @property
    def _from(self) -> str:
        return self.source or self._first


def _on(given: JoinCondition) -> str:
    """Returns the join condition as CQL: a name, or several, as in PySpark, are columns of both sides."""
    several: list[str | spark_host.Column] = list(given) if isinstance(given, list | tuple) else [given]
    if not several:
        raise SpecError("a join on no columns", hint="name the columns of both sides, or leave 'on' out")
    if all(isinstance(each, str) and _IDENTIFIER.fullmatch(each.strip()) for each in several):
        return f"USING ({', '.join(map(str, several))})"
    first, *more = map(_sql, several)
    return f"ON {' AND '.join(f'({each})' for each in (first, *more))}" if more else f"ON {first}"


def _sql(given: str | spark_host.Column) -> str:
    return given if isinstance(given, str) else column_text(given)
