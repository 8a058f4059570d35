"""Lookup tables: the version of a table that a batch uses, and its rows in a slot.

A version is a copy of the table's rows in the checkpoint, or the changes since such a copy (`run/table_versions`). It
is named by the first batch that uses it. Invariant: in every attempt, a batch uses the version with the largest number
not above its own. A version is written before the first attempt at its batch reads it. The first batch after a restart,
which may be a repetition, gets no new version unless the table has none.

A slot follows a version of the copy that it has: it removes rows and adds others. Over another copy it is rebuilt from
its rows. A combination matches the version of the batch that completes it. If combinations wait for the watermark, in
groups or at a side, they would match another version after a rebuild; a table that such a query reads keeps its first
version forever (`QuerySet.fixed_tables`), and `api.run` refuses to read it again.

Limit: the rows of a table are in the memory of the driver.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import RelationBatch
from anabranch.engine.engine import Engine
from anabranch.engine.evaluate.codes import key_codes
from anabranch.engine.evaluate.expression import evaluate, evaluate_mask
from anabranch.engine.kernels import Int64Array
from anabranch.engine.ownership import own_cells, rows_for_slot
from anabranch.lang.expr import Column, columns
from anabranch.lang.window import BEFORE_ALL
from anabranch.plan.join_graph import JoinGraph, Relation
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query_set import QuerySet
from anabranch.run.store import Store
from anabranch.run.table_versions import NumberedRows, ReadTable, base_of, change_of, numbered, table_of
from anabranch.run.wire import WireLayout

SMALL = 100_000
"""Every slot holds a whole table of up to this many rows; a larger one is spread by the keys that streams share."""

FILES = "files"
"""The spec value that detects changes of a table by its files: their names, sizes and modification times."""


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
        """The files of the current versions, if there is no store."""
        self._rows: dict[str, NumberedRows] = {}
        """The rows of the current versions that are changes; a base can be read again."""
        self._offered: dict[str, pa.Table] = {}
        self.current: dict[str, str] = {}
        """The file of the current version, by table."""
        for name in store.table_versions() if store is not None and self.tables else ():
            table = table_of(name)
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
            known = self.current.get(table)
            if known is not None and (table in self.fixed or (self._is_resumed and batch == self._first)):
                continue
            if known is not None and int(known[:9]) == batch:
                continue  # a batch never uses two versions
            del self._offered[table]
            if known is None:
                self._begin(batch, table, NumberedRows.of(rows))
            elif (found := self._current_rows(table).changed_to(rows)) is not None:
                self._begin(batch, table, found)
        return dict(self.current)

    def _begin(self, batch: int, table: str, rows: NumberedRows) -> None:
        """Writes a version, and makes it the current one."""
        if rows.is_base:
            name, file = f"{batch:09d}-{table}.arrow", rows.rows
        else:
            base = base_of(self.current[table])
            name, file = f"{batch:09d}+{base[:9]}-{table}.arrow", rows.change().to_arrow()
        if self._store is not None:
            self._store.write_table(name, file)
        else:
            # Slots go from the version before to this one.
            kept = {base_of(name), self.current.get(table, name)}
            self._kept = {each: rows for each, rows in self._kept.items() if table_of(each) != table or each in kept}
            self._kept[name] = file
        self.current[table] = name
        self._rows.pop(table, None)
        if not rows.is_base:
            self._rows[table] = rows

    def _current_rows(self, table: str) -> NumberedRows:
        if table not in self._rows:
            self._rows[table] = numbered(self.current[table], self.read_file)
        return self._rows[table]

    def read(self, version: str) -> pa.Table:
        """Returns the rows of a version."""
        table = table_of(version)
        is_known = self.current.get(table) == version and table in self._rows
        return self._rows[table].rows if is_known else numbered(version, self.read_file).rows

    def read_file(self, version: str) -> pa.Table:
        """Reads the file of a version."""
        return self._store.read_table(version) if self._store is not None else self._kept[version]

    def small(self) -> frozenset[str]:
        """Returns the tables that every slot holds completely."""
        rows = {table: self.read(version).num_rows for table, version in self.current.items()}
        rows |= {table: offered.num_rows for table, offered in self._offered.items() if table not in rows}
        return frozenset(table for table, count in rows.items() if count <= SMALL)


def table_rows(
    layout: WireLayout, partitioning: Partitioning, slot: int, versions: Mapping[str, str], read: ReadTable
) -> dict[str, RelationBatch]:
    """Returns the rows of all table relations that a slot holds; `read` reads the file of a version."""
    tables = {table: numbered(version, read) for table, version in versions.items()}
    return _rows_of(layout, partitioning, slot, {name: (each.rows, each.numbers) for name, each in tables.items()})


def can_follow(now: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether all tables of a slot have later versions of the copies that it has."""
    return now.keys() == wanted.keys() and all(base_of(now[table]) == base_of(wanted[table]) for table in now)


def follow_tables(
    engine: Engine,
    layout: WireLayout,
    partitioning: Partitioning,
    slot: int,
    versions: Mapping[str, str],
    answered: Mapping[str, int],
    read: ReadTable,
) -> None:
    """Brings the tables of a running engine, which `can_follow`, to other versions."""
    changes = {
        table: change_of(version, read) for table, version in versions.items() if version != engine.versions[table]
    }
    before = {table: change_of(engine.versions[table], read) for table in changes}
    news = {table: change.since(before[table]) for table, change in changes.items()}
    gone = {
        relation.name: news[relation.stream].gone
        for relation in layout.queries.graph.relations
        if relation.is_table and relation.stream in news
    }
    rows = _rows_of(layout, partitioning, slot, {table: (each.rows, each.numbers) for table, each in news.items()})
    engine.replace(gone, rows, versions, answered)


def _rows_of(
    layout: WireLayout, partitioning: Partitioning, slot: int, tables: Mapping[str, tuple[pa.Table, Int64Array]]
) -> dict[str, RelationBatch]:
    found = {}
    for relation in layout.queries.graph.relations:
        if relation.is_table and relation.stream in tables:
            batch = table_batch(relation, layout, *tables[relation.stream])
            cells = own_cells(partitioning, relation.name, batch)
            found[relation.name] = batch.take(rows_for_slot(partitioning, relation.name, cells, slot))
    return found


def table_batch(
    relation: Relation, layout: WireLayout, table: pa.Table, numbers: Int64Array | None = None
) -> RelationBatch:
    """Returns the rows of a table as rows of one of its relations: filtered, with codes, and only the payload."""
    flat = {name: table.column(name).combine_chunks() for name in table.column_names}

    def read(column: Column) -> pa.Array:
        return flat[column.name]

    count = table.num_rows
    if relation.filter is not None:
        kept = evaluate_mask(relation.filter, read, count)
        flat = {name: values.filter(pa.array(kept)) for name, values in flat.items()}
        numbers = None if numbers is None else numbers[kept]
        count = int(kept.sum())
    keys = {key.name: key for key in layout.queries.graph.keys_of([relation.name])}
    codes = {
        code: key_codes(evaluate(keys[code].expression(relation.name), read, count), keys[code].type)
        for code in layout.codes[relation.name]
    }
    payload = pa.RecordBatch.from_pydict({field.name: flat[field.name].cast(field.type) for field in relation.schema})
    return RelationBatch(np.full(count, BEFORE_ALL, dtype=np.int64), codes, payload, numbers=numbers)
