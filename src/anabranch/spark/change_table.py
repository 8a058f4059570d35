"""A lookup table that a change stream keeps up to date: a topic of Kafka with inserts, updates and deletes by a key.

    rates = ChangeTable("rates", "id bigint, rate double", {"subscribe": "db.rates", "keyColumns": "id", …})
    session.table("rates", rates.rows, version=rates.version)

A stream row is joined with the table as of the batch that completes the result. The versions are copies in the
checkpoint, so a repeated batch sees the rows that it saw (`run/tables`). Invariant: a version has all changes up to one
offset of each partition, and none after it. Limit: a start reads the topic from its beginning, and each version passes
through the driver. So the topic must keep the last change of each key: compaction, or no retention.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from anabranch.errors import CatalogError
from anabranch.lang.ddl import parse_schema
from anabranch.run.kafka.changes import DEBEZIUM, UPSERT, ChangeForm
from anabranch.run.kafka.json_values import require_types
from anabranch.run.kafka.ranges import Offsets, fetched, ranges_between
from anabranch.spark.kafka_source import KafkaOptions, listing

FORMATS = (DEBEZIUM, UPSERT)
KEYS = "keycolumns"


class ChangeTable:
    """The rows of a table after the changes that have been read, in the driver."""

    def __init__(self, name: str, columns: str, options: Mapping[str, str], form: str = DEBEZIUM) -> None:
        given = {key.lower(): value for key, value in options.items()}
        keys = tuple(filter(None, (each.strip() for each in given.pop(KEYS, "").split(","))))
        schema = parse_schema(columns).to_arrow()
        require_types(schema)
        if form not in FORMATS:
            raise CatalogError(f"'{form}' is not a form of changes", hint=f"write {' or '.join(FORMATS)}")
        if missing := [key for key in keys if key not in schema.names] or ([] if keys else ["keyColumns"]):
            raise CatalogError(
                f"table '{name}' has no key" if not keys else f"key column '{missing[0]}' is not in table '{name}'",
                hint=f"name columns of the primary key: keyColumns: {schema.names[0]}",
            )
        self._form = ChangeForm(form, schema, keys)
        self._options = KafkaOptions.of(given)
        self._rows = schema.empty_table()
        self._read: Offsets = {}
        self._end: Offsets | None = None

    def version(self) -> str:
        """Returns the ends of the partitions; `rows` has the changes up to the last answer."""
        self._end = listing(self._options).offsets(latest=True)
        return str(self._end)

    def rows(self) -> pa.Table:
        """Returns the rows of the table, with all changes up to the last answer of `version`."""
        if self._end is None:
            self.version()
        assert self._end is not None
        if not self._read:
            self._read = listing(self._options).offsets(latest=False)
        ranges = ranges_between(self._read, self._end)
        messages = fetched(ranges, self._options.settings, self._options.timeout)
        self._rows = self._form.after(self._rows, self._form.changes(messages)) if messages else self._rows
        self._read = self._end
        return self._rows
