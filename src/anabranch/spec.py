"""The spec file: streams, a query or several, sinks and how to run them, as a frozen value.

`load` either returns a whole `Spec` or raises a SpecError that names the entry by its path (`streams.s0.event_time`)
and says what to write. Unknown entries are refused, because a mistyped one would otherwise be silently without effect.
Relative paths are taken from the folder of the spec file, so a spec means the same from wherever it is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from anabranch.adapt.settings import Settings
from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.choosing import AUTO, DEFAULT_BATCH, PLAN_WORDS, Wishes
from anabranch.ddl import parse_schema
from anabranch.entries import Entry, document, kind
from anabranch.errors import CatalogError, PlanError, SpecError
from anabranch.plan.execution import DEFAULT_EXECUTION, EXECUTION_MODELS, ExecutionModel, execution_model
from anabranch.plan.migration import STRATEGIES
from anabranch.plan.text import parse as parse_plan
from anabranch.schema import Schema
from anabranch.window import parse_duration

_REQUIRED = {
    "streams": "streams: {s0: {format: parquet, path: data/s0, schema: …, event_time: ts}}",
    "query": "query: SELECT a.p FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 10 SECONDS] AS b WHERE a.k = b.k",
    "sink": "sink: {format: parquet, path: out}",
    "checkpoint": "checkpoint: ckpt, a folder that belongs to this query alone",
}
_REQUIRED_OF_SWITCHES = {
    "at_batch": "at_batch: 5, the batch from which the plan holds",
    "plan": 'plan: "((a b) c)"',
}
"""Entries that a spec, and a change of plan in it, cannot do without, with an example of each."""

_MASTER = re.compile(
    r"local(\[(\*|[1-9]\d*)(\s*,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|(spark|k8s)://\S+|yarn"
)
FILE_FORMATS = ("parquet", "csv", "json", "orc", "text", "avro", "xml")


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


def load(path: str | Path) -> Spec:
    """The spec of one query in a YAML file."""
    return _one(load_any(path))


def load_any(path: str | Path) -> Spec | TogetherSpec:
    """The spec in a YAML file, of one query or of several."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(f"spec file '{path}' does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"spec file '{path}' cannot be read", detail=str(error)) from error
    return parse_any(text, folder=file.resolve().parent)


def parse(text: str, *, folder: Path) -> Spec:
    """The spec of one query in a YAML text whose relative paths start at `folder`."""
    return _one(parse_any(text, folder=folder))


def _one(found: Spec | TogetherSpec) -> Spec:
    if isinstance(found, TogetherSpec):
        raise SpecError("the spec has several queries where one is wanted", hint="write 'query' and 'sink' at the top")
    return found


_OF_A_QUERY = "query sink plan limits objective hints stats allow_unbounded late_filters adapt switch"
_OF_A_RUN = "streams checkpoint trigger slots name idle_timeout spark"


def parse_any(text: str, *, folder: Path) -> Spec | TogetherSpec:
    """The spec in a YAML text, of one query or of several, whose relative paths start at `folder`."""
    root = Entry("", document(text))
    if not isinstance(root.value, Mapping) or "queries" not in root.value:
        entries = root.mapping(f"{_OF_A_RUN} {_OF_A_QUERY} execution queries", _REQUIRED)
        return _spec(entries, root, folder)
    required = {key: _REQUIRED[key] for key in ("streams", "checkpoint")}
    shared = root.mapping(f"{_OF_A_RUN} queries", {**required, "queries": "queries: {alerts: {query: …, sink: …}}"})
    queries = shared.pop("queries")
    specs = {}
    for name, entry in queries.named().items():
        if not name.isidentifier():
            raise queries.wrong(f"has a query named '{name}'", "use letters, digits and _, a letter first")
        own = entry.mapping(_OF_A_QUERY, {key: _REQUIRED[key] for key in ("query", "sink")})
        specs[name] = _spec({**shared, **own}, entry, folder)
    if not specs:
        raise queries.wrong("is empty", "write for example queries: {alerts: {query: …, sink: …}}")
    return TogetherSpec(specs)


