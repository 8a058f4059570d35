"""Reads spec files: from a YAML text to a `Spec`.

`load` returns a complete `Spec` or raises a SpecError that names the entry by its path (`streams.s0.event_time`) and
the expected value. Unknown entries are refused, because a misspelt entry would otherwise have no effect. Relative paths
start at the folder of the spec file, so a spec does not depend on the working directory.

Limit: only Spark can check formats, columns and conditions that it alone knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from anabranch.adapt.balancing import Balance, read_slots
from anabranch.adapt.course import STRATEGIES
from anabranch.adapt.schedule import Scheduled, ScheduledMove, ScheduledScale, SplitRequest
from anabranch.adapt.settings import Settings
from anabranch.errors import CatalogError, PlanError, SpecError
from anabranch.functions.own import KINDS
from anabranch.lang.catalog import StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.lang.schema import Schema
from anabranch.migrate.strategies.registry import strategy_names
from anabranch.optimize import Objective
from anabranch.plan.check import PLAN_WORDS
from anabranch.plan.execution import DEFAULT_EXECUTION, EXECUTION_MODELS, ExecutionModel, execution_model
from anabranch.plan.mesh import parse_plan
from anabranch.plan.query_set import ALONE
from anabranch.planning.options import (
    AUTO,
    SHARE,
    TOGETHER,
    PlanOptions,
    SetPlanOptions,
    cpu_limit,
    given_statistics,
    latency_limit,
    limit_entries,
    memory_limit,
)
from anabranch.run.evolving import Evolve
from anabranch.run.formats import FILE_FORMATS
from anabranch.run.kafka.changes import DEBEZIUM, UPSERT
from anabranch.run.shedding import OVERLOADS, read_overload
from anabranch.run.tables import FILES
from anabranch.run.triggers import ALL_AND_END, REAL_TIME, Every, Trigger
from anabranch.settings.entries import Entry, document, optional
from anabranch.spec.model import FunctionSpec, QuerySpec, SinkSpec, SparkSpec, Spec, StreamSpec, SwitchSpec, TableSpec

_REQUIRED = {
    "streams": "streams: {s0: {format: parquet, path: data/s0, schema: …, event_time: ts}}",
    "query": "query: SELECT a.p FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 10 SECONDS] AS b WHERE a.k = b.k",
    "sink": "sink: {format: parquet, path: out}",
    "checkpoint": "checkpoint: ckpt, a folder that belongs to this query alone",
}
_REQUIRED_OF_MOVES = {
    "at_batch": "at_batch: 3, the first batch with the groups in the other slot",
    "to": "to: 1, the slot that receives the groups",
    "groups": "groups: 8, how many, or a list of their numbers",
}
_REQUIRED_OF_SCALES = {
    "at_batch": "at_batch: 6, the first batch with this number of slots",
    "slots": "slots: 4",
}
_REQUIRED_OF_SWITCHES = {
    "at_batch": "at_batch: 5, the first batch with the plan",
    "plan": 'plan: "((a b) c)"',
}
"""Required entries of a spec and of a change of plan, with an example of each."""


_OF_A_QUERY = "query sink plan limits objective hints stats allow_unbounded late_filters adapt switch"
_OF_A_RUN = (
    "streams tables checkpoint spark_checkpoint trigger slots name idle_timeout execution balance moves spark late "
    "functions evolve overload"
)
_OF_A_SET = "limits share"
_EXAMPLE = "queries: {alerts: {query: …, sink: …}}"


def load(path: str | Path) -> Spec:
    """Reads the spec in a YAML file."""
    text, folder = read_text(path)
    return parse(text, folder=folder)


def read_text(path: str | Path) -> tuple[str, Path]:
    """Returns the text of a YAML file and the folder that its relative paths start at."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(f"spec file '{path}' does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"spec file '{path}' cannot be read", detail=str(error)) from error
    return text, file.resolve().parent


def parse_queries(text: str, *, folder: Path) -> dict[str, QuerySpec]:
    """Reads the queries in a YAML text that has only `queries`, or in a whole spec."""
    root = Entry("", document(text))
    if isinstance(root.value, Mapping) and [*root.value] != ["queries"] and "streams" in root.value:
        found = parse(text, folder=folder).queries
        if ALONE in found:
            raise SpecError("the spec has no 'queries', so its query has no name", hint=f"write {_EXAMPLE}")
        return dict(found)
    return _queries(root.mapping("queries", {"queries": _EXAMPLE})["queries"], folder)


