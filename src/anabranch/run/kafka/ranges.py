"""Ranges of offsets of Kafka's partitions as pieces of a micro-batch, read with librdkafka.

A range is `topic/partition/start-stop`; Spark's offsets say which ranges a batch has (`spark/kafka_source`).
Invariant: reading a range again gives the same records in the same order, or a named error: offsets that retention has
removed are never skipped. Offsets without a record (marks of transactions) are no error. Limit: the records of the
ranges of one task are in memory at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from anabranch.errors import CatalogError, HostError, installation
from anabranch.lang.schema import TIMESTAMP
from anabranch.run.files.form import Columns, Footer, Part
from anabranch.run.kafka.json_values import parse

CORRUPT = "_corrupt_record"
"""The column with the text of a bad record."""
FAIL, DROP = "fail", "drop"
"""What a bad record does: it ends the query, or it becomes a row without a time, which is not admitted."""
MOST_AT_ONCE = 10_000
"""Records that are asked of librdkafka at once."""
POLL_SECONDS = 0.05
"""How long librdkafka waits for as many as it is asked for: offsets without a record cost this time."""
QUIET = {"log_level": "2"}
"""librdkafka writes some twenty lines a second to standard error while a broker is away; errors name it anyway."""
Offsets: TypeAlias = dict[str, dict[str, int]]
"""Offsets by topic and partition, in the format of Spark's connector."""
Message: TypeAlias = Any
Client: TypeAlias = Any


@dataclass(frozen=True, order=True)
class OffsetRange:
    """The records of a partition from `start` up to, and without, `stop`."""

    topic: str
    partition: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.start}-{self.stop}"

    @classmethod
    def of(cls, text: str) -> OffsetRange:
        topic, partition, ends = text.split("/")
        start, _, stop = ends.partition("-")
        return cls(topic, int(partition), int(start), int(stop))


