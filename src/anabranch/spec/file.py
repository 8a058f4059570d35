"""Reads spec files: from a YAML text to a `Spec`, or to one of several queries.

`load` either returns a whole `Spec` or raises a SpecError that names the entry by its path (`streams.s0.event_time`)
and says what to write. Unknown entries are refused, because a mistyped one would otherwise be silently without effect.
Relative paths are taken from the folder of the spec file, so a spec means the same from wherever it is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from anabranch.adapt.settings import Settings
from anabranch.catalog import StreamDeclaration
from anabranch.choosing import AUTO, PLAN_WORDS, Wishes
from anabranch.ddl import parse_schema
from anabranch.entries import Entry, document, kind
from anabranch.errors import CatalogError, PlanError, SpecError
from anabranch.host.formats import FILE_FORMATS
from anabranch.plan.difference import STRATEGIES
from anabranch.plan.execution import EXECUTION_MODELS, execution_model
from anabranch.plan.mesh import parse_plan
from anabranch.schema import Schema
from anabranch.spec.model import (
    AvailableNow,
    Every,
    SinkSpec,
    SparkSpec,
    Spec,
    StreamSpec,
    SwitchSpec,
    TogetherSpec,
    Trigger,
)
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
    for key in ("query", "sink"):
        if key in root.value:
            raise SpecError(
                f"the spec has both '{key}' and 'queries'",
                hint=f"write '{key}' below the query it is of: queries: {{alerts: {{query: …, sink: …}}}}",
            )
    required = {key: _REQUIRED[key] for key in ("streams", "checkpoint")}
    shared = root.mapping(f"{_OF_A_RUN} queries", {**required, "queries": "queries: {alerts: {query: …, sink: …}}"})
    queries = shared.pop("queries")
    specs = {}
    for name, entry in queries.filled().items():
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
    named = streams.filled()
    if not named:
        raise streams.wrong("is empty", "declare at least one stream")
    for name in named:
        if not name.isidentifier():
            raise streams.wrong(f"has a stream named '{name}'", "use letters, digits and _, a letter first")
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
            raise entry.wrong(f"is {kind(settings)}", "write adapt: {}, or for example adapt: {every: 10}")
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
    hint = 'write for example "ts timestamp, k bigint"'
    text = entry.text(hint)
    try:
        return parse_schema(text), text
    except ValueError as error:
        raise entry.wrong("is not a list of columns", hint, str(error)) from error


def _sink(entry: Entry, folder: Path) -> SinkSpec:
    entries = entry.mapping("format path mode options partition_by", {"format": "format: parquet"})
    sink = SinkSpec(
        format=entries["format"].text(),
        path=entries["path"].location(folder) if "path" in entries else None,
        options=entries["options"].options() if "options" in entries else (),
        partition_by=entries["partition_by"].texts() if "partition_by" in entries else (),
    )
    if sink.format in FILE_FORMATS and sink.path is None:
        raise entry.missing("path", "path: out, the folder that results are written to")
    if "mode" in entries and entries["mode"].text() != sink.mode:
        raise entries["mode"].wrong(f"is '{entries['mode'].value}'", "write append: each result is emitted once")
    return sink


def _trigger(entry: Entry) -> Trigger:
    hint = "write available_now, or an interval such as 2 seconds"
    text = entry.text(hint)
    if text == "available_now":
        return AvailableNow()
    try:
        interval = parse_duration(text)
    except ValueError as error:
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
    hint = 'write auto, mjoin, tree, mesh, or a plan such as "((a b) c)"'
    text = entry.text(hint)
    if text not in PLAN_WORDS:
        try:
            parse_plan(text)
        except PlanError as error:
            detail = f"{error.message}\n{error.detail}".rstrip()
            raise entry.wrong("is not a plan", hint, detail) from error
    return text
