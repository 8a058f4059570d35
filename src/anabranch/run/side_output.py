"""Side output: rows that are late, too far in the future or without an event time, and so reach no plan.

A row is *late* below the floor of its stream, and *ahead* beyond its ceiling: the time of day at which its batch begins
plus the largest lead that its stream allows (`max_ahead`). Neither takes part in any result; a row that is ahead does
not advance the clock of its stream either, so one wrong clock does not make all later rows late. Such rows are counted
by slot and, if a run requests it, written to a separate sink: one row for each relation that lost a row, with all
columns of its stream in a struct of the stream's name.

Invariant: a row is admitted or diverted, never both, and is diverted once, in the first of the slots that it was sent
to. Floors and ceilings are those of the task, so all slots decide alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.engine.kernels import Int64Array
from anabranch.errors import SpecError
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.lang.window import BEFORE_ALL
from anabranch.plan.join_graph import Relation

LATE, AHEAD, UNDATED = "late", "ahead", "undated"
"""The reasons for which rows are diverted."""
_FIELDS = (
    Field("stream", pa.string()),
    Field("relation", pa.string()),
    Field("reason", pa.string()),
    Field("event_time", TIMESTAMP),
    Field("seconds", pa.float64()),
)


@dataclass(frozen=True)
class Bounds:
    """The admitted event times, by relation; a relation without a ceiling has no upper bound."""

    floors: Mapping[str, int]
    ceilings: Mapping[str, int]

    def admitted(self, relation: str, times: Int64Array) -> NDArray[np.bool_]:
        """Returns True for the rows that are neither late nor ahead."""
        # A table has no floor.
        inside: NDArray[np.bool_] = times >= self.floors.get(relation, BEFORE_ALL)
        ceiling = self.ceilings.get(relation)
        return inside if ceiling is None else inside & (times <= ceiling)

    def below(self, relation: str, times: Int64Array) -> Int64Array:
        """Returns the times that may advance the clock of the stream."""
        ceiling = self.ceilings.get(relation)
        return times if ceiling is None else times[times <= ceiling]


@dataclass(frozen=True)
class SideOutputLayout:
    """The table of diverted rows; `streams` has all columns of each stream."""

    streams: Mapping[str, Schema]

    def __post_init__(self) -> None:
        taken = {field.name for field in _FIELDS}
        if clash := sorted(name for name in self.streams if name.lower() in taken):
            raise SpecError(
                f"a run with a sink for late rows cannot read a stream named '{clash[0]}'",
                detail=f"late rows have the columns {', '.join(sorted(taken))}, and one for each stream",
                hint="register the stream under another name",
            )

    @cached_property
    def schema(self) -> Schema:
        return Schema((*_FIELDS, *(Field(name, self.struct(name)) for name in self.streams)))

    def struct(self, stream: str) -> pa.DataType:
        """Returns the type of whole rows of a stream; a field may be NULL, because rows of other streams have none."""
        return pa.struct([pa.field(field.name, field.type) for field in self.streams[stream]])

    def table(
        self, stream: str, relation: str, times: Int64Array, rows: pa.Array | pa.ChunkedArray, bounds: Bounds
    ) -> pa.Table:
        """Returns the diverted rows of one relation, given as structs of all columns of its stream."""
        length = len(times)
        is_late = times < bounds.floors[relation]
        edge = np.where(is_late, bounds.floors[relation], bounds.ceilings.get(relation, 0))
        columns: dict[str, pa.Array | pa.ChunkedArray] = {
            "stream": pa.repeat(stream, length),
            "relation": pa.repeat(relation, length),
            "reason": pa.array(np.where(is_late, LATE, AHEAD)),
            "event_time": pa.array(times).cast(TIMESTAMP),
            "seconds": pa.array(np.abs(edge - times) / 1e6),
            stream: rows.cast(self.struct(stream)),
        }
        schema = self.schema.to_arrow()
        filled = [columns[f.name] if f.name in columns else pa.nulls(length, f.type) for f in schema]
        return pa.table(filled, schema=schema)

    def undated(self, stream: str, relation: str, rows: pa.Array | pa.ChunkedArray) -> pa.Table:
        """Returns rows of one relation without an event time, given as structs of all columns of its stream."""
        length = len(rows)
        columns = {
            "stream": pa.repeat(stream, length),
            "relation": pa.repeat(relation, length),
            "reason": pa.repeat(UNDATED, length),
            stream: rows.cast(self.struct(stream)),
        }
        schema = self.schema.to_arrow()
        filled = [columns[f.name] if f.name in columns else pa.nulls(length, f.type) for f in schema]
        return pa.table(filled, schema=schema)

    def together(self, tables: Iterable[pa.Table]) -> pa.Table:
        """Concatenates tables of diverted rows."""
        return pa.concat_tables([self.schema.to_arrow().empty_table(), *tables])


def ceilings(relations: Iterable[Relation], max_ahead: Mapping[str, int], now: int) -> dict[str, int]:
    """Returns the largest admitted event time of each relation that has one, at a processing time in microseconds."""
    return {each.name: now + max_ahead[each.stream] for each in relations if each.stream in max_ahead}
