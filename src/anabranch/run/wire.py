"""The row layout in which rows of all relations are sent together: through the shuffle and into the checkpoint.

Columns: the relation's position in FROM, the event time, one code per key class (and per row-spread relation), and
payload columns shared between relations by type, so that a union of many relations stays narrow. Classes (see
`plan.classes`) follow these columns and are not written to the checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import Classes, RelationBatch, empty_batch
from anabranch.engine.evaluate.rows import row_hashes
from anabranch.engine.kernels import BoolArray, Int64Array
from anabranch.errors import HostError
from anabranch.lang.schema import is_fixed_width
from anabranch.plan.classes import UNKNOWN
from anabranch.plan.partitioning import Partitioning, row_code
from anabranch.plan.query_set import QuerySet
from anabranch.run.side_output import Bounds

RELATION, TIME = "_relation", "_time"
WHOLE = "_whole"
"""The prefix, before a stream's position, of the column of its whole rows, set in rows that may go to a side output."""
MOST_BYTES = (1 << 31) - 1
"""The largest text or list column that a slot can process in one batch."""
MOST_RUNS = 256
"""With more runs of a relation's rows, picking the rows one by one is faster than concatenating the runs."""


@dataclass(frozen=True)
class WireLayout:
    """The positions of each relation's codes and columns."""

    queries: QuerySet
    codes: Mapping[str, tuple[str, ...]]
    """The code names of each relation, in order."""

    @cached_property
    def code_columns(self) -> tuple[str, ...]:
        """One shared column per position: the n-th code of any relation is in `_code<n>`."""
        return tuple(f"_code{i}" for i in range(max((len(names) for names in self.codes.values()), default=0)))

    @cached_property
    def payload(self) -> Mapping[str, Mapping[str, str]]:
        """Relation to column to wire column."""
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

    @cached_property
    def classes(self) -> Mapping[str, Mapping[str, str]]:
        """Relation to digest of a class column to wire column: the n-th class of any relation is in `_class<n>`."""
        return {
            relation.name: {each.digest: f"_class{number}" for number, each in enumerate(relation.classes)}
            for relation in self.queries.graph.relations
        }

    @cached_property
    def sent(self) -> pa.Schema:
        """The columns of rows sent to a slot: those that are kept, and classes."""
        most = max((len(placed) for placed in self.classes.values()), default=0)
        return pa.schema([*self.schema, *(pa.field(f"_class{number}", pa.int8()) for number in range(most))])

    def without_rejected(self, table: pa.Table, bounds: Bounds) -> tuple[pa.Table, dict[str, int], dict[str, int]]:
        """Returns the rows that passed their filter, and for the others the newest time and the number, by relation.

        A rejected row has the complement of its relation's number; only its event time counts, and only up to the
        ceiling of its stream. Ticks of derived relations are sent in the same way, and are not rows.
        """
        tags = _numpy(table, RELATION)
        if not len(tags) or tags.min() >= 0:
            return table, {}, {}
        rejected, times = tags < 0, _numpy(table, TIME)
        moving = {
            name: bounds.below(name, times[tags == ~position]) for position, name in enumerate(self.queries.graph.names)
        }
        newest = {name: int(of_name.max()) for name, of_name in moving.items() if len(of_name)}
        counts = {
            relation.name: int((tags == ~position).sum())
            for position, relation in enumerate(self.queries.graph.relations)
            if not relation.is_derived
        }
        return table.filter(pa.array(~rejected)), newest, counts

    def outside(self, table: pa.Table, bounds: Bounds) -> dict[str, Int64Array]:
        """Returns the positions of the rows for the side output, by relation, where there are any."""
        tags, times = _numpy(table, RELATION), _numpy(table, TIME)
        found = {}
        for position, name in enumerate(self.queries.graph.names):
            mine = np.flatnonzero(tags == position)
            rows = mine[~bounds.admitted(name, times[mine])]
            if len(rows):
                found[name] = rows
        return found

    def split(self, table: pa.Table, wanted: Collection[str] | None = None) -> dict[str, RelationBatch]:
        """Returns the rows of each relation, or of some, in time order."""
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
        classes = {each: wire for each, wire in self.classes[name].items() if wire in table.column_names}
        rows = table.select([*wires, *self.payload[name].values(), *classes.values()])
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
            {each: _classes(rows.column(wire)) for each, wire in classes.items()},
        )
        if row_code(name) in codes and row_code(name) not in there:
            # Written when rows of this relation were not spread by row; any hash of the row is valid.
            found = replace(found, codes={**found.codes, row_code(name): row_hashes(found)})
        return found if bool((own[1:] >= own[:-1]).all()) else found.take(np.argsort(own, kind="stable"))

    def of_relation(self, name: str, rows: pa.RecordBatch) -> RelationBatch:
        """Returns rows of one relation, in their order."""
        codes = {code: _numpy(rows, self.code_columns[i]) for i, code in enumerate(self.codes[name])}
        fields = self.queries.graph.relation(name).schema
        payload = pa.RecordBatch.from_pydict(
            {f.name: rows.column(self.payload[name][f.name]).cast(f.type) for f in fields}
        )
        return RelationBatch(_numpy(rows, TIME), codes, payload)

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
        return replace(found, classes=dict.fromkeys(self.classes[relation], np.empty(0, np.int8)))


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
    """Raises an error for columns too large for one Arrow array, which would silently lose the rows after the limit."""
    for column in table.columns:
        if not is_fixed_width(column.type) and column.nbytes > MOST_BYTES:
            raise HostError(
                f"one slot has {column.nbytes:,} bytes of texts or lists to take at once, more than {MOST_BYTES:,}",
                detail="they are of one micro-batch, or of the state that a restart rebuilds",
                hint="let the sources give fewer rows at a time (maxFilesPerTrigger, …), or use more slots",
            )


def _classes(column: pa.ChunkedArray) -> Classes:
    values = _whole(column)
    found: Classes = (values.fill_null(UNKNOWN) if values.null_count else values).to_numpy()
    return found


def _numpy(rows: pa.Table | pa.RecordBatch, name: str) -> Int64Array:
    values: Int64Array = _whole(rows.column(name)).to_numpy(zero_copy_only=False)
    return values


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Returns the column in one piece, without copying one that already is."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
