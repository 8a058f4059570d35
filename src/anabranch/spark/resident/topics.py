"""The topics of a stream that a real-time run watches: which ranges of offsets have come.

Batches are planned by the source of micro-batches (`spark/kafka_source`), with its options and its checks. Invariant: a
range begins where that of the last committed batch ends. The first poll offers empty ranges, so that a manifest has the
offsets of the start before any record is read. Limit: the driver asks the brokers before every batch, and every few
milliseconds while there is nothing to do.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql.types import StructType

from anabranch.run.kafka.ranges import OffsetRange, Offsets, ranges_between
from anabranch.spark.kafka_source import KafkaTopics

_REST = 0.005
"""Seconds between two requests to the brokers while nothing comes, at least."""


class WatchedTopics:
    """The topics of one stream, and the offsets up to which they have been read."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._source = KafkaTopics(dict(options)).streamReader(schema)
        self._at: Offsets = {}
        self._polled = float("-inf")

    def poll(self, *, is_thorough: bool = False) -> list[str]:
        """Returns the ranges of new records, at most as many as a batch may have; a thorough poll always asks."""
        if not is_thorough and time.monotonic() < self._polled + _REST:
            return []
        if not self._at:
            return places(self._source.initialOffset())
        end = self._source.latestOffset(self._at, self._source.getDefaultReadLimit())
        found = [str(each) for each in ranges_between(self._at, end)]
        self._polled = float("-inf") if found else time.monotonic()
        return found

    def took(self, ranges: Iterable[str]) -> None:
        """Records that ranges have been read."""
        for each in map(OffsetRange.of, ranges):
            several = self._at.setdefault(each.topic, {})
            several[str(each.partition)] = max(each.stop, several.get(str(each.partition), 0))

    @property
    def read(self) -> list[str]:
        """Where the next batch begins, as empty ranges."""
        return places(self._at)

    @property
    def shown(self) -> dict[str, Any]:
        """What progress says of the topics; the difference is the backlog."""
        return {"endOffset": {topic: dict(each) for topic, each in self._at.items()}} | {
            "latestOffset": self._source.reportLatestOffset()
        }


def places(offsets: Offsets) -> list[str]:
    """Returns offsets as empty ranges."""
    return [
        str(OffsetRange(topic, int(partition), at, at))
        for topic, several in sorted(offsets.items())
        for partition, at in sorted(several.items(), key=lambda each: int(each[0]))
    ]
