"""A Redis stream as a Spark source: `format: redis-stream`, with `url`, `stream` and a schema.

An entry of the stream is a row; its fields are columns, as text that is cast to the column's type. The column `_id` has
the identifier of the entry. A missing field is NULL.

    spark.dataSource.register(RedisStreams)                       # a spec does so by itself
    spark.readStream.format("redis-stream").schema("ts timestamp, k bigint").option("stream", "orders").load()

Invariant: a batch that is read again has the same rows. An offset is the last identifier and the number of entries up
to it, so entries trimmed before they were read are detected: the query ends with an error, and nothing is skipped.

Limit: one task reads a stream. Entries must stay in the stream until their batch is committed. Needs Spark 4.2 or
newer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from anabranch.errors import CatalogError, HostError, installation
from anabranch.spark.arrow_schema import from_spark

FORMAT = "redis-stream"
FIRST = "0-0"
ID = "_id"
READ = 10_000
"""The number of entries per request."""
MOST = "maxEntriesPerTrigger"


class RedisStreams(DataSource):
    """The data source registered with Spark."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> RedisReader:
        options = dict(self.options)
        if not options.get("stream"):
            raise CatalogError(f"a source of format '{FORMAT}' has no stream", hint="give option('stream', …)")
        most = options.get(MOST.lower()) or options.get(MOST)
        if most is not None and not (most.isdecimal() and int(most) > 0):
            raise CatalogError(f"option '{MOST}' is '{most}'", hint="give a whole number of at least 1")
        return RedisReader(
            options.get("url", "redis://127.0.0.1:6379"), options["stream"], schema, None if most is None else int(most)
        )


class Span(InputPartition):
    """The entries between two identifiers (exclusive, inclusive), and their number."""

    def __init__(self, after: str, upto: str, entries: int) -> None:
        super().__init__(0)
        self.after, self.upto, self.entries = after, upto, entries


class RedisReader(DataSourceStreamReader):
    """Plans batches in Spark's process for the source, and reads them in a worker."""

    def __init__(self, url: str, stream: str, schema: StructType, most: int | None) -> None:
        self._url, self._stream, self._schema, self._most = url, stream, schema, most

    def initialOffset(self) -> dict[str, Any]:
        return {"id": FIRST, "entries": 0}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:
        """Returns the end of the batch: all entries, or at most as many as the option allows."""
        last, taken = start["id"], 0
        while self._most is None or taken < self._most:
            count = READ if self._most is None else min(READ, self._most - taken)
            several = self._client().xrange(self._stream, f"({last}", "+", count)
            if not several:
                break
            last, taken = _text(several[-1][0]), taken + len(several)
        return {"id": last, "entries": start["entries"] + taken}

    def reportLatestOffset(self) -> dict[str, Any]:
        """Returns the end of the stream, from which progress reports the backlog."""
        client = self._client()
        found = client.xrevrange(self._stream, "+", "-", 1)
        if not found:
            return self.initialOffset()
        added = client.xinfo_stream(self._stream).get("entries-added") or client.xlen(self._stream)
        return {"id": _text(found[0][0]), "entries": int(added)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [Span(start["id"], end["id"], end["entries"] - start["entries"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)
        client, last, found = self._client(), partition.after, 0
        while found < partition.entries:
            several = client.xrange(self._stream, f"({last}", partition.upto, READ)
            if not several:
                break
            last, found = _text(several[-1][0]), found + len(several)
            yield self._rows(several)
        if found != partition.entries:
            raise HostError(
                f"stream '{self._stream}' of Redis has {found} of the {partition.entries} entries of the batch",
                detail=f"between {partition.after} and {partition.upto}; they were trimmed before they were read",
                hint="keep entries longer (MAXLEN, MINID), or start with an empty checkpoint folder",
            )

    def _rows(self, several: list[tuple[bytes, dict[bytes, bytes]]]) -> pa.RecordBatch:
        arrow = from_spark(self._schema, self._stream).to_arrow()
        columns = []
        for field in arrow:
            key = field.name.encode()
            values: list[str | None]
            if field.name == ID:
                values = [_text(identifier) for identifier, _ in several]
            else:
                values = [None if (value := entry.get(key)) is None else _text(value) for _, entry in several]
            columns.append(self._column(pa.array(values, pa.string()), field))
        return pa.RecordBatch.from_arrays(columns, schema=arrow)

    def _column(self, values: pa.Array, field: pa.Field) -> pa.Array:
        try:
            if pa.types.is_timestamp(field.type) and field.type.tz is not None:
                return _instants(values, field.type)
            return values.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise CatalogError(
                f"field '{field.name}' of stream '{self._stream}' of Redis is not a {field.type}",
                detail=str(error).partition("\n")[0],
                hint="read it as string and cast it with 'select', or correct the schema",
            ) from error

    def _client(self) -> Any:
        try:
            import redis
        except ModuleNotFoundError as error:
            raise HostError("the package redis is not installed", hint=installation("redis")) from error
        return redis.Redis.from_url(self._url)


def _instants(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Casts texts to instants; those without a zone are in UTC."""
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return values.cast(pa.timestamp("us")).cast(kind)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
