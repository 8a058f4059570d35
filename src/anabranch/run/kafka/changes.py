"""Change streams as tables: records that insert, update and delete rows by a primary key, and the rows after them.

Two forms are read. `debezium`: the value is Debezium's envelope, with or without its schema; a record without a value
is skipped. `upsert`: the value is the new row, the key of the record an object of the key columns, and a record without
a value deletes the row of its key.

Invariant: the rows after some changes are, for each key, those of its last change, unless that deletes. The changes of
a key are in one partition, so their order is that of offsets. Rows that do not change stay where they are, so that few
places of the table differ. Limit: changes are found by a pass over the whole column of the first key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.kernels import Int64Array
from anabranch.errors import CatalogError
from anabranch.run.kafka.json_values import parse

DEBEZIUM, UPSERT = "debezium", "upsert"
_DELETED, _PLACE, _TURN = "_deleted", "_place", "_turn"
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
        """Returns the rows of the table after some changes, most of them at the same places."""
        if not len(changes):
            return rows
        places, turns = self._met(rows, changes)
        is_gone = changes.column(_DELETED).to_numpy()[turns]
        of_turn, is_known = len(rows) + turns, places >= 0
        wanted = np.arange(len(rows))
        wanted[places[is_known & ~is_gone]] = of_turn[is_known & ~is_gone]
        # New rows fill the holes of those that went, and then the last rows do.
        holes, come = np.sort(places[is_known & is_gone]), of_turn[~is_known & ~is_gone]
        filled = min(len(holes), len(come))
        wanted[holes[:filled]] = come[:filled]
        wanted, holes = np.concatenate([wanted, come[filled:]]), holes[filled:]
        length = len(wanted) - len(holes)
        tail = np.setdiff1d(np.arange(length, len(wanted)), holes, assume_unique=True)
        wanted[holes[holes < length]] = wanted[tail]
        whole = pa.concat_tables([rows, changes.select(self.columns.names)])
        return whole.take(wanted[:length]).combine_chunks()

    def _met(self, rows: pa.Table, changes: pa.Table) -> tuple[Int64Array, Int64Array]:
        """Returns, for each changed key, the place of its row, or -1, and its last change, in the order of these."""
        first = self.keys[0]
        near = np.flatnonzero(pc.is_in(rows.column(first), changes.column(first).combine_chunks()))
        known = rows.select(self.keys).take(near)
        keys = pa.concat_tables([known, changes.select(self.keys)])
        places = np.concatenate([near, np.full(len(changes), -1)])
        turns = np.concatenate([np.full(len(known), -1), np.arange(len(changes))])
        keys = keys.append_column(_PLACE, pa.array(places)).append_column(_TURN, pa.array(turns))
        found = keys.group_by(list(self.keys)).aggregate([(_PLACE, "max"), (_TURN, "max")])
        places, turns = (found.column(f"{name}_max").to_numpy() for name in (_PLACE, _TURN))
        order = np.argsort(turns)[np.count_nonzero(turns < 0) :]
        return places[order], turns[order]

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
