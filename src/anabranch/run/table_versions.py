"""The files of the versions of a table: a copy of all rows (a base), or the changes since a base.

    000000003-rates.arrow               a base: all rows of the table from batch 3 on
    000000007+000000003-rates.arrow     the rows removed from that base, and the rows added to it, until batch 7

Every row has a number. In a base it is the position of the row; an added row gets a new number.
Invariant: a base and one change give all rows, so a reader needs at most two files, and a slot can follow from any
version of a base to any later one. Limit: a new base is written once a change has half as many rows as the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.kernels import BoolArray, Int64Array

MOST_CHANGED = 0.5
"""The largest share of changed rows of a table; beyond it, a new base is written and slots are rebuilt."""
ReadTable = Callable[[str], pa.Table]
"""Reads the file of a version."""
_NAME = re.compile(r"(\d{9})(?:\+(\d{9}))?-(.*)\.arrow", re.DOTALL)
_BITS = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def table_of(version: str) -> str:
    """Returns the table of a version.

    >>> table_of("000000007+000000003-rates.arrow")
    'rates'
    """
    return _parts(version)[2]


def base_of(version: str) -> str:
    """Returns the file with all rows that a version builds on; it may be the version itself.

    >>> base_of("000000007+000000003-rates.arrow")
    '000000003-rates.arrow'
    """
    _, base, table = _parts(version)
    return f"{base}-{table}.arrow" if base else version


def _parts(version: str) -> tuple[str, str | None, str]:
    found = _NAME.fullmatch(version)
    return (found[1], found[2], found[3]) if found else ("", None, version[10:].removesuffix(".arrow"))


@dataclass(frozen=True)
class Change:
    """The difference between a version and its base."""

    gone: Int64Array
    """The numbers of all removed rows, of the base or added since, ascending."""
    rows: pa.Table
    numbers: Int64Array
    """The numbers of the added rows, ascending."""

    def to_arrow(self) -> pa.Table:
        """Returns the change as one table: the added rows, and a row of NULLs for each removed row."""
        gone = pa.table({field.name: pa.nulls(len(self.gone), field.type) for field in self.rows.schema})
        numbers = pa.array(np.concatenate([self.numbers, self.gone]))
        came = pa.array(np.arange(len(numbers)) < len(self.numbers))
        return pa.table(
            [*pa.concat_tables([self.rows, gone]).columns, numbers, came],
            schema=self.rows.schema.append(pa.field("", pa.int64())).append(pa.field("", pa.bool_())),
        )

    @classmethod
    def of(cls, table: pa.Table) -> Change:
        """Reads the table of `to_arrow`."""
        count = int(pc.sum(table.column(table.num_columns - 1)).as_py() or 0)
        numbers = table.column(table.num_columns - 2).to_numpy()
        rows = table.slice(0, count).select(list(range(table.num_columns - 2)))
        return cls(numbers[count:], rows, numbers[:count])

    def since(self, earlier: Change) -> Change:
        """Returns the difference from an earlier version of the same base."""
        known = max((int(each[-1]) for each in (earlier.gone, earlier.numbers) if len(each)), default=-1)
        first = int(np.searchsorted(self.numbers, known, "right"))
        gone = np.setdiff1d(self.gone, earlier.gone, assume_unique=True)
        return Change(gone, self.rows.slice(first), self.numbers[first:])


@dataclass(frozen=True)
class NumberedRows:
    """The rows of a version, with a number for each."""

    rows: pa.Table
    numbers: Int64Array
    base: int
    """The number of rows of the base."""
    next: int
    """The number of the next added row."""

    @classmethod
    def of(cls, rows: pa.Table) -> NumberedRows:
        """Returns the rows of a new base."""
        return cls(rows, np.arange(len(rows), dtype=np.int64), len(rows), len(rows))

    @property
    def is_base(self) -> bool:
        """True if nothing has changed since the base."""
        return self.next == self.base == len(self.rows)

    def changed_to(self, rows: pa.Table) -> NumberedRows | None:
        """Returns new rows of the table; rows at an unchanged position keep their number. None if nothing changed."""
        if rows.schema.types != self.rows.schema.types:
            return NumberedRows.of(rows)
        differs = _differing(self.rows, rows)
        if len(rows) == len(self.rows) and not differs.any():
            return None
        places = np.concatenate([np.flatnonzero(differs), np.arange(len(differs), len(rows))])
        numbers = np.concatenate([self.numbers[: len(differs)], np.empty(len(rows) - len(differs), np.int64)])
        numbers[places] = np.arange(self.next, self.next + len(places))
        found = NumberedRows(rows, numbers, self.base, self.next + len(places))
        changed = found.next - len(rows) + int(np.count_nonzero(numbers >= found.base))
        return found if changed <= MOST_CHANGED * len(rows) else NumberedRows.of(rows)

    def change(self) -> Change:
        """Returns the difference from the base."""
        is_here = np.zeros(self.next, bool)
        is_here[self.numbers] = True
        places = np.flatnonzero(self.numbers >= self.base)
        places = places[np.argsort(self.numbers[places])]
        return Change(np.flatnonzero(~is_here), self.rows.take(places), self.numbers[places])


def change_of(version: str, read: ReadTable) -> Change:
    """Reads the difference between a version and its base."""
    file = read(version)
    if base_of(version) != version:
        return Change.of(file)
    return Change(np.empty(0, np.int64), file.slice(0, 0), np.empty(0, np.int64))


def numbered(version: str, read: ReadTable) -> NumberedRows:
    """Reads the rows of a version, in ascending order of their numbers."""
    base = NumberedRows.of(read(base_of(version)))
    if base_of(version) == version:
        return base
    change = Change.of(read(version))
    stays = np.ones(len(base.rows), bool)
    stays[change.gone[change.gone < len(base.rows)]] = False
    rows = pa.concat_tables([base.rows.filter(pa.array(stays)), change.rows])
    numbers = np.concatenate([base.numbers[stays], change.numbers])
    most = max((int(each[-1]) for each in (numbers, change.gone) if len(each)), default=-1)
    return NumberedRows(rows, numbers, base.base, max(most + 1, base.base))


def _differing(old: pa.Table, new: pa.Table) -> BoolArray:
    """Returns which rows at equal positions differ; compares floats by their bits, and NULL equals NULL."""
    count = min(len(old), len(new))
    differs = np.zeros(count, bool)
    for name in old.column_names:
        one, other = (_comparable(table.column(name).slice(0, count)) for table in (old, new))
        if one.equals(other):
            continue
        try:
            same = pc.fill_null(pc.equal(one, other), False)
        except pa.ArrowNotImplementedError:
            return np.ones(count, bool)
        same = pc.or_(same, pc.and_(one.is_null(), other.is_null()))
        differs |= ~same.to_numpy(zero_copy_only=False)
    return differs


def _comparable(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    whole = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
    return whole.view(_BITS[whole.type]) if whole.type in _BITS else whole