def _spec(entries: Mapping[str, Entry], own: Entry, folder: Path) -> Spec:
    """A spec from its entries; `own` is what holds those of the query."""
    streams = entries["streams"]
    named = streams.named()
    if not named:
        raise streams.wrong("is empty", "declare at least one stream")
    spec = Spec(
        streams=tuple(_stream(name, entry, folder) for name, entry in named.items()),
        query=entries["query"].text(),
        sink=_sink(entries["sink"], folder),
        checkpoint=entries["checkpoint"].location(folder),
        wishes=_wishes(entries),
    )
    if entry := entries.get("trigger"):
        spec = replace(spec, trigger=_trigger(entry))
    if entry := entries.get("slots"):
        spec = replace(spec, slots=entry.count())
    if entry := entries.get("allow_unbounded"):
        spec = replace(spec, allow_unbounded=entry.flag())
    if entry := entries.get("late_filters"):
        spec = replace(spec, late_filters=tuple(entry.texts()))
    if entry := entries.get("name"):
        spec = replace(spec, name=entry.text())
    if entry := entries.get("idle_timeout"):
        spec = replace(spec, idle_timeout=entry.timeout())
    if entry := entries.get("execution"):
        if entry.text() not in EXECUTION_MODELS:
            raise entry.wrong(f"is '{entry.text()}'", f"write one of {', '.join(EXECUTION_MODELS)}")
        spec = replace(spec, execution=execution_model(entry.text()))
    if "adapt" in own.value:
        # An empty block asks for adaptation as it is by default.
        settings = own.value["adapt"] or {}
        if not isinstance(settings, Mapping):
            entry = Entry(own.inside("adapt"), settings)
            raise entry.wrong(f"is {kind(settings)}", "write for example adapt: {every: 10}")
        Settings.from_mapping(settings)
        spec = replace(spec, adapt=settings)
    if entry := entries.get("switch"):
        spec = replace(spec, switches=_switches(entry))
    if entry := entries.get("spark"):
        spec = replace(spec, spark=_spark(entry))
    return spec


def _spark(entry: Entry) -> SparkSpec:
    entries = entry.mapping("master conf")
    spark = SparkSpec()
    if master := entries.get("master"):
        spark = spark.with_master(master.text())
    if settings := entries.get("conf"):
        for key, value in settings.options():
            spark = spark.with_setting(key, value)
    return spark


def _switches(entry: Entry) -> tuple[SwitchSpec, ...]:
    if not isinstance(entry.value, list):
        raise entry.wrong(f"is {kind(entry.value)}", 'write a list such as [{at_batch: 5, plan: "((a b) c)"}]')
    switches: list[SwitchSpec] = []
    for number, value in enumerate(entry.value):
        each = Entry(f"{entry.path}.{number}", value)
        entries = each.mapping("at_batch plan strategy", _REQUIRED_OF_SWITCHES)
        strategy = entries["strategy"].text() if "strategy" in entries else "auto"
        if strategy not in ("auto", *STRATEGIES):
            hint = f"write one of auto, {', '.join(STRATEGIES)}"
            raise entries["strategy"].wrong(f"is '{strategy}'", hint)
        plan = _plan(entries["plan"])
        if plan in PLAN_WORDS:
            raise entries["plan"].wrong(f"is '{plan}'", 'write the plan out, such as "((a b) c)"')
        at = entries["at_batch"].count()
        if at in (other.at_batch for other in switches):
            raise entries["at_batch"].wrong(f"is {at}, as in another entry", "name each batch once")
        switches.append(SwitchSpec(at, plan, strategy))
    return tuple(switches)


