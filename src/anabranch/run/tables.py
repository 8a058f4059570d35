"""Lookup tables: the version of a table that a batch uses, and its rows in a slot.

A version is a copy of the table's rows in the checkpoint, named by the first batch that uses it. Invariant: in every
attempt, a batch uses the version with the largest number not above its own. A version is written before the first
attempt at its batch reads it. The first batch after a restart, which may be a repetition, gets no new version unless
the table has none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import RelationBatch
from anabranch.engine.evaluate.codes import key_codes
from anabranch.engine.evaluate.expression import evaluate, evaluate_mask
from anabranch.engine.ownership import own_cells, rows_for_slot
from anabranch.lang.expr import Column, columns
from anabranch.lang.window import BEFORE_ALL
from anabranch.plan.join_graph import JoinGraph, Relation
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query_set import QuerySet
from anabranch.run.store import Store
from anabranch.run.wire import WireLayout

SMALL = 100_000
"""Every slot holds a whole table of up to this many rows; a larger one is spread by the keys that streams share."""

FILES = "files"
"""The spec value that detects changes of a table by its files: their names, sizes and modification times."""

ReadTable = Callable[[str], pa.Table]
"""Returns the rows of a version."""


def read_columns(graph: JoinGraph, table: str) -> tuple[str, ...]:
    """Returns the columns of a table that the queries read."""
    found: dict[str, None] = {}
    for relation in (each for each in graph.relations if each.is_table and each.stream == table):
        expressions = [key.expression(relation.name) for key in graph.keys_of([relation.name])]
        expressions += [relation.filter] if relation.filter is not None else []
        found |= dict.fromkeys(relation.schema.names)
        found |= dict.fromkeys(column.name for expression in expressions for column in columns(expression))
    return tuple(found)


class TableVersions:
    """The versions of the tables of a run; kept in memory without a store."""

    def __init__(self, queries: QuerySet, store: Store | None) -> None:
        self.tables = queries.graph.tables
        self.fixed = frozenset(queries.fixed_tables)
        self._store = store
        self._kept: dict[str, pa.Table] = {}
        self._digests: dict[str, str] = {}
        self._offered: dict[str, pa.Table] = {}
        self.current: dict[str, str] = {}
        """The file of the current version, by table."""
        for name in store.table_versions() if store is not None and self.tables else ():
            table = name[10:].removesuffix(".arrow")
            if table in self.tables:
                self.current[table] = name
        self._is_resumed = bool(self.current)
        self._first: int | None = None

    @property
    def lacking(self) -> tuple[str, ...]:
        """Returns the tables without a version."""
        return tuple(table for table in self.tables if table not in self.current and table not in self._offered)

    def offer(self, table: str, rows: pa.Table) -> None:
        """Accepts the current rows of a table; changed rows become a version with the next eligible batch."""
        self._offered[table] = rows

    def in_force(self, batch: int) -> dict[str, str]:
        """Returns the versions that a batch uses."""
        self._first = batch if self._first is None else self._first
        for table, rows in list(self._offered.items()):
            name = f"{batch:09d}-{table}.arrow"
            if table in self.current and (table in self.fixed or (self._is_resumed and batch == self._first)):
                continue
            if self.current.get(table) == name:
                continue  # a batch never uses two versions
            del self._offered[table]
            digest = _digest(rows)
            if table in self.current and self._digest_of(table) == digest:
                continue
            if self._store is not None:
                self._store.write_table(name, rows)
            else:
                self._kept = {known: each for known, each in self._kept.items() if known[10:] != name[10:]}
                self._kept[name] = rows
            self.current[table], self._digests[table] = name, digest
        return dict(self.current)

    def read(self, version: str) -> pa.Table:
        """Reads the rows of a version."""
        return self._store.read_table(version) if self._store is not None else self._kept[version]

    def small(self) -> frozenset[str]:
        """Returns the tables that every slot holds completely."""
        rows = {table: self.read(version).num_rows for table, version in self.current.items()}
        rows |= {table: offered.num_rows for table, offered in self._offered.items() if table not in rows}
        return frozenset(table for table, count in rows.items() if count <= SMALL)

    def _digest_of(self, table: str) -> str:
        if table not in self._digests:
            self._digests[table] = _digest(self.read(self.current[table]))
        return self._digests[table]


def table_rows(
    layout: WireLayout, partitioning: Partitioning, slot: int, versions: Mapping[str, str], read: ReadTable
) -> dict[str, RelationBatch]:
    """Returns the rows of all table relations that a slot holds."""
    found = {}
    for relation in layout.queries.graph.relations:
        if relation.is_table:
            batch = table_batch(relation, layout, read(versions[relation.stream]))
            cells = own_cells(partitioning, relation.name, batch)
            found[relation.name] = batch.take(rows_for_slot(partitioning, relation.name, cells, slot))
    return found


def table_batch(relation: Relation, layout: WireLayout, table: pa.Table) -> RelationBatch:
    """Returns the rows of a table as rows of one of its relations: filtered, with codes, and only the payload."""
    flat = {name: table.column(name).combine_chunks() for name in table.column_names}

    def read(column: Column) -> pa.Array:
        return flat[column.name]

    count = table.num_rows
    if relation.filter is not None:
        kept = evaluate_mask(relation.filter, read, count)
        flat = {name: values.filter(pa.array(kept)) for name, values in flat.items()}
        count = int(kept.sum())
    keys = {key.name: key for key in layout.queries.graph.keys_of([relation.name])}
    codes = {
        code: key_codes(evaluate(keys[code].expression(relation.name), read, count), keys[code].type)
        for code in layout.codes[relation.name]
    }
    payload = pa.RecordBatch.from_pydict({field.name: flat[field.name].cast(field.type) for field in relation.schema})
    return RelationBatch(np.full(count, BEFORE_ALL, dtype=np.int64), codes, payload)


def _digest(rows: pa.Table) -> str:
    """Returns a digest of rows in their order."""
    digest = hashlib.sha256(str(rows.schema).encode())
    for batch in rows.combine_chunks().to_batches():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        digest.update(sink.getvalue())
    return digest.hexdigest()