def parse(text: str, *, folder: Path) -> Spec:
    """Reads the spec in a YAML text whose relative paths start at `folder`."""
    root = Entry("", document(text))
    if not isinstance(root.value, Mapping) or "queries" not in root.value:
        entries = root.mapping(f"{_OF_A_RUN} {_OF_A_QUERY} queries", _REQUIRED)
        return _spec(entries, {ALONE: _query(entries, root, folder)}, folder)
    for key in ("query", "sink"):
        if key in root.value:
            raise SpecError(
                f"the spec has both '{key}' and 'queries'",
                hint=f"write '{key}' below its query: {_EXAMPLE}",
            )
    entries = root.mapping(f"{_OF_A_RUN} {_OF_A_SET} queries", {**_required("streams checkpoint"), "queries": _EXAMPLE})
    spec = _spec(entries, _queries(entries["queries"], folder), folder)
    return replace(spec, together=_together(entries))


def _together(entries: Mapping[str, Entry]) -> SetPlanOptions:
    limits, of_executors = optional(entries, "limits", lambda entry: limit_entries(entry, "cpu memory"), ({}, False))
    return SetPlanOptions(
        of_executors=of_executors,
        share=optional(entries, "share", lambda entry: entry.choice(SHARE), TOGETHER.share),
        cpu=optional(limits, "cpu", cpu_limit, TOGETHER.cpu),
        memory=optional(limits, "memory", memory_limit, TOGETHER.memory),
    )


def _required(names: str) -> dict[str, str]:
    return {name: _REQUIRED[name] for name in names.split()}


def _queries(block: Entry, folder: Path) -> dict[str, QuerySpec]:
    queries = {}
    for name, entry in block.filled().items():
        if not name.isidentifier():
            raise block.wrong(f"has a query named '{name}'", "use letters, digits and _, a letter first")
        queries[name] = _query(entry.mapping(_OF_A_QUERY, _required("query")), entry, folder)
    if not queries:
        raise block.refused(f"write for example {_EXAMPLE}")
    return queries


def _query(entries: Mapping[str, Entry], block: Entry, folder: Path) -> QuerySpec:
    # An empty 'adapt' is ambiguous (all defaults, or none), so it is refused and not treated as absent.
    adapt = block.below("adapt", block.value["adapt"]) if "adapt" in block.value else None
    return QuerySpec(
        query=entries["query"].text(),
        sink=optional(entries, "sink", lambda entry: read_sink(entry, folder), None),
        plan_options=_plan_options(entries),
        allow_unbounded=optional(entries, "allow_unbounded", Entry.flag, False),
        late_filters=optional(entries, "late_filters", Entry.texts, ()),
        adapt=None if adapt is None else _adapt(adapt),
        switches=optional(entries, "switch", _switches, ()),
    )


def _adapt(entry: Entry) -> Settings | None:
    """Reads `adapt: true` (same as `adapt: {}`), `adapt: false`, or a block of settings."""
    if isinstance(entry.value, bool):
        return Settings() if entry.value else None
    if not isinstance(entry.value, Mapping):
        raise entry.refused("write true, false, or settings such as {every: 10}")
    return Settings.read(entry)


def _spec(entries: Mapping[str, Entry], queries: Mapping[str, QuerySpec], folder: Path) -> Spec:
    streams = entries["streams"].filled()
    if not streams:
        raise entries["streams"].refused("declare at least one stream")
    for name in streams:
        if not name.isidentifier():
            raise entries["streams"].wrong(f"has a stream named '{name}'", "use letters, digits and _, a letter first")
        if taken := next((query for query in queries if query.lower() == name.lower()), None):
            raise SpecError(
                f"a stream and a query are both named '{taken}'",
                hint="give the query another name, also where it is read",
            )
    return Spec(
        streams=tuple(_stream(name, entry, folder) for name, entry in streams.items()),
        tables=_tables(entries["tables"], frozenset(map(str.lower, streams)), folder) if "tables" in entries else (),
        queries=queries,
        checkpoint=entries["checkpoint"].location(folder),
        spark_checkpoint=optional(entries, "spark_checkpoint", lambda given: given.location(folder), None),
        trigger=optional(entries, "trigger", _trigger, ALL_AND_END),
        slots=optional(entries, "slots", read_slots, None),
        name=optional(entries, "name", Entry.text, None),
        idle_timeout=optional(entries, "idle_timeout", read_timeout, None),
        execution=optional(entries, "execution", _execution, DEFAULT_EXECUTION),
        balance=optional(entries, "balance", Balance.read, None),
        moves=optional(entries, "moves", _moves, ()),
        spark=optional(entries, "spark", _spark, SparkSpec()),
        functions=optional(entries, "functions", lambda given: _functions(given, folder), ()),
        late=optional(entries, "late", lambda given: read_sink(given, folder), None),
        overload=optional(entries, "overload", read_overload, OVERLOADS[0]),
        evolve=optional(entries, "evolve", lambda given: Evolve(given.choice(tuple(Evolve))), Evolve.ASK),
    )


