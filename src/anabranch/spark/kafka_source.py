"""Topics of Kafka as a Spark source that needs no connector, with the options of Spark's connector.

    spark.dataSource.register(KafkaTopics)                        # a spec with `format: kafka` does so by itself
    spark.readStream.format("anabranch-kafka").schema("ts timestamp, k bigint").option("subscribe", "orders")…

Values are JSON objects with the columns of the schema; without one, the columns are those of Spark's connector.
Spark keeps the offsets, in the connector's format. The source plans batches with librdkafka and reads ranges of offsets
in tasks (`run/kafka/ranges`); readers of ours read them without the JVM where they can (`spark/file_streams`).
Invariant: a batch that is read again has the same records, or the query ends with an error. Limit: values in JSON, and
topics that are not compacted. Needs Spark 4.2 or newer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from anabranch.errors import CatalogError, HostError
from anabranch.lang.schema import Schema
from anabranch.run.kafka.json_values import require_types
from anabranch.run.kafka.ranges import (
    CORRUPT,
    DROP,
    FAIL,
    QUIET,
    RAW,
    RECORD_COLUMNS,
    KafkaForm,
    Offsets,
    client_library,
    ranges_between,
)
from anabranch.spark.arrow_schema import from_spark, to_spark
from anabranch.spark.failure import lacks_connector
from anabranch.spark.source_options import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    count_of,
    one_of,
    require_limits,
)

FORMAT = "anabranch-kafka"
"""Spark keeps the name `kafka` for its connector, even where that is missing."""
EARLIEST, LATEST = "earliest", "latest"
REQUEST_SECONDS = 30.0
"""Seconds within which a broker must list offsets."""
_KAFKA = "kafka."
_POLL = "kafkaConsumer.pollTimeoutMs"
_MOST = "maxOffsetsPerTrigger"
_KNOWN = {
    name.lower(): name for name in ("subscribe", "subscribePattern", "startingOffsets", _MOST, "badRecords", _POLL)
}
_IN_SPARK = {name.lower(): name for name in ("assign", "startingTimestamp", "failOnDataLoss", "minPartitions")}


@dataclass(frozen=True)
class KafkaOptions:
    """The validated options of a source."""

    settings: Mapping[str, str] = field(repr=False)
    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    starting: str = LATEST
    most: int | None = None
    """The maximum number of records in a batch."""
    bad_records: str = FAIL
    timeout: float = 120.0

    @classmethod
    def of(cls, given: Mapping[str, str]) -> KafkaOptions:
        lowered = {name.lower(): value for name, value in given.items()}
        settings = {name[len(_KAFKA) :]: value for name, value in lowered.items() if name.startswith(_KAFKA)}
        own = {name: value for name, value in lowered.items() if not name.startswith(_KAFKA)}
        _require_known(own)
        if not settings.get("bootstrap.servers"):
            raise CatalogError("a Kafka source has no brokers", hint='give option("kafka.bootstrap.servers", …)')
        if ("subscribe" in own) == ("subscribepattern" in own):
            raise CatalogError(
                "a Kafka source needs either 'subscribe' or 'subscribePattern'", hint="subscribe: orders,returns"
            )
        return cls(
            settings,
            frozenset(filter(None, (each.strip() for each in own.get("subscribe", "").split(",")))),
            own.get("subscribepattern"),
            own.get("startingoffsets", LATEST),
            None if _MOST.lower() not in own else count_of(_MOST, own[_MOST.lower()]),
            one_of("badRecords", own.get("badrecords", FAIL), (FAIL, DROP)),
            count_of(_POLL, own.get(_POLL.lower(), "120000")) / 1000,
        )


class KafkaTopics(DataSource):
    """The data source registered with Spark."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return to_spark(Schema.from_arrow(RAW))

    def streamReader(self, schema: StructType) -> KafkaStream:
        require_limits("the Kafka source", "Spark's connector on Spark 4.1")
        return KafkaStream(KafkaOptions.of(dict(self.options)), schema)


def open_topics(spark: SparkSession, columns: str | None, options: Mapping[str, str]) -> DataFrame:
    """Opens topics: with columns, as JSON; without columns, as bytes, by Spark's connector if it is installed."""
    reader = spark.readStream.options(**options)
    if columns is None:
        try:
            return reader.format("kafka").load()
        except AnalysisException as error:
            if not lacks_connector(error):
                raise
    KafkaOptions.of(options)
    spark.dataSource.register(KafkaTopics)
    reader = reader.format(FORMAT)
    return reader.load() if columns is None else reader.schema(columns).load()


def form_of(options: KafkaOptions, schema: StructType) -> KafkaForm:
    """Returns the format of a source's records."""
    columns = from_spark(schema, "kafka").to_arrow()
    if columns != RAW:
        _require_columns(columns)
    return KafkaForm(options.settings, columns, options.bad_records, options.timeout)


