"""The settings of a sink, checked without Spark, so that `explain` refuses the same settings as a run.

Invariant: a sink is created only from settings that have passed `check_sink`. Limit: for a format that is not listed
here, only Spark can check that it exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from anabranch.errors import SpecError
from anabranch.lang.schema import Schema, is_integer, is_text, type_name
from anabranch.run.formats import FILE_FORMATS

KNOWN_FORMATS = FILE_FORMATS | {"memory", "console", "jdbc", "noop", "kafka", "delta", "iceberg"}
"""Formats that are always available, and those of common packages."""
BATCH, KEYS = "batchColumn", "keyColumns"
_OURS = (BATCH.lower(), KEYS.lower(), "dbtable")
_ICEBERG = ("table", "catalog", "compression")
_ROWS = "numRows"
COMPRESSIONS = {name: name for name in ("none", "snappy", "gzip", "zstd", "lz4_raw")} | {"uncompressed": "none"}
"""Arrow's compression names by Spark's names, for compressions that both support."""


@dataclass(frozen=True)
class SinkSettings:
    """The requested settings of a sink: format, location and options."""

    format: str
    path: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """All options except `path`."""
    partition_by: tuple[str, ...] = ()
    name: str | None = None
    """The name of the query."""

    @classmethod
    def of(
        cls,
        format: str,
        options: Mapping[str, str],
        path: str | None = None,
        partition_by: tuple[str, ...] = (),
        name: str | None = None,
    ) -> SinkSettings:
        """Returns the settings; takes the path from the options if there is no other."""
        rest = {key: value for key, value in options.items() if key.lower() != "path"}
        target = path or next((value for key, value in options.items() if key.lower() == "path"), None)
        return cls(format, target, rest, partition_by, name)


@dataclass(frozen=True)
class JdbcTable:
    """A database table with exactly-once delivery; `options` are Spark's connection options."""

    table: str
    options: Mapping[str, str]
    batch_column: str | None
    keys: tuple[str, ...]


@dataclass(frozen=True)
class IcebergTarget:
    """A table of an Iceberg catalog; `properties` are those of the catalog."""

    table: str
    catalog: str
    properties: Mapping[str, str]


@dataclass(frozen=True)
class KafkaTarget:
    """A topic; `settings` are librdkafka's, and may hold secrets."""

    topic: str
    keys: tuple[str, ...]
    settings: Mapping[str, str] = field(repr=False)


def check_sink(sink: SinkSettings, schema: Schema) -> None:
    """Refuses settings that are invalid for results with these columns."""
    require_columns(sink.partition_by, schema)
    match sink.format.lower():
        case "memory" if sink.name is None:
            raise SpecError("the memory sink has no name", hint="set queryName(): it names the table to read from")
        case "console":
            console_rows(sink.options)
        case "jdbc":
            jdbc_table(sink, schema)
        case "delta":
            _require_lake(sink, schema)
            if sink.path is None:
                raise SpecError("the 'delta' sink has no path", hint="give start(path) or option('path', …)")
            if unknown := sorted(key for key in sink.options if key.lower() != "compression"):
                raise SpecError(
                    f"the 'delta' sink has no option '{unknown[0]}'",
                    hint="it takes 'compression' only; credentials of object storage come from the environment",
                )
        case "kafka":
            kafka_target(sink, schema)
        case "iceberg":
            _require_lake(sink, schema)
            iceberg_target(sink)
        case format if format in FILE_FORMATS and sink.path is None:
            raise SpecError(f"the '{sink.format}' sink has no path", hint="give start(path) or option('path', …)")


def console_rows(options: Mapping[str, str]) -> int:
    """Returns the number of rows of a batch that the console sink prints."""
    given = next((value for key, value in options.items() if key.lower() == _ROWS.lower()), "20")
    if not str(given).isdecimal():
        raise SpecError(f"{_ROWS} of the 'console' sink is '{given}'", hint="write a whole number, such as 20")
    return int(given)


def jdbc_table(sink: SinkSettings, schema: Schema) -> JdbcTable | None:
    """Returns the table with exactly-once delivery; None if the options select Spark's plain writer."""
    lower = {key.lower(): value for key, value in sink.options.items()}
    batch_column, keys = lower.get(BATCH.lower()), lower.get(KEYS.lower())
    is_plain = batch_column is None and keys is None
    name = lower.get("dbtable") or (None if is_plain else sink.path)
    for option, value in (("url", lower.get("url")), ("dbtable", name)):
        if not value:
            raise SpecError(f"the 'jdbc' sink has no {option}", hint=f"give option('{option}', …)")
    if is_plain:
        return None
    if batch_column is not None and keys is not None:
        raise SpecError(f"the 'jdbc' sink has both {BATCH} and {KEYS}", hint="give one of them")
    assert name is not None
    columns = () if keys is None else _keys("jdbc", keys, schema)
    if batch_column is not None and schema.find(batch_column) is not None:
        raise SpecError(f"{BATCH} '{batch_column}' is a column of the results", hint="give it a name of its own")
    rest = {key: value for key, value in sink.options.items() if key.lower() not in _OURS}
    return JdbcTable(name, rest, batch_column, columns)