def _execution(entry: Entry) -> ExecutionModel:
    return execution_model(entry.choice(tuple(map(str, EXECUTION_MODELS))))


def _functions(entry: Entry, folder: Path) -> tuple[FunctionSpec, ...]:
    found = []
    for name, each in entry.filled().items():
        required = {"python": "python: module:name", "returns": "returns: double"}
        entries = each.mapping("python returns takes kind nulls version", required)
        place = entries["python"].text("write module:name")
        if not all(part.replace(".", "_").isidentifier() for part in place.partition(":")[::2]):
            raise entries["python"].refused("write module:name, such as scores:score")
        found.append(
            FunctionSpec(
                name,
                place,
                entries["returns"].text("write a type, such as double"),
                optional(entries, "takes", Entry.texts, None),
                optional(entries, "kind", lambda given: given.choice(KINDS), "arrow"),
                optional(entries, "nulls", lambda given: given.choice(("skip", "pass")), "skip"),
                optional(entries, "version", Entry.label, ""),
                str(folder),
            )
        )
    return tuple(found)


def read_timeout(entry: Entry) -> str:
    """Returns the timeout as written, after checking that it is valid."""
    entry.timeout()
    return str(entry.value)


def _spark(entry: Entry) -> SparkSpec:
    entries = entry.mapping("master conf")
    spark = SparkSpec()
    if master := entries.get("master"):
        spark = spark.with_master(master.text())
    if settings := entries.get("conf"):
        for key, value in settings.options():
            spark = spark.with_setting(key, value)
    return spark


def _moves(entry: Entry) -> tuple[Scheduled | SplitRequest, ...]:
    moves: list[Scheduled | SplitRequest] = []
    for each in entry.items("[{at_batch: 3, from: 0, to: 1, groups: 8}, {at_batch: 6, slots: 4}]"):
        if isinstance(each.value, Mapping) and {"split", "unite"} & each.value.keys():
            moves.append(_split(each))
            continue
        is_scale = isinstance(each.value, Mapping) and "slots" in each.value
        known = "at_batch slots strategy" if is_scale else "at_batch from to groups strategy"
        required = _REQUIRED_OF_SCALES if is_scale else _REQUIRED_OF_MOVES
        entries = each.mapping(known, required)
        at = entries["at_batch"].count()
        strategy = optional(entries, "strategy", lambda each: each.choice(STRATEGIES), STRATEGIES[0])
        if is_scale:
            moves.append(ScheduledScale(at, entries["slots"].count(), strategy))
            continue
        groups = entries["groups"]
        moves.append(
            ScheduledMove(
                at_batch=at,
                to=_slot(entries["to"]),
                groups=_groups(groups) if isinstance(groups.value, list) else groups.count(),
                sender=optional(entries, "from", _slot, None),
                strategy=strategy,
            )
        )
    return tuple(moves)


def _split(entry: Entry) -> SplitRequest:
    """Reads a scheduled split or unite of a key value."""
    known = entry.mapping("at_batch split unite over key", {"at_batch": "at_batch: 3"})
    if "split" in known and "unite" in known:
        raise known["unite"].refused("a value is either split or united: write two entries of 'moves'")
    named = known.get("split") or known["unite"]
    return SplitRequest(
        at_batch=known["at_batch"].count(),
        value=named.value,
        key=optional(known, "key", lambda each: each.text(), None),
        over=optional(known, "over", _over, None),
        unites="unite" in known,
    )


def _over(entry: Entry) -> int | tuple[int, ...]:
    if isinstance(entry.value, list):
        return tuple(_slot(each) for each in entry.items("[0, 3]"))
    return entry.count("write a number of slots, or a list of them", least=2)


def _slot(entry: Entry) -> int:
    return entry.count("write the number of a slot: 0, 1, …", least=0)


def _groups(entry: Entry) -> tuple[int, ...]:
    hint = "write numbers of partition groups: 0, 1, …"
    return tuple(each.count(hint, least=0) for each in entry.items("[0, 1, 2]"))


