"""The batches of the engine: new rows of a relation, and combinations of rows on the way to a result.

Invariant: batches are immutable, so operators may share their arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.engine.kernels import Int64Array
from anabranch.engine.state.arena import Array
from anabranch.engine.state.columns import to_arrow, to_numpy
from anabranch.lang.expr import Column
from anabranch.lang.schema import Schema, is_fixed_width
from anabranch.plan.join_graph import Relation

Classes: TypeAlias = NDArray[np.int8]
"""The class of each row in one attribute (`plan.classes`)."""


@dataclass(frozen=True)
class RelationBatch:
    """New rows of one relation: event times, one code per key class, and the payload columns.

    Excludes rows without event time, late rows and rows that fail the relation's filter.
    """

    times: Int64Array
    codes: Mapping[str, Int64Array]
    payload: pa.RecordBatch
    classes: Mapping[str, Classes] = field(default_factory=dict)
    """The classes of the rows, by the digest of the class column; those of a missing column are unknown."""
    numbers: Int64Array | None = None
    """The ascending numbers of the rows of a table, by which a later version names those that it lacks."""

    def __len__(self) -> int:
        return len(self.times)

    def slice(self, start: int, stop: int) -> RelationBatch:
        return RelationBatch(
            self.times[start:stop],
            {name: codes[start:stop] for name, codes in self.codes.items()},
            self.payload.slice(start, stop - start) if self.payload.num_columns else self.payload,
            {name: classes[start:stop] for name, classes in self.classes.items()},
            None if self.numbers is None else self.numbers[start:stop],
        )

    def take(self, order: Int64Array) -> RelationBatch:
        return RelationBatch(
            self.times.take(order),
            {name: codes.take(order) for name, codes in self.codes.items()},
            pa.RecordBatch.from_arrays([taken(column, order) for column in self.payload], schema=self.payload.schema)
            if self.payload.num_columns
            else self.payload,
            {name: classes.take(order) for name, classes in self.classes.items()},
            None if self.numbers is None else self.numbers.take(order),
        )


def deadlines(relation: Relation, batch: RelationBatch) -> Int64Array:
    """Returns the deadline of each row: by the window or, for a combination, the earliest deadline of its parts."""
    if not relation.is_derived:
        found: Int64Array = relation.window.deadline(batch.times)
        return found
    parts = [to_numpy(batch.payload.column(part.time)) + part.range for part in relation.parts]
    least: Int64Array = np.minimum.reduce(parts)
    return least


class CarriedColumn(NamedTuple):
    """A column that merged rows carry: the merged input it belongs to, and its part of an aggregate."""

    merged: frozenset[str]
    """The relations of the merged input."""
    part: str
    is_validity: bool = False
    """True if the column marks where the part is not NULL."""

    def __str__(self) -> str:
        return f"{'+'.join(sorted(self.merged))}.{self.part}{'.valid' if self.is_validity else ''}"


@dataclass(frozen=True)
class Combinations:
    """One row number per bound relation for each combination, with its newest time and its deadline.

    Where rows were merged before the join, one combination represents many; `rows` then holds one of them.
    """

    rows: Mapping[str, Int64Array]
    newest: Int64Array
    deadline: Int64Array
    carried: Mapping[CarriedColumn, Array] = field(default_factory=dict)
    """Weights and aggregate parts of merged rows, laid out by `operators.pregroup`; empty if nothing was merged."""
    read: Callable[[Column], pa.Array] | None = None
    """Reads columns of finished combinations from columns read earlier, which replace row numbers."""

    def __len__(self) -> int:
        return len(self.newest)

    def take(self, positions: Int64Array) -> Combinations:
        return Combinations(
            {relation: rows.take(positions) for relation, rows in self.rows.items()},
            self.newest.take(positions),
            self.deadline.take(positions),
            {name: values.take(positions, axis=0) for name, values in self.carried.items()},
            None if self.read is None else _reading(self.read, positions),
        )


def _reading(read: Callable[[Column], pa.Array], positions: Int64Array) -> Callable[[Column], pa.Array]:
    return lambda column: taken(read(column), positions)


def taken(column: pa.Array, order: Int64Array) -> pa.Array:
    """Returns the column's values at those positions; for fixed-width types numpy is several times as fast."""
    if column.null_count or not is_fixed_width(column.type):
        return column.take(pa.array(order))
    return to_arrow(to_numpy(column).take(order, axis=0), None, column.type)


def joined(batches: list[RelationBatch]) -> RelationBatch:
    """Concatenates at least one batch of one relation."""
    first = batches[0]
    return RelationBatch(
        np.concatenate([batch.times for batch in batches]),
        {code: np.concatenate([batch.codes[code] for batch in batches]) for code in first.codes},
        pa.concat_batches([batch.payload for batch in batches]) if first.payload.num_columns else first.payload,
        {
            name: np.concatenate([batch.classes[name] for batch in batches])
            for name in first.classes
            if all(name in batch.classes for batch in batches)
        },
    )


def concatenated(blocks: Sequence[Combinations], relations: Iterable[str]) -> Combinations:
    """Concatenates combinations of these relations; without any block, returns none."""
    if not blocks:
        nothing = np.empty(0, dtype=np.int64)
        return Combinations(dict.fromkeys(relations, nothing), nothing, nothing)
    if len(blocks) == 1:
        return blocks[0]
    return Combinations(
        {relation: np.concatenate([block.rows[relation] for block in blocks]) for relation in relations},
        np.concatenate([block.newest for block in blocks]),
        np.concatenate([block.deadline for block in blocks]),
        {name: np.concatenate([block.carried[name] for block in blocks]) for name in blocks[0].carried},
    )


def empty_batch(schema: Schema, codes: tuple[str, ...]) -> RelationBatch:
    """A batch without rows."""
    nothing = np.empty(0, dtype=np.int64)
    payload = pa.RecordBatch.from_pydict({field.name: pa.array([], field.type) for field in schema})
    return RelationBatch(nothing, dict.fromkeys(codes, nothing), payload)