def _keys(format: str, text: str, schema: Schema) -> tuple[str, ...]:
    columns = tuple(key.strip() for key in text.split(",") if key.strip())
    if not columns:
        raise SpecError(
            f"{KEYS} of the '{format}' sink names no column", hint="name the columns of a key of the results"
        )
    found = []
    for column in columns:
        if (each := schema.find(column)) is None:
            raise SpecError(
                f"key column '{column}' is not in the SELECT list",
                detail=f"the query selects {', '.join(schema.names)}",
                hint="select it, or use another key",
            )
        found.append(each.name)
    return tuple(found)


def kafka_target(sink: SinkSettings, schema: Schema) -> KafkaTarget:
    """The topic of a Kafka sink, with the columns of its keys."""
    lower = {key.lower(): value for key, value in sink.options.items()}
    settings = {key.removeprefix("kafka."): value for key, value in lower.items() if key.startswith("kafka.")}
    topic = lower.get("topic") or sink.path
    if unknown := sorted(key for key in lower if not key.startswith("kafka.") and key not in ("topic", KEYS.lower())):
        raise SpecError(
            f"the 'kafka' sink has no option '{unknown[0]}'", hint=f"it has topic, {KEYS} and settings kafka.…"
        )
    for name, value in (("kafka.bootstrap.servers", settings.get("bootstrap.servers")), ("topic", topic)):
        if not value:
            raise SpecError(f"the 'kafka' sink has no {name}", hint=f"give option('{name}', …)")
    assert topic is not None
    keys = lower.get(KEYS.lower())
    return KafkaTarget(topic, () if keys is None else _keys("kafka", keys, schema), settings)


def iceberg_target(sink: SinkSettings) -> IcebergTarget:
    """Returns the table and the catalog of an Iceberg sink; all other options are properties of the catalog."""
    lower = {key.lower(): value for key, value in sink.options.items()}
    table = lower.get("table") or sink.path
    if not table or "." not in table.strip("."):
        raise SpecError(
            "the 'iceberg' sink has no table" if not table else f"'{table}' is not the name of an Iceberg table",
            hint="give option('table', 'namespace.name')",
        )
    properties = {key: value for key, value in sink.options.items() if key.lower() not in _ICEBERG}
    return IcebergTarget(table, lower.get("catalog", "default"), properties)


def compression(options: Mapping[str, str]) -> str:
    """Returns the Arrow name of the compression of a lake table's Parquet files."""
    given = next((value for key, value in options.items() if key.lower() == "compression"), "snappy").lower()
    if given not in COMPRESSIONS:
        raise SpecError(
            f"'{given}' is not a compression of Parquet files", hint=f"write one of {', '.join(sorted(COMPRESSIONS))}"
        )
    return COMPRESSIONS[given]


def _require_lake(sink: SinkSettings, schema: Schema) -> None:
    """Refuses columns that a Delta or Iceberg table cannot have."""
    compression(sink.options)
    for column in schema:
        if pa.types.is_duration(column.type) or pa.types.is_null(column.type):
            raise SpecError(
                f"column '{column.name}' is of type {type_name(column.type)}",
                detail=f"a '{sink.format}' table does not have this type",
                hint="cast it in the SELECT list",
            )
    for name in sink.partition_by:
        found = schema.find(name)
        assert found is not None
        kind = found.type
        if not (is_integer(kind) or is_text(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind)):
            raise SpecError(
                f"partition column '{found.name}' is of type {type_name(kind)}",
                hint="partition a table by integers, texts, booleans or dates, such as CAST(ts AS DATE) AS day",
            )


def require_columns(partition_by: tuple[str, ...], schema: Schema) -> None:
    """Refuses partition columns that the query does not select."""
    for column in partition_by:
        if schema.find(column) is None:
            raise SpecError(
                f"partition column '{column}' is not in the SELECT list",
                detail=f"the query selects {', '.join(schema.names)}",
                hint="select it, or partition by another column",
            )
    if partition_by and len(partition_by) == len(schema):
        raise SpecError("every selected column is a partition column", hint="leave one to be written into the files")