def ranges_between(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """Returns the ranges of a batch; a partition that is missing from `start` begins at 0."""
    return [
        OffsetRange(topic, int(partition), begin, stop)
        for topic, several in sorted(end.items())
        for partition, stop in sorted(several.items(), key=lambda each: int(each[0]))
        if (begin := start.get(topic, {}).get(partition, 0)) < stop
    ]


@dataclass(frozen=True)
class RecordColumn:
    """A column that comes from the record itself."""

    types: tuple[pa.DataType, ...]
    """The first is that of Spark's connector."""
    of: Callable[[Sequence[Message]], list[Any]]


def _timestamps(messages: Sequence[Message]) -> list[int | None]:
    times = [message.timestamp() for message in messages]
    return [None if kind == 0 else milliseconds * 1000 for kind, milliseconds in times]


RECORD_COLUMNS: Mapping[str, RecordColumn] = {
    "key": RecordColumn((pa.binary(), pa.string()), lambda several: [each.key() for each in several]),
    "value": RecordColumn((pa.binary(), pa.string()), lambda several: [each.value() for each in several]),
    "topic": RecordColumn((pa.string(),), lambda several: [each.topic() for each in several]),
    "partition": RecordColumn((pa.int32(),), lambda several: [each.partition() for each in several]),
    "offset": RecordColumn((pa.int64(),), lambda several: [each.offset() for each in several]),
    "timestamp": RecordColumn((TIMESTAMP,), _timestamps),
    # librdkafka counts from 1, and has 0 where there is none.
    "timestampType": RecordColumn((pa.int32(),), lambda several: [each.timestamp()[0] - 1 for each in several]),
}
"""The columns of Spark's connector; among columns that are read from JSON, their names begin with `_`."""
RAW = pa.schema([(name, column.types[0]) for name, column in RECORD_COLUMNS.items()])
"""The columns of a stream that declares none."""


@dataclass(frozen=True)
class KafkaForm:
    """How the records of some topics are read; a form of pieces as those of files (`run/files/form`)."""

    settings: Mapping[str, str] = field(repr=False)
    """Of librdkafka; may hold secrets."""
    columns: pa.Schema
    """All columns of the stream: whether a record is good does not depend on those that are read."""
    bad_records: str = FAIL
    timeout: float = 120.0
    """The seconds after which a range that stays incomplete is an error."""

    @property
    def whole(self) -> Columns:
        """All columns of the stream."""
        return dict(zip(self.columns.names, self.columns.types, strict=True))

    def between(self, start: Offsets, end: Offsets) -> list[str]:
        """Returns the ranges of a batch, as texts."""
        return list(map(str, ranges_between(start, end)))

    def can_hold(self, kind: pa.DataType) -> bool:
        """Returns whether a column can be read; the source has refused other types."""
        return True

    def look_into(self, path: str, wanted: Columns) -> Footer:
        """Returns a range as one part; the broker is not asked."""
        found = OffsetRange.of(path)
        return Footer((found.stop - found.start,))

    def read(self, path: str, wanted: Columns, parts: Sequence[int] | None = None) -> pa.Table:
        return self.table(fetched([OffsetRange.of(path)], self.settings, self.timeout), wanted)

    def read_several(self, pieces: Sequence[Part], wanted: Columns) -> Iterator[pa.Table]:
        """Yields the columns of several ranges, which are fetched together."""
        ranges = [OffsetRange.of(path) for path, _ in pieces]
        yield self.table(fetched(ranges, self.settings, self.timeout), wanted)

    def table(self, messages: Sequence[Message], wanted: Columns) -> pa.Table:
        """Returns records as columns."""
        if self.columns == RAW:
            return pa.table({name: _column(RECORD_COLUMNS[name], messages, RAW.field(name).type) for name in wanted})
        own = [each for each in self.columns if each.name != CORRUPT and each.name[1:] not in RECORD_COLUMNS]
        texts = [message.value() for message in messages]
        parsed = parse(texts, pa.schema(own))
        if parsed.bad and self.bad_records == FAIL:
            raise _bad_record(messages, parsed.bad)
        found = {}
        for name, kind in wanted.items():
            if name == CORRUPT:
                found[name] = pa.array(
                    [_readable(texts[place]) if place in parsed.bad else None for place in range(len(texts))], kind
                )
            elif name[1:] in RECORD_COLUMNS and name[:1] == "_":
                values = _column(RECORD_COLUMNS[name[1:]], messages, kind)
                found[name] = _without_bad(values, parsed.bad) if name == "_timestamp" else values
            else:
                found[name] = parsed.rows.column(name)
        return pa.table(found)


def fetched(ranges: Iterable[OffsetRange], settings: Mapping[str, str], timeout: float) -> list[Message]:
    """Reads ranges; returns their records by range, in the order of their offsets."""
    turns: list[dict[tuple[str, int], OffsetRange]] = []
    for each in ranges:
        # A consumer is at one place of a partition at a time.
        place = each.topic, each.partition
        turn = next((turn for turn in turns if place not in turn), None)
        if turn is None:
            turns.append(turn := {})
        turn[place] = each
    return [message for turn in turns for message in _fetched(turn, settings, timeout)]


def _fetched(
    ranges: Mapping[tuple[str, int], OffsetRange], settings: Mapping[str, str], timeout: float
) -> list[Message]:
    partition = client_library().TopicPartition
    left = {place: each for place, each in ranges.items() if each.stop > each.start}
    found: dict[tuple[str, int], list[Message]] = {place: [] for place in left}
    if not left:
        return []
    reader = consumer(settings)
    reader.assign([partition(each.topic, each.partition, each.start) for each in left.values()])
    until, trouble = time.monotonic() + timeout, ""
    try:
        while left:
            missing = sum(each.stop - each.start for each in left.values()) - sum(len(found[place]) for place in left)
            messages = reader.consume(max(1, min(missing, MOST_AT_ONCE)), POLL_SECONDS)
            complete = _take(messages, left, found)
            if complete:
                reader.incremental_unassign([partition(*place) for place in complete])
            trouble = next((each.error().str() for each in messages if _is_trouble(each)), trouble)
            if any(message.error() is None for message in messages):
                until = time.monotonic() + timeout
            elif time.monotonic() > until:
                raise _incomplete(left.values(), found, timeout, trouble)
    finally:
        reader.unassign()
    return [message for several in found.values() for message in several]


def _take(
    messages: Sequence[Message],
    left: dict[tuple[str, int], OffsetRange],
    found: Mapping[tuple[str, int], list[Message]],
) -> set[tuple[str, int]]:
    """Adds records to those of their ranges, and removes complete ranges; returns the partitions of these."""
    before = set(left)
    good = [message for message in messages if message.error() is None]
    ends = {(message.topic(), message.partition()): message for message in messages if message.error() is not None}
    for place, several in _by_place(good).items():
        whole = left.get(place)
        if whole is not None:
            inside = [message for message in several if message.offset() < whole.stop]
            found[place].extend(inside)
            if several[-1].offset() >= whole.stop - 1:
                del left[place]
    for place, message in ends.items():
        _end(message, place, left)
    return before - left.keys()


def _by_place(messages: Sequence[Message]) -> dict[tuple[str, int], Sequence[Message]]:
    """Divides records by partition; those of one partition mostly come together."""
    if not messages:
        return {}
    places = [(message.topic(), message.partition()) for message in messages]
    if places.count(places[0]) == len(places):
        return {places[0]: messages}
    several: dict[tuple[str, int], list[Message]] = {}
    for place, message in zip(places, messages, strict=True):
        several.setdefault(place, []).append(message)
    return dict(several)


def _is_trouble(message: Message) -> bool:
    """Whether an event is an error that may pass, such as a broker that is away."""
    from confluent_kafka import KafkaError

    return message.error() is not None and message.error().code() != KafkaError._PARTITION_EOF


def _end(message: Message, place: tuple[str, int], left: dict[tuple[str, int], OffsetRange]) -> None:
    """Takes an event of a partition: its end, or an error."""
    from confluent_kafka import KafkaError

    whole, error = left.get(place), message.error()
    if whole is None and place[0] is not None:
        return  # a partition whose range is complete
    if error.code() == KafkaError._PARTITION_EOF:
        # The last offsets of the range may be marks of transactions, which are no records.
        if whole is not None and message.offset() >= whole.stop:
            del left[place]
    elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise HostError(
            f"Kafka no longer has the records '{whole}' of a batch",
            detail=f"retention, or a new topic of that name, has removed them: {error.str()}",
            hint="keep records for longer than the query can stand still; to go on without them, start with an empty "
            "checkpoint folder and startingOffsets",
        )
    elif error.fatal() or error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION):
        raise HostError(
            f"topic '{place[0]}' cannot be read", detail=error.str(), hint="look at the rights, and at the broker's log"
        )


