"""A spec as a frozen value: streams, a query or several, sinks and how to run them; `spec.file` reads it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.choosing import AUTO, DEFAULT_BATCH, Wishes
from anabranch.errors import SpecError
from anabranch.plan.execution import DEFAULT_EXECUTION, ExecutionModel
from anabranch.schema import Schema

_MASTER = re.compile(
    r"local(\[(\*|[1-9]\d*)(\s*,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|(spark|k8s)://\S+|yarn"
)


@dataclass(frozen=True)
class StreamSpec:
    """Where a stream comes from; durations are microseconds."""

    name: str
    format: str | None
    path: str | None
    table: str | None
    schema: Schema | None
    schema_text: str | None
    event_time: str
    disorder: int = 0
    idle_timeout: str | None = None
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class SinkSpec:
    """Where results go."""

    format: str
    path: str | None
    mode: str = "append"
    options: tuple[tuple[str, str], ...] = ()
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class AvailableNow:
    """Take what is there in several batches, then stop."""


@dataclass(frozen=True)
class Every:
    """A batch at every interval of processing time, until stopped."""

    interval: int


Trigger: TypeAlias = AvailableNow | Every


@dataclass(frozen=True)
class SwitchSpec:
    """A change of plan at a batch that is known beforehand."""

    at_batch: int
    plan: str
    strategy: str = "auto"


@dataclass(frozen=True)
class SparkSpec:
    """Which Spark runs the query, and settings of its session."""

    master: str | None = None
    """None for all cores of this machine."""
    settings: tuple[tuple[str, str], ...] = ()

    def with_master(self, master: str) -> SparkSpec:
        if _MASTER.fullmatch(master) is None:
            raise SpecError(
                f"master '{master}' is none that Spark knows",
                hint="write local[4], local[*], spark://host:7077, yarn or k8s://host:443",
            )
        return replace(self, master=master)

    def with_setting(self, key: str, value: str) -> SparkSpec:
        """One more setting, in place of an earlier one of that name."""
        if key == "spark.master":
            raise SpecError("setting 'spark.master' is said as a master", hint="write master: local[4], or --master")
        if not key.startswith("spark."):
            raise SpecError(f"setting '{key}' is none of Spark's", hint=f"did you mean 'spark.{key}'?")
        return replace(self, settings=tuple({**dict(self.settings), key: value}.items()))


@dataclass(frozen=True)
class Spec:
    """A query with everything it needs to run."""

    streams: tuple[StreamSpec, ...]
    query: str
    sink: SinkSpec
    checkpoint: str
    trigger: Trigger = AvailableNow()
    slots: int | None = None
    wishes: Wishes = AUTO
    allow_unbounded: bool = False
    late_filters: tuple[str, ...] = ()
    """Filters that joins check: relations, or texts of single conditions."""
    name: str | None = None
    idle_timeout: str | None = None
    execution: ExecutionModel = DEFAULT_EXECUTION
    adapt: Mapping[str, object] | None = None
    """The settings of adaptation as written, which are in order; None to keep the plan."""
    switches: tuple[SwitchSpec, ...] = ()
    spark: SparkSpec = SparkSpec()

    @property
    def seconds_between_batches(self) -> float:
        """What a choice reckons with; batches as fast as they go, or until all is read, count as the default."""
        match self.trigger:
            case Every(interval) if interval > 0:
                return interval / 1e6
        return DEFAULT_BATCH

    def catalog(self) -> Catalog:
        """The streams as the binder knows them; every stream must have its schema written down."""
        catalog = Catalog()
        for stream in self.streams:
            if stream.schema is None:
                raise SpecError(
                    f"entry 'streams.{stream.name}.schema' is missing",
                    detail="a query is explained without Spark, so its columns cannot be asked from the source",
                    hint='write the columns down, for example schema: "ts timestamp, k bigint"',
                )
            catalog.register(StreamDeclaration(stream.name, stream.schema, stream.event_time, stream.disorder))
        return catalog


@dataclass(frozen=True)
class TogetherSpec:
    """Several queries that run as one; in all that is not of one query alone their specs agree."""

    queries: Mapping[str, Spec]

    @property
    def common(self) -> Spec:
        """A spec from which to read what all have in common."""
        return next(iter(self.queries.values()))

    def each(self, change: Callable[[Spec], Spec]) -> TogetherSpec:
        """The same change made to the spec of every query."""
        return TogetherSpec({name: change(spec) for name, spec in self.queries.items()})
