"""The row layouts: of all relations together in the checkpoint, and of one relation in a packet.

In the checkpoint, columns are the relation's position in FROM, the event time, one code per key class (and per
row-spread relation), and payload columns shared between relations by type, so that a table of many relations stays
narrow. A packet has the columns of one relation, and its classes (`plan.classes`), which the checkpoint does not keep.

Invariant: up to order, `split` is the inverse of `join`, and `unpacked` of `packed`. Limit: a column of one relation
must fit one Arrow array.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import RelationBatch, empty_batch
from anabranch.engine.evaluate.rows import row_hashes
from anabranch.engine.kernels import BoolArray, Int64Array
from anabranch.errors import HostError
from anabranch.lang.schema import is_fixed_width
from anabranch.plan.partitioning import Partitioning, row_code
from anabranch.plan.query_set import QuerySet

RELATION, TIME = "_relation", "_time"
MOST_BYTES = (1 << 31) - 1
"""The largest text or list column that a slot can process in one batch."""
MOST_RUNS = 256
"""The number of runs of a relation's rows above which picking single rows is faster than concatenating the runs."""


@dataclass(frozen=True)
class WireLayout:
    """The positions of each relation's codes and columns."""

    queries: QuerySet
    codes: Mapping[str, tuple[str, ...]]
    """The code names of each relation, in order."""

    @cached_property
    def code_columns(self) -> tuple[str, ...]:
        """Returns the shared code columns: the n-th code of any relation is in `_code<n>`."""
        return tuple(f"_code{i}" for i in range(max((len(names) for names in self.codes.values()), default=0)))

    @cached_property
    def payload(self) -> Mapping[str, Mapping[str, str]]:
        """Returns the wire column of each column of each relation."""
        return {name: dict(placed) for name, placed in self._placed[0].items()}

    @cached_property
    def _placed(self) -> tuple[dict[str, dict[str, str]], list[tuple[str, pa.DataType]]]:
        """Assigns a position to each column of each relation, shared by type, and a type to each position."""
        shared: dict[pa.DataType, list[str]] = {}
        columns: list[tuple[str, pa.DataType]] = []
        placed: dict[str, dict[str, str]] = {}
        for relation in self.queries.graph.relations:
            used: dict[pa.DataType, int] = {}
            placed[relation.name] = {}
            for field in relation.schema:
                position = used.get(field.type, 0)
                used[field.type] = position + 1
                of_type = shared.setdefault(field.type, [])
                if position == len(of_type):
                    of_type.append(f"_value{len(columns)}")
                    columns.append((of_type[-1], field.type))
                placed[relation.name][field.name] = of_type[position]
        return placed, columns

    @cached_property
    def schema(self) -> pa.Schema:
        fields = [pa.field(RELATION, pa.int8(), False), pa.field(TIME, pa.int64(), False)]
        fields += [pa.field(name, pa.int64()) for name in self.code_columns]
        fields += [pa.field(name, kind) for name, kind in self._placed[1]]
        return pa.schema(fields)

    def split(self, table: pa.Table, wanted: Collection[str] | None = None) -> dict[str, RelationBatch]:
        """Returns the rows of each relation, or of the wanted ones, in time order."""
        names = self.queries.graph.names
        chosen = names if wanted is None else [name for name in names if name in wanted]
        if not table.num_rows:
            return {name: self.empty(name) for name in chosen}
        refuse_what_arrow_cuts(table)
        tags, times = _numpy(table, RELATION), _numpy(table, TIME)
        return {name: self._part(name, table, times, tags == names.index(name)) for name in chosen}

    def _part(self, name: str, table: pa.Table, times: Int64Array, is_mine: BoolArray) -> RelationBatch:
        """Returns the rows of one relation, in time order, with only the columns of the relation."""
        edges = np.flatnonzero(np.diff(is_mine, prepend=False, append=False))
        runs = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
        if not runs:
            return self.empty(name)
        codes, fields = self.codes[name], self.queries.graph.relation(name).schema
        wires = [wire for wire in self.code_columns[: len(codes)] if wire in table.column_names]
        rows = table.select([*wires, *self.payload[name].values()])
        if len(runs) <= MOST_RUNS:
            # As Spark sends rows: those of one source file are contiguous.
            rows = pa.concat_tables([rows.slice(start, stop - start) for start, stop in runs]).combine_chunks()
            own = np.concatenate([times[start:stop] for start, stop in runs])
        else:
            rows = rows.combine_chunks().take(pa.array(np.flatnonzero(is_mine)))
            own = times[is_mine]
        payload = pa.RecordBatch.from_pydict(
            {f.name: _whole(rows.column(self.payload[name][f.name])).cast(f.type) for f in fields}
        )
        there = {
            code: rows.column(wire)
            for code, wire in zip(codes, wires, strict=False)
            if not rows.column(wire).null_count
        }
        found = RelationBatch(
            own,
            {code: _whole(values).to_numpy() for code, values in there.items()},
            payload,
        )
        if row_code(name) in codes and row_code(name) not in there:
            # Written when rows of this relation were not spread by row; any hash of the row is valid.
            found = replace(found, codes={**found.codes, row_code(name): row_hashes(found)})
        return found if bool((own[1:] >= own[:-1]).all()) else found.take(np.argsort(own, kind="stable"))

    def packed(self, name: str, batch: RelationBatch) -> pa.Table:
        """Returns rows of one relation as a table of its own columns, with their classes; the inverse of `unpacked`."""
        columns = [
            pa.array(batch.times),
            *(pa.array(batch.codes[code]) for code in self.codes[name]),
            *(batch.payload.column(field.name) for field in self.queries.graph.relation(name).schema),
            *(pa.array(batch.classes[digest]) for digest in self._digests(name)),
        ]
        return pa.table(columns, [str(position) for position in range(len(columns))])

    def unpacked(self, name: str, table: pa.Table) -> RelationBatch:
        """Returns the rows of a packed table."""
        columns = [_whole(column) for column in table.columns]
        codes, fields = self.codes[name], list(self.queries.graph.relation(name).schema)
        values, classes = columns[1 + len(codes) :], columns[1 + len(codes) + len(fields) :]
        return RelationBatch(
            columns[0].to_numpy(),
            {code: column.to_numpy() for code, column in zip(codes, columns[1:], strict=False)},
            pa.RecordBatch.from_pydict({each.name: column for each, column in zip(fields, values, strict=False)}),
            {digest: column.to_numpy() for digest, column in zip(self._digests(name), classes, strict=True)},
        )

    def _digests(self, name: str) -> list[str]:
        return [each.digest for each in self.queries.graph.relation(name).classes]

    def join(self, batches: Mapping[str, RelationBatch]) -> pa.Table:
        """Concatenates the rows of all relations; the inverse of `split` up to order."""
        tables = [
            self.relation_table(position, batches[name])
            for position, name in enumerate(self.queries.graph.names)
            if name in batches and len(batches[name])
        ]
        return pa.concat_tables(tables) if tables else self.schema.empty_table()

    def relation_table(self, position: int, batch: RelationBatch) -> pa.Table:
        name = self.queries.graph.names[position]
        length = len(batch)
        columns: dict[str, pa.Array] = {
            RELATION: pa.array(np.full(length, position, dtype=np.int8)),
            TIME: pa.array(batch.times),
        }
        for i, code in enumerate(self.codes[name]):
            columns[self.code_columns[i]] = pa.array(batch.codes[code])
        for column, wire in self.payload[name].items():
            columns[wire] = batch.payload.column(column)
        return pa.table(
            [columns[f.name] if f.name in columns else pa.nulls(length, f.type) for f in self.schema],
            schema=self.schema,
        )

    def empty(self, relation: str) -> RelationBatch:
        found = empty_batch(self.queries.graph.relation(relation).schema, self.codes[relation])
        return replace(found, classes=dict.fromkeys(self._digests(relation), np.empty(0, np.int8)))