class Span(InputPartition):
    """A range of offsets that one task reads."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class KafkaStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of a stream in Spark's process for the source, and reads ranges in a worker."""

    def __init__(self, options: KafkaOptions, schema: StructType) -> None:
        self._options, self._form = options, form_of(options, schema)
        self._end: Offsets | None = None
        """The end of a run that reads all available records."""
        self._latest: Offsets = {}
        self._policies: dict[str, Any] | None = None
        """Pending requests for the settings of each topic."""

    def initialOffset(self) -> Offsets:
        return _at(self._options.starting, listing(self._options))

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Returns the end of the batch: all records, or at most as many as the option allows."""
        found = listing(self._options)
        if self._policies is None:
            self._policies = found.policies()
        self._latest = found.offsets(latest=True)
        self._policies = _refuse_compacted(self._policies)
        _refuse_lost(start, self._latest)
        end = self._latest if self._end is None else self._end
        # A new partition is read from its beginning.
        begin = {topic: dict.fromkeys(several, 0) for topic, several in end.items()}
        begin = {topic: {**several, **start.get(topic, {})} for topic, several in begin.items()}
        return limited(begin, end, limit.max_rows) if isinstance(limit, ReadMaxRows) else {**start, **end}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._options.most is None else ReadMaxRows(self._options.most)

    def reportLatestOffset(self) -> Offsets:
        """Returns the end of the topics, from which progress reports the backlog."""
        return self._latest

    def prepareForTriggerAvailableNow(self) -> None:
        self._end = listing(self._options).offsets(latest=True)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        return [Span(str(each)) for each in ranges_between(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)
        yield from self._form.read(partition.text, self._form.whole).to_batches()

    def stop(self) -> None:
        _admins.clear()


def limited(start: Offsets, end: Offsets, most: int) -> Offsets:
    """Returns offsets between two others, limited to a number of records, in proportion to the backlog of each
    partition.

    >>> limited({"a": {"0": 0, "1": 0}}, {"a": {"0": 30, "1": 10}}, 20)
    {'a': {'0': 15, '1': 5}}
    """
    waiting = {(each.topic, str(each.partition)): each.stop - each.start for each in ranges_between(start, end)}
    total = sum(waiting.values())
    if total <= most:
        return {**start, **end}
    taken = {place: count * most // total for place, count in waiting.items()}
    # Partitions with the largest backlog get the records lost by rounding.
    for place in sorted(waiting, key=lambda each: -waiting[each])[: most - sum(taken.values())]:
        taken[place] += 1
    return {
        topic: {each: start[topic][each] + taken.get((topic, each), 0) for each in several}
        for topic, several in start.items()
    }


@dataclass(frozen=True)
class Listing:
    """The partitions of a source's topics, and their offsets."""

    places: tuple[tuple[str, int], ...]
    settings: Mapping[str, str] = field(repr=False)

    def offsets(self, *, latest: bool) -> Offsets:
        """Returns the last offsets, or the first ones, of all partitions."""
        kafka = client_library()
        from confluent_kafka.admin import OffsetSpec

        spec = OffsetSpec.latest() if latest else OffsetSpec.earliest()
        asked = {kafka.TopicPartition(*place): spec for place in self.places}
        is_committed = self.settings.get("isolation.level", "read_committed") == "read_committed"
        level = kafka.IsolationLevel.READ_COMMITTED if is_committed else kafka.IsolationLevel.READ_UNCOMMITTED
        answers = _admin(self.settings).list_offsets(asked, isolation_level=level, request_timeout=REQUEST_SECONDS)
        found: Offsets = {}
        for place, answer in sorted(answers.items(), key=lambda each: (each[0].topic, each[0].partition)):
            offset = _answered(answer.result, f"the offsets of topic '{place.topic}'").offset
            found.setdefault(place.topic, {})[str(place.partition)] = int(offset)
        return found

    def policies(self) -> dict[str, Any]:
        """Requests the settings of the topics without waiting for the answers."""
        client_library()
        from confluent_kafka.admin import ConfigResource

        topics = sorted({topic for topic, _ in self.places})
        asked = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        answers = _admin(self.settings).describe_configs(asked, request_timeout=REQUEST_SECONDS)
        return {resource.name: answer for resource, answer in answers.items()}


def _refuse_compacted(policies: Mapping[str, Any]) -> dict[str, Any]:
    """Refuses topics with compaction, because a batch that is read again would have fewer records.

    Returns the answers that are still pending; a broker may not answer.
    """
    for topic, answer in policies.items():
        if answer.done() and answer.exception() is None:
            policy = answer.result().get("cleanup.policy")
            if policy is not None and "compact" in str(policy.value):
                raise CatalogError(
                    f"topic '{topic}' is compacted, so a batch could not be read again",
                    hint="read a topic with cleanup.policy=delete",
                )
    return {topic: answer for topic, answer in policies.items() if not answer.done()}


