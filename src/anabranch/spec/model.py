"""A spec as a frozen value: streams, the queries over them, and run settings; `spec.file` reads it.

A spec always has a mapping of queries. A file with `query` and `sink` at the top level is a set of one, whose query has
no name (`ALONE`).

Invariant: a spec that was loaded is complete and valid, apart from what only Spark can check.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from anabranch.adapt.balancing import Balance
from anabranch.adapt.schedule import Scheduled, SplitRequest
from anabranch.adapt.settings import Settings
from anabranch.cql import streams_read
from anabranch.errors import SpecError
from anabranch.functions import own_function
from anabranch.lang.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lang.expr import OwnFunction
from anabranch.lang.schema import Schema
from anabranch.plan.execution import DEFAULT_EXECUTION, ExecutionModel
from anabranch.plan.slots import SlotRange
from anabranch.planning.options import AUTO, DEFAULT_BATCH, TOGETHER, PlanOptions, SetPlanOptions
from anabranch.run.evolving import Evolve
from anabranch.run.formats import FILE_FORMATS
from anabranch.run.shedding import Overload
from anabranch.run.triggers import ALL_AND_END, Trigger

_MASTER = re.compile(
    r"local(\[(\*|[1-9]\d*)(\s*,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|(spark|k8s)://\S+|yarn"
)


@dataclass(frozen=True)
class StreamSpec:
    """The source of a stream; durations are in microseconds."""

    name: str
    format: str | None
    path: str | None
    table: str | None
    schema: Schema | None
    schema_text: str | None
    event_time: str
    disorder: int | None = None
    """None if the spec does not set it."""
    idle_timeout: str | None = None
    """As written: a duration, or `none`."""
    options: tuple[tuple[str, str], ...] = ()
    max_ahead: int | None = None
    select: tuple[tuple[str, str], ...] = ()
    """Columns of the stream as Spark expressions over the source's columns; empty for all of them."""
    where: str | None = None
    """A Spark condition on the source's rows."""
    columns: Schema | None = None
    """The columns of `select` with their types, if the spec lists them."""

    @property
    def known_columns(self) -> Schema | None:
        """The columns that queries see; None if only Spark knows them."""
        return self.columns if self.select else self.schema


@dataclass(frozen=True)
class TableSpec:
    """The source of a table, and its refresh interval in microseconds."""

    name: str
    format: str | None
    path: str | None
    table: str | None
    schema: Schema | None
    schema_text: str | None
    refresh: str | None = None
    """As written: a duration."""
    version: str | None = None
    """The method of detecting changes: `files`, or a query."""
    options: tuple[tuple[str, str], ...] = ()

    @property
    def is_delta(self) -> bool:
        """True for a Delta table that is read by its path."""
        return (self.format or "").lower() == "delta"


@dataclass(frozen=True)
class SinkSpec:
    """The location and format of results."""

    format: str
    path: str | None
    options: tuple[tuple[str, str], ...] = ()
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class FunctionSpec:
    """A user-defined function: the location of its code, and its types."""

    name: str
    python: str
    """`module:name`; the folder of the spec file is searched first."""
    returns: str
    takes: tuple[str, ...] | None = None
    kind: str = "arrow"
    nulls: str = "skip"
    version: str = ""
    folder: str = ""

    def load(self) -> OwnFunction:
        """Imports the function."""
        module, _, name = self.python.partition(":")
        if self.folder and self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        try:
            code = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise SpecError(
                f"entry 'functions.{self.name}.python' is '{self.python}', which cannot be imported",
                detail=str(error),
                hint="write module:name; the folder of the spec file is searched first",
            ) from error
        return own_function(
            self.name, code, self.returns, takes=self.takes, kind=self.kind, nulls=self.nulls, version=self.version
        )


@dataclass(frozen=True)
class SwitchSpec:
    """A plan change scheduled at a batch."""

    at_batch: int
    plan: str
    strategy: str = "auto"


@dataclass(frozen=True)
class SparkSpec:
    """The Spark master that runs the query, and settings of its session."""

    master: str | None = None
    """None for all cores of this machine."""
    settings: tuple[tuple[str, str], ...] = ()

    def with_master(self, master: str) -> SparkSpec:
        if _MASTER.fullmatch(master) is None:
            raise SpecError(
                f"'{master}' is not a valid Spark master",
                hint="write local[4], local[*], spark://host:7077, yarn or k8s://host:443",
            )
        return replace(self, master=master)

    def with_setting(self, key: str, value: str) -> SparkSpec:
        """Returns the spec with one more setting, which replaces an earlier one of that name."""
        if key == "spark.master":
            raise SpecError("'spark.master' is not accepted as a setting", hint="write master: local[4], or --master")
        if not key.startswith("spark."):
            raise SpecError(f"'{key}' is not a setting of Spark", hint=f"did you mean 'spark.{key}'?")
        return replace(self, settings=tuple({**dict(self.settings), key: value}.items()))


