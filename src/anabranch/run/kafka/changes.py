"""Change streams as tables: records that insert, update and delete rows by a primary key, and the rows after them.

Two forms are read. `debezium`: the value is Debezium's envelope, with or without its schema; a record without a value
is skipped. `upsert`: the value is the new row, the key of the record an object of the key columns, and a record without
a value deletes the row of its key.

Invariant: the rows after some changes are, for each key, those of its last change, unless that deletes. The changes of
a key are in one partition, so their order is that of offsets. Limit: the whole table is copied for each version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.errors import CatalogError
from anabranch.run.kafka.json_values import parse

DEBEZIUM, UPSERT = "debezium", "upsert"
_DELETED, _PLACE = "_deleted", "_place"
_KEPT, _REMOVED, _OTHER = ("c", "u", "r"), "d", "m"
"""Debezium's operations: create, update and read; delete; and messages that concern no row."""


@dataclass(frozen=True)
class ChangeForm:
    """How changes are read: their form, the columns of the table, and those of its key."""

    form: str
    columns: pa.Schema
    keys: tuple[str, ...]

    def changes(self, messages: Sequence[Any]) -> pa.Table:
        """Returns the changes that records hold, in their order, with a column that says which ones delete."""
        return self._upserts(messages) if self.form == UPSERT else self._envelopes(messages)

    def after(self, rows: pa.Table, changes: pa.Table) -> pa.Table:
        """Returns the rows of the table after some changes."""
        if not len(changes):
            return rows
        whole = pa.concat_tables([rows.append_column(_DELETED, pa.repeat(False, len(rows))), changes])
        places = whole.select(list(self.keys)).append_column(_PLACE, pa.array(np.arange(len(whole))))
        last = places.group_by(list(self.keys)).aggregate([(_PLACE, "max")]).column(f"{_PLACE}_max")
        latest = whole.take(last.take(pc.sort_indices(last)))
        return latest.filter(pc.invert(latest.column(_DELETED))).select(self.columns.names)

    def _envelopes(self, messages: Sequence[Any]) -> pa.Table:
        given = [each for each in messages if each.value() is not None]
        row = pa.struct(list(self.columns))
        envelope = [pa.field("before", row), pa.field("after", row), pa.field("op", pa.string())]
        found = _good(given, [each.value() for each in given], [*envelope, pa.field("payload", pa.struct(envelope))])
        # With its schema, the envelope is one level deeper.
        inner = found.column("payload").combine_chunks()
        is_inner = inner.is_valid()
        before, after, op = (
            pc.if_else(is_inner, pc.struct_field(inner, name), found.column(name).combine_chunks())
            for name in ("before", "after", "op")
        )
        is_kept, is_removed = pc.is_in(op, pa.array(_KEPT)), pc.equal(op, _REMOVED)
        is_known = pc.fill_null(pc.or_(pc.or_(is_kept, is_removed), pc.equal(op, _OTHER)), False)
        _require(is_known, given, "its operation is none of c, u, r, d and m")
        is_removed = pc.fill_null(is_removed, False)
        rows = pc.if_else(is_removed, before, after)
        concerns = pc.or_(is_kept, is_removed)
        _require(pc.or_(rows.is_valid(), pc.invert(concerns)), given, "it has no row")
        return self._table(rows.filter(concerns), is_removed.filter(concerns))

    def _upserts(self, messages: Sequence[Any]) -> pa.Table:
        deletes = np.array([each.value() is None for each in messages], bool)
        # A record that deletes has the columns of its key only.
        texts = [each.key() if each.value() is None else each.value() for each in messages]
        found = _good(messages, texts, list(self.columns))
        rows = pa.StructArray.from_arrays(
            [found.column(name).combine_chunks() for name in self.columns.names], fields=list(self.columns)
        )
        return self._table(rows, pa.array(deletes))

    def _table(self, rows: pa.StructArray, deletes: pa.Array) -> pa.Table:
        columns = [pc.struct_field(rows, name) for name in self.columns.names]
        found = pa.table([*columns, deletes], schema=self.columns.append(pa.field(_DELETED, pa.bool_())))
        for key in self.keys:
            if found.column(key).null_count:
                raise CatalogError(
                    f"a change of a table has no value for its key column '{key}'",
                    hint="name the columns of the primary key in keyColumns, as the changes spell them",
                )
        return found


def _good(messages: Sequence[Any], texts: Sequence[bytes | None], columns: Sequence[pa.Field]) -> pa.Table:
    found = parse(texts, pa.schema(columns))
    if found.bad:
        raise _bad(messages, found.bad)
    return found.rows


def _require(is_good: pa.Array, messages: Sequence[Any], why: str) -> None:
    places = np.flatnonzero(~is_good.to_numpy(zero_copy_only=False).astype(bool))
    if len(places):
        raise _bad(messages, {int(places[0]): why})


def _bad(messages: Sequence[Any], bad: Mapping[int, str]) -> CatalogError:
    place = min(bad)
    message = messages[place]
    return CatalogError(
        f"record {message.offset()} of partition {message.partition()} of topic '{message.topic()}' is no change of "
        "its table",
        detail=bad[place],
        hint="look at the form (debezium or upsert) and the columns; a table that lacks a change would be wrong",
    )
