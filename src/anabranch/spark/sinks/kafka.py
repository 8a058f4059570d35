"""Results as records of a Kafka topic, written by the workers with librdkafka.

The value of a record is the row as a JSON object; its key is made of the columns `keyColumns`, if there are any. The
headers name the query, the batch and the attempt, so that readers can drop what a repeated batch writes again.

Invariant: when a batch is committed, the brokers have acknowledged all of its records. Limit: at least once. A batch
that a crash interrupts is written again under another attempt, and readers see the records of both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from anabranch.errors import SinkError
from anabranch.run.kafka.ranges import QUIET, client_library
from anabranch.run.sink_settings import KafkaTarget
from anabranch.spark.sinks.sink import Batch, Sink

QUERY, BATCH, ATTEMPT = "anabranch.query", "anabranch.batch", "anabranch.attempt"
"""The headers of a record."""
FLUSH_SECONDS = 120.0


@dataclass(frozen=True)
class KafkaSink(Sink):
    """Writes results into a topic."""

    target: KafkaTarget

    @property
    def title(self) -> str:
        return f"'kafka' at '{self.target.topic}'"

    @property
    def workers_write(self) -> bool:
        return True

    def stage(self, batch: Batch) -> KafkaWriter:
        return KafkaWriter(self.target, batch)


@dataclass(frozen=True)
class KafkaWriter:
    """Opens a producer in a worker."""

    target: KafkaTarget
    batch: Batch

    @contextmanager
    def open(self, part: str) -> Iterator[KafkaRecords]:
        own = producer(self.target.settings)
        records = KafkaRecords(self.target, self.batch, own)
        try:
            yield records
            records.finish()
        except BaseException:
            # Records that were not sent must not go out with those of a later batch.
            _producers.pop(_key(self.target.settings), None)
            own.purge()
            raise


@dataclass
class KafkaRecords:
    """The records of one worker."""

    target: KafkaTarget
    batch: Batch
    producer: Any
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        batch = self.batch
        named = ((QUERY, batch.query_id), (BATCH, str(batch.number)), (ATTEMPT, batch.attempt))
        self._headers = [(name, value.encode()) for name, value in named]

    def write(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            value = as_json(row)
            key = as_json({name: row[name] for name in self.target.keys}) if self.target.keys else None
            self._send(value, key)
        self._refuse_failures()

    def finish(self) -> None:
        """Waits until the brokers have all records."""
        waiting = self.producer.flush(FLUSH_SECONDS)
        self._refuse_failures()
        if waiting:
            raise SinkError(
                f"Kafka did not take {waiting} records for topic '{self.target.topic}' in time",
                hint="the batch is not committed; start the query again when the brokers respond",
            )

    def _send(self, value: bytes, key: bytes | None) -> None:
        while True:
            try:
                self.producer.produce(self.target.topic, value, key, headers=self._headers, on_delivery=self._note)
                self.producer.poll(0)
                return
            except BufferError:
                self.producer.poll(0.1)
            except client_library().KafkaException as error:
                # A record that is too large, for example.
                self.failed.append(str(error))
                return

    def _note(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))

    def _refuse_failures(self) -> None:
        if self.failed:
            raise SinkError(
                f"Kafka refused {len(self.failed)} records for topic '{self.target.topic}'",
                detail=self.failed[0],
                hint="the batch is not committed; check the topic, the permissions and the size of the records",
            )


def producer(settings: Mapping[str, str]) -> Any:
    """Returns the producer of this process for a cluster; opening one takes longer than writing a batch."""
    key = _key(settings)
    if key not in _producers:
        kafka = client_library()
        try:
            _producers[key] = kafka.Producer({**QUIET, "enable.idempotence": "true", "linger.ms": "5", **settings})
        except (kafka.KafkaException, ValueError, TypeError) as error:
            raise SinkError(
                "the options of the 'kafka' sink are refused by librdkafka",
                detail=str(error),
                hint="write kafka.bootstrap.servers, and other settings under librdkafka's names",
            ) from error
    return _producers[key]


_producers: dict[tuple[tuple[str, str], ...], Any] = {}


def _key(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(settings.items()))


def as_json(row: Mapping[str, Any]) -> bytes:
    """Encodes a row as a JSON object that Kafka streams can read back: times in UTC, bytes as text."""
    return json.dumps(row, default=_value, ensure_ascii=False).encode()


def _value(value: Any) -> Any:
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return value.decode(errors="replace")
    return str(value)