def _switches(entry: Entry) -> tuple[SwitchSpec, ...]:
    switches: list[SwitchSpec] = []
    for each in entry.items('[{at_batch: 5, plan: "((a b) c)"}]'):
        entries = each.mapping("at_batch plan strategy", _REQUIRED_OF_SWITCHES)
        strategy = optional(entries, "strategy", lambda given: given.choice(("auto", *strategy_names())), "auto")
        plan = _plan(entries["plan"])
        if plan in PLAN_WORDS:
            raise entries["plan"].refused('write the plan out, such as "((a b) c)"')
        at = entries["at_batch"].count()
        if at in (other.at_batch for other in switches):
            raise entries["at_batch"].wrong(f"is {at}, as in another entry", "name each batch once")
        switches.append(SwitchSpec(at, plan, strategy))
    return tuple(switches)


def _stream(name: str, entry: Entry, folder: Path) -> StreamSpec:
    known = "format path table schema event_time watermark options idle_timeout max_ahead select where columns"
    entries = entry.mapping(known, {"event_time": "event_time: ts, the timestamp column that windows refer to"})
    event_time = entries["event_time"]
    schema = optional(entries, "schema", _schema, None)
    stream = StreamSpec(
        name=name,
        format=optional(entries, "format", Entry.text, None),
        path=optional(entries, "path", lambda given: given.location(folder), None),
        table=optional(entries, "table", Entry.text, None),
        schema=schema,
        schema_text=optional(entries, "schema", Entry.text, None),
        event_time=event_time.text(),
        disorder=optional(entries, "watermark", Entry.duration, None),
        idle_timeout=optional(entries, "idle_timeout", read_timeout, None),
        options=optional(entries, "options", Entry.options, ()),
        max_ahead=optional(entries, "max_ahead", Entry.duration, None),
        select=optional(entries, "select", _select, ()),
        where=optional(entries, "where", lambda given: given.text("write a condition of Spark SQL"), None),
        columns=optional(entries, "columns", _schema, None),
    )
    _check_columns(stream, entries)
    if stream.table is not None:
        if stream.path is not None or stream.format is not None:
            other = "path" if stream.path is not None else "format"
            raise entry.wrong(f"has both 'table' and '{other}'", "keep one: a table has its own location and format")
    elif stream.format is None:
        raise entry.missing("format", "format: parquet, or table: name for a registered table")
    elif stream.format in FILE_FORMATS:
        if stream.path is None:
            raise entry.missing("path", "path: data/s0, the folder in which new files appear")
        if stream.schema is None:
            raise entry.missing("schema", 'schema: "ts timestamp, k bigint"; a stream of files does not infer it')
    if (shown := stream.known_columns) is not None:
        try:
            StreamDeclaration(name, shown, stream.event_time)
        except CatalogError as error:
            hint = error.hint or f"name one of {', '.join(shown.names)}"
            raise SpecError(f"entry '{event_time.path}': {error.message}", detail=error.detail, hint=hint) from error
    return stream


def _select(entry: Entry) -> tuple[tuple[str, str], ...]:
    """Reads columns by name, each a Spark SQL expression."""
    chosen = []
    for name, each in entry.filled().items():
        if not name.isidentifier():
            raise entry.wrong(f"has a column named '{name}'", "use letters, digits and _, a letter first")
        chosen.append((name, each.text("write an expression of Spark SQL, such as payload.user.id")))
    if not chosen:
        raise entry.refused("name at least one column: {user: payload.user.id}")
    return tuple(chosen)


def _check_columns(stream: StreamSpec, entries: Mapping[str, Entry]) -> None:
    """Refuses columns that do not match `select`."""
    names = [name for name, _ in stream.select]
    if stream.columns is not None and not stream.select:
        raise entries["columns"].wrong("stands without 'select'", "write the columns to read as 'schema'")
    if stream.columns is not None and set(stream.columns.names) != set(names):
        raise entries["columns"].wrong(
            f"has {', '.join(stream.columns.names)}",
            f"write the columns of 'select' with their types: {', '.join(names)}",
        )
    if stream.select and stream.event_time not in names:
        raise entries["event_time"].wrong(
            f"is '{stream.event_time}', which is not in 'select'", f"select it, or name one of {', '.join(names)}"
        )


def _tables(entry: Entry, streams: frozenset[str], folder: Path) -> tuple[TableSpec, ...]:
    found = []
    for name, each in entry.filled().items():
        if not name.isidentifier():
            raise entry.wrong(f"has a table named '{name}'", "use letters, digits and _, a letter first")
        if name.lower() in streams:
            raise entry.wrong(f"has a table named '{name}', as a stream is", "give one of them another name")
        found.append(_table(name, each, folder))
    return tuple(found)