def consumer(settings: Mapping[str, str]) -> Client:
    """Returns the consumer of this process for a cluster; opening one takes longer than reading a small range."""
    key = tuple(sorted(settings.items()))
    if key not in _consumers:
        _consumers[key] = _opened(settings)
    return _consumers[key]


_consumers: dict[tuple[tuple[str, str], ...], Client] = {}


def _opened(settings: Mapping[str, str]) -> Client:
    own = {
        **QUIET,
        "group.id": "anabranch",  # required, and not used: Spark keeps the offsets
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "enable.partition.eof": "true",
        "auto.offset.reset": "error",
        # A broker answers one request at a time: a long wait for one partition would hold up the next range.
        "fetch.wait.max.ms": "1",
        # Records beyond a range are fetched in vain, so few are fetched ahead, and more as soon as these are taken.
        "queued.min.messages": "10000",
        "fetch.queue.backoff.ms": "1",
    }
    kafka = client_library()
    try:
        return kafka.Consumer({**own, **settings})
    except (kafka.KafkaException, ValueError, TypeError) as error:
        raise CatalogError(
            "the options of a Kafka source are refused by librdkafka",
            detail=str(error),
            hint="write kafka.bootstrap.servers, and other settings by librdkafka's names: kafka.security.protocol, "
            "kafka.sasl.username, kafka.ssl.ca.location, …",
        ) from error


def client_library() -> Any:
    """Returns the module `confluent_kafka`."""
    try:
        import confluent_kafka
    except ModuleNotFoundError as error:
        raise HostError("the package confluent-kafka is not installed", hint=installation("kafka")) from error
    return confluent_kafka


def _incomplete(
    left: Iterable[OffsetRange], found: Mapping[tuple[str, int], Sequence[Message]], timeout: float, trouble: str
) -> HostError:
    several = sorted(left)
    first = several[0]
    read = found[first.topic, first.partition]
    at = read[-1].offset() + 1 if read else first.start
    return HostError(
        f"Kafka did not deliver the records '{first}' within {timeout:g} seconds",
        detail=f"reading stopped at offset {at}; {len(several)} ranges are incomplete{trouble and f'; {trouble}'}",
        hint="the batch is not committed; start the query again once the brokers answer",
    )


def _column(column: RecordColumn, messages: Sequence[Message], kind: pa.DataType) -> pa.Array:
    values = column.of(messages)
    if kind == TIMESTAMP:
        return pa.array(values, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
    if kind == pa.string():
        values = [_readable(value) if isinstance(value, bytes) else value for value in values]
    return pa.array(values, kind)


def _readable(text: bytes | None) -> str:
    return "" if text is None else text.decode(errors="replace")


def _without_bad(values: pa.Array, bad: Mapping[int, str]) -> pa.Array:
    """A bad record has no time, so it is not admitted."""
    if not bad:
        return values
    is_bad = np.zeros(len(values), bool)
    is_bad[list(bad)] = True
    return pa.compute.if_else(pa.array(is_bad), pa.scalar(None, values.type), values)


def _bad_record(messages: Sequence[Message], bad: Mapping[int, str]) -> CatalogError:
    place = min(bad)
    message = messages[place]
    return CatalogError(
        f"record {message.offset()} of partition {message.partition()} of topic '{message.topic()}' is not one of its "
        "stream",
        detail=f"{bad[place]}; {len(bad)} of {len(messages)} records of the batch are bad",
        hint="correct the schema; or count such records, and write them to the sink for late rows if there is one, "
        "with the option badRecords: drop",
    )