@dataclass(frozen=True)
class QuerySpec:
    """One query: its text, its sink, and the choice and changes of its plan."""

    query: str
    sink: SinkSpec | None
    """None for a query that only other queries read."""
    plan_options: PlanOptions = AUTO
    allow_unbounded: bool = False
    late_filters: tuple[str, ...] = ()
    """Filters checked by joins: relations, or texts of single conditions."""
    adapt: Settings | None = None
    """None for a fixed plan."""
    switches: tuple[SwitchSpec, ...] = ()


@dataclass(frozen=True)
class Spec:
    """Streams, the queries over them, and run settings."""

    streams: tuple[StreamSpec, ...]
    queries: Mapping[str, QuerySpec]
    checkpoint: str
    spark_checkpoint: str | None = None
    """The location of Spark's part of the checkpoint; None for the same location."""
    trigger: Trigger = ALL_AND_END
    slots: SlotRange | None = None
    name: str | None = None
    idle_timeout: str | None = None
    """As written: a duration, or `none`."""
    execution: ExecutionModel = DEFAULT_EXECUTION
    balance: Balance | None = None
    moves: tuple[Scheduled | SplitRequest, ...] = ()
    together: SetPlanOptions = TOGETHER
    """For a spec with `queries`: shared joins and joint limits."""
    spark: SparkSpec = SparkSpec()
    functions: tuple[FunctionSpec, ...] = ()
    late: SinkSpec | None = None
    """The side output for late rows and rows too far in the future; None to only count them."""
    tables: tuple[TableSpec, ...] = ()
    overload: Overload = "keep"
    """The behaviour of an overloaded run."""
    evolve: Evolve = Evolve.ASK
    """The behaviour if the queries of the checkpoint have changed."""

    @property
    def only(self) -> QuerySpec:
        """The query of a spec with a single query."""
        if len(self.queries) > 1:
            raise SpecError("the spec has several queries, not one", hint="write 'query' and 'sink' at the top")
        return next(iter(self.queries.values()))

    def each(self, change: Callable[[QuerySpec], QuerySpec]) -> Spec:
        """Returns the spec with every query changed."""
        return replace(self, queries={name: change(query) for name, query in self.queries.items()})

    def in_order(self) -> list[str]:
        """Returns the names of the queries in dependency order; refuses cycles."""
        names = {name.lower(): name for name in self.queries}
        reads = {
            name: {names[each.lower()] for each in streams_read(query.query) if each.lower() in names}
            for name, query in self.queries.items()
        }
        for name, query in self.queries.items():
            if query.sink is None and not any(name in read for other, read in reads.items() if other != name):
                raise SpecError(
                    f"query '{name}' has no sink, and no other query reads it",
                    hint=f"give it a sink: {{format: parquet, path: out/{name}}}, or omit it",
                )
        ordered: list[str] = []
        while len(ordered) < len(reads):
            ready = [name for name, read in reads.items() if name not in ordered and read <= set(ordered)]
            if not ready:
                circle = _circle({name: read for name, read in reads.items() if name not in ordered})
                raise SpecError(
                    f"the queries {' -> '.join(circle)} read one another",
                    detail="each result would depend on itself",
                    hint="let one of them read streams instead",
                )
            ordered += ready
        return ordered

    @property
    def has_all_columns(self) -> bool:
        """True if Spark reads exactly the columns that the spec names, so that Spark need not be asked."""
        sources: tuple[StreamSpec | TableSpec, ...] = (*self.streams, *self.tables)
        is_whole = all(each.format in FILE_FORMATS and each.schema is not None for each in sources)
        return is_whole and not any(stream.select for stream in self.streams)

    @property
    def seconds_between_batches(self) -> float:
        """The batch interval assumed when choosing plans; the default if the trigger has none."""
        return self.trigger.seconds or DEFAULT_BATCH

    def catalog(self) -> Catalog:
        """Returns the streams for the binder; every stream must have its schema in the spec."""
        catalog = Catalog()
        for function in self.functions:
            catalog.define(function.load())
        for stream in self.streams:
            if stream.known_columns is None:
                missing = "columns" if stream.select else "schema"
                raise SpecError(
                    f"entry 'streams.{stream.name}.{missing}' is missing",
                    detail="a query is explained without Spark, so the source cannot provide its columns",
                    hint=f'write the columns, for example {missing}: "ts timestamp, k bigint"; or use --sample',
                )
            declared = StreamDeclaration(stream.name, stream.known_columns, stream.event_time, stream.disorder or 0)
            catalog.register(declared)
        for table in self.tables:
            if table.schema is None:
                raise SpecError(
                    f"entry 'tables.{table.name}.schema' is missing",
                    detail="a query is explained without Spark, so the source cannot provide its columns",
                    hint='write the columns, for example schema: "k bigint, name string"',
                )
            catalog.register_table(TableDeclaration(table.name, table.schema))
        return catalog


def _circle(reads: Mapping[str, set[str]]) -> list[str]:
    """Returns a cycle of queries that read one another; the first name is repeated at the end."""
    path = [min(reads)]
    while path[-1] not in path[:-1]:
        path.append(min(reads[path[-1]] & reads.keys()))
    return path[path.index(path[-1]) :]