def wire_layout(queries: QuerySet, *partitionings: Partitioning) -> WireLayout:
    """Returns the layout with every code that the joins and the partitionings need.

    The code of rows spread by row comes last, so the other codes have the same position in any layout.
    """
    dimensions = {d.code: d.relations for each in partitionings for d in each.dimensions}
    codes = {
        name: (*of_keys, *(code for code in dimensions if dimensions[code] == {name} and code not in of_keys))
        for name, of_keys in queries.graph.code_names.items()
    }
    return WireLayout(queries, codes)


def refuse_what_arrow_cuts(table: pa.Table) -> None:
    """Raises an error for columns too large for one Arrow array; without it, Arrow would silently drop the rest."""
    for column in table.columns:
        if not is_fixed_width(column.type) and column.nbytes > MOST_BYTES:
            raise HostError(
                f"one slot has {column.nbytes:,} bytes of texts or lists to take at once, more than {MOST_BYTES:,}",
                detail="they belong to one micro-batch, or to the state that a restart rebuilds",
                hint="limit the rows of a batch at the sources (maxFilesPerTrigger, …), or use more slots",
            )


def _numpy(rows: pa.Table | pa.RecordBatch, name: str) -> Int64Array:
    values: Int64Array = _whole(rows.column(name)).to_numpy(zero_copy_only=False)
    return values


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Returns the column as one chunk; does not copy a column that already is."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