def _table(name: str, entry: Entry, folder: Path) -> TableSpec:
    entries = entry.mapping("format path table schema refresh version options", {})
    if "refresh" in entries:
        entries["refresh"].duration()
    table = TableSpec(
        name=name,
        format=optional(entries, "format", Entry.text, None),
        path=optional(entries, "path", lambda given: given.location(folder), None),
        table=optional(entries, "table", Entry.text, None),
        schema=optional(entries, "schema", _schema, None),
        schema_text=optional(entries, "schema", Entry.text, None),
        refresh=optional(entries, "refresh", Entry.text, None),
        version=optional(entries, "version", Entry.text, None),
        options=optional(entries, "options", Entry.options, ()),
    )
    if table.table is not None:
        if table.path is not None or table.format is not None:
            other = "path" if table.path is not None else "format"
            raise entry.wrong(f"has both 'table' and '{other}'", "keep one: a table has its own location and format")
    elif table.format is None:
        raise entry.missing("format", "format: parquet, or table: name for a registered table")
    if table.is_delta and table.path is None:
        raise entry.missing("path", "path: lake/customers, or table: name for a table of Spark's catalog")
    if table.is_delta and table.options:
        raise entry.wrong("has 'options', which format 'delta' does not have", "credentials come from the environment")
    if table.format in (DEBEZIUM, UPSERT) and table.schema is None:
        raise entry.missing("schema", 'schema: "id bigint, rate double", the columns of the rows that change')
    if table.format in (DEBEZIUM, UPSERT) and (table.refresh or table.version):
        raise entry.wrong("has 'refresh' or 'version'", "omit both: the changes are the new versions of the table")
    if table.version == FILES and table.path is None:
        raise entry.missing("path", "path: data/customers, or for version: a query such as SELECT MAX(changed) FROM …")
    return table


def _schema(entry: Entry) -> Schema:
    hint = 'write for example "ts timestamp, k bigint"'
    text = entry.text(hint)
    try:
        return parse_schema(text)
    except ValueError as error:
        raise entry.wrong("is not a list of columns", hint, str(error)) from error


def read_sink(entry: Entry, folder: Path) -> SinkSpec:
    """Reads the entry of a sink."""
    entries = entry.mapping("format path options partition_by", {"format": "format: parquet"})
    sink = SinkSpec(
        format=entries["format"].text(),
        path=optional(entries, "path", lambda given: given.location(folder), None),
        options=optional(entries, "options", Entry.options, ()),
        partition_by=optional(entries, "partition_by", Entry.texts, ()),
    )
    if sink.format in FILE_FORMATS and sink.path is None:
        raise entry.missing("path", "path: out, the folder of the results")
    return sink


def _trigger(entry: Entry) -> Trigger:
    hint = "write available_now, real-time, or an interval such as 2 seconds; 0 seconds for no pause between batches"
    named: dict[object, Trigger] = {"available_now": ALL_AND_END, "real-time": REAL_TIME}
    if isinstance(entry.value, str) and entry.value in named:
        return named[entry.value]
    return Every(entry.duration(hint))


def _plan_options(entries: Mapping[str, Entry]) -> PlanOptions:
    """Reads the options about plans."""
    limits, of_executors = optional(
        entries, "limits", lambda entry: limit_entries(entry, "cpu memory latency"), ({}, False)
    )
    hints = optional(entries, "hints", lambda entry: entry.mapping("keep forbid optimizer"), {})
    return PlanOptions(
        plan=optional(entries, "plan", _plan, AUTO.plan),
        given=optional(entries, "stats", given_statistics, AUTO.given),
        cpu=optional(limits, "cpu", cpu_limit, AUTO.cpu),
        memory=optional(limits, "memory", memory_limit, AUTO.memory),
        latency=optional(limits, "latency", latency_limit, AUTO.latency),
        of_executors=of_executors,
        objective=optional(entries, "objective", lambda entry: Objective.parse(entry.text()), AUTO.objective),
        keep=optional(hints, "keep", Entry.texts, ()),
        forbid=optional(hints, "forbid", Entry.texts, ()),
        optimizer=optional(hints, "optimizer", Entry.text, None),
    )


def _plan(entry: Entry) -> str:
    hint = 'write auto, mjoin, tree, jtree, mesh, or a plan such as "((a b) c)"'
    text = entry.text(hint)
    if text not in PLAN_WORDS:
        try:
            parse_plan(text)
        except PlanError as error:
            detail = f"{error.message}\n{error.detail}".rstrip()
            raise entry.wrong("is not a plan", hint, detail) from error
    return text