def _stream(name: str, entry: Entry, folder: Path) -> StreamSpec:
    known = "format path table schema event_time watermark options idle_timeout"
    entries = entry.mapping(known, {"event_time": "event_time: ts, the timestamp column that windows count by"})
    event_time = entries["event_time"]
    schema, schema_text = _schema(entries.get("schema"))
    disorder = entries["watermark"].duration() if "watermark" in entries else 0
    stream = StreamSpec(
        name=name,
        format=entries["format"].text() if "format" in entries else None,
        path=entries["path"].location(folder) if "path" in entries else None,
        table=entries["table"].text() if "table" in entries else None,
        schema=schema,
        schema_text=schema_text,
        event_time=event_time.text(),
        disorder=disorder,
        idle_timeout=entries["idle_timeout"].timeout() if "idle_timeout" in entries else None,
        options=entries["options"].options() if "options" in entries else (),
    )
    if stream.table is not None:
        if stream.path is not None or stream.format is not None:
            other = "path" if stream.path is not None else "format"
            raise entry.wrong(f"has both 'table' and '{other}'", "keep one: a table knows its own place and format")
    elif stream.format is None:
        raise entry.missing("format", "format: parquet, or table: name for a registered table")
    elif stream.format in FILE_FORMATS:
        if stream.path is None:
            raise entry.missing("path", "path: data/s0, the folder that new files appear in")
        if stream.schema is None:
            raise entry.missing("schema", 'schema: "ts timestamp, k bigint"; a stream of files does not infer it')
    if schema is not None:
        try:
            StreamDeclaration(name, schema, stream.event_time)
        except CatalogError as error:
            hint = error.hint or f"name one of {', '.join(schema.names)}"
            raise SpecError(f"entry '{event_time.path}': {error.message}", detail=error.detail, hint=hint) from error
    return stream


def _schema(entry: Entry | None) -> tuple[Schema | None, str | None]:
    if entry is None:
        return None, None
    text = entry.text()
    try:
        return parse_schema(text), text
    except ValueError as error:
        raise entry.wrong(
            "is not a list of columns", 'write for example "ts timestamp, k bigint"', str(error)
        ) from error


def _sink(entry: Entry, folder: Path) -> SinkSpec:
    entries = entry.mapping("format path mode options", {"format": "format: parquet"})
    sink = SinkSpec(
        format=entries["format"].text(),
        path=entries["path"].location(folder) if "path" in entries else None,
        options=entries["options"].options() if "options" in entries else (),
    )
    if sink.format in FILE_FORMATS and sink.path is None:
        raise entry.missing("path", "path: out, the folder that results are written to")
    if "mode" in entries and entries["mode"].text() != sink.mode:
        raise entries["mode"].wrong(f"is '{entries['mode'].value}'", "write append: each result is emitted once")
    return sink


def _trigger(entry: Entry) -> Trigger:
    text = entry.text()
    if text == "available_now":
        return AvailableNow()
    try:
        interval = parse_duration(text)
    except ValueError as error:
        hint = "write available_now, or an interval such as 2 seconds"
        raise entry.wrong(f"is '{text}'", hint, str(error)) from error
    if interval < 0:
        raise entry.wrong(f"is negative: '{text}'", "write 0 seconds for batches as fast as they go")
    return Every(interval)


def _wishes(entries: Mapping[str, Entry]) -> Wishes:
    """What the spec says about plans."""
    wishes = AUTO
    if entry := entries.get("plan"):
        wishes = replace(wishes, plan=_plan(entry))
    if entry := entries.get("limits"):
        limits = entry.mapping("cpu memory")
        wishes = wishes.with_limits(**{name: limit.value for name, limit in limits.items()})
    if entry := entries.get("objective"):
        wishes = wishes.with_objective(entry.text())
    if entry := entries.get("hints"):
        hints = entry.mapping("force keep forbid")
        wishes = wishes.with_hints(
            hints["force"].text() if "force" in hints else None,
            hints["keep"].texts() if "keep" in hints else (),
            hints["forbid"].texts() if "forbid" in hints else (),
        )
    if entry := entries.get("stats"):
        wishes = wishes.with_stats(entry.named_values())
    return wishes


def _plan(entry: Entry) -> str:
    text = entry.text()
    if text not in PLAN_WORDS:
        try:
            parse_plan(text)
        except PlanError as error:
            detail = f"{error.message}\n{error.detail}".rstrip()
            hint = 'write auto, mjoin, tree, or a plan such as "((a b) c)"'
            raise entry.wrong("is not a plan", hint, detail) from error
    return text