def listing(options: KafkaOptions) -> Listing:
    """Lists the partitions of a source's topics."""
    listed = _answered(lambda: _admin(options.settings).list_topics(timeout=REQUEST_SECONDS), "the topics").topics
    if options.pattern is not None:
        topics = {name for name in listed if re.fullmatch(options.pattern, name)}
    else:
        topics = set(options.topics)
    missing = sorted(name for name in topics if name not in listed or not listed[name].partitions)
    if missing:
        raise CatalogError(
            f"topic '{missing[0]}' does not exist", hint=f"create it first; brokers: {_brokers(options.settings)}"
        )
    return Listing(tuple((name, each) for name in sorted(topics) for each in listed[name].partitions), options.settings)


def _at(wanted: str, found: Listing) -> Offsets:
    """Returns the offsets that `startingOffsets` names."""
    if wanted in (EARLIEST, LATEST):
        return found.offsets(latest=wanted == LATEST)
    try:
        given = json.loads(wanted)
        named = {(topic, int(each)): int(at) for topic, several in given.items() for each, at in several.items()}
    except (ValueError, AttributeError, TypeError):
        named = {}
    if set(named) != set(found.places):
        raise CatalogError(
            f"offsets '{wanted}' do not name each partition of the topics",
            detail=f"the partitions are {', '.join(f'{topic}/{each}' for topic, each in found.places)}",
            hint=f'write earliest, latest, or offsets such as {{"{found.places[0][0]}": {{"0": 23, "1": -2}}}}, '
            "where -2 is the earliest and -1 the latest",
        )
    ends = {-2: found.offsets(latest=False), -1: found.offsets(latest=True)}
    offsets: Offsets = {}
    for (topic, each), at in named.items():
        offsets.setdefault(topic, {})[str(each)] = at if at >= 0 else ends[at][topic][str(each)]
    return offsets


def _refuse_lost(start: Offsets, latest: Offsets) -> None:
    """Raises an error if a topic ends before the last batch: it was deleted or recreated."""
    for topic, several in start.items():
        for each, at in several.items():
            end = latest.get(topic, {}).get(each)
            if end is None or end < at:
                raise HostError(
                    f"partition {each} of topic '{topic}' ends before the last batch did",
                    detail=f"the batch ended at offset {at}, and Kafka has {'nothing' if end is None else end}",
                    hint="the topic was deleted or recreated; start with an empty checkpoint folder",
                )


def _admin(settings: Mapping[str, str]) -> Any:
    key = tuple(sorted(settings.items()))
    if key not in _admins:
        kafka = client_library()
        from confluent_kafka.admin import AdminClient

        try:
            own = {name: value for name, value in settings.items() if name not in _OF_CONSUMERS}
            _admins[key] = AdminClient({**QUIET, **own})
        except (kafka.KafkaException, ValueError, TypeError) as error:
            raise CatalogError(
                "the options of a Kafka source are refused by librdkafka",
                detail=str(error),
                hint="write kafka.bootstrap.servers, and other settings under librdkafka's names",
            ) from error
    return _admins[key]


_admins: dict[tuple[tuple[str, str], ...], Any] = {}
_OF_CONSUMERS = frozenset(("isolation.level", "group.id", "check.crcs", "queued.min.messages"))


def _answered(ask: Callable[[], Any], what: str) -> Any:
    try:
        return ask()
    except client_library().KafkaException as error:
        raise HostError(
            f"Kafka does not return {what}",
            detail=str(error),
            hint="check kafka.bootstrap.servers, the network and the permissions",
        ) from error


def _brokers(settings: Mapping[str, str]) -> str:
    return settings.get("bootstrap.servers", "")


def _require_known(own: Iterable[str]) -> None:
    for name in own:
        if name in _IN_SPARK:
            raise CatalogError(
                f"the Kafka source has no option '{_IN_SPARK[name]}'",
                hint="use subscribe or subscribePattern; lost records always end the query",
            )
        if name not in _KNOWN:
            raise CatalogError(
                f"the Kafka source has no option '{name}'", hint=f"it has {', '.join(_KNOWN.values())} and kafka.…"
            )


def _require_columns(columns: pa.Schema) -> None:
    """Refuses columns of types that JSON or a record cannot have."""
    values = []
    for each in columns:
        column = RECORD_COLUMNS.get(each.name[1:]) if each.name.startswith("_") else None
        if each.name == CORRUPT and each.type != pa.string():
            raise CatalogError(f"column '{CORRUPT}' has type {each.type}", hint="make it a string")
        if column is not None and each.type not in column.types:
            known = " or ".join(map(str, column.types))
            raise CatalogError(f"column '{each.name}' of a Kafka record has type {each.type}", hint=f"make it {known}")
        if column is None and each.name != CORRUPT:
            values.append(each)
    require_types(pa.schema(values))
