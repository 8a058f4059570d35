"""The protocol of file formats, and the conversion of file contents to rows of a stream.

A stream is a scan of files, or a frame with projections and filters over a scan (`spark/scans`). `Reading` has both:
the columns that are read from the files, and the expressions over them.

Invariant: the rows are those that Spark would read. Limit: a file that a format cannot read exactly like Spark is left
to Spark (`look_into`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, TypeAlias

import pyarrow as pa

from anabranch.engine.evaluate.expression import evaluate, evaluate_mask
from anabranch.errors import CatalogError
from anabranch.lang.expr import Column, Expr, columns
from anabranch.run.rows import flat

Columns: TypeAlias = Mapping[str, pa.DataType]
Part: TypeAlias = tuple[str, Sequence[int] | None]
"""A file, and which of its parts; None for all."""


@dataclass(frozen=True)
class Footer:
    """What a look into a file shows."""

    sizes: tuple[int, ...] = field(default=(), compare=False)
    """The bytes of parts that can be read by themselves; one for a file that cannot be divided."""
    why_not: str | None = None
    """Why readers cannot read the file; None if they can."""

    @property
    def is_readable(self) -> bool:
        return self.why_not is None


class Unsure(Exception):
    """A file has something that Spark may read otherwise."""


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Gives errors of reading a file their name."""
    try:
        yield
    except (OSError, pa.ArrowException, Unsure) as error:
        raise CatalogError(
            f"file '{path}' of a stream cannot be read",
            detail=str(error).partition("\n")[0] or "it has changed since it was found",
            hint="the batch is not committed; put the file back as it was, and write new rows to new files",
        ) from error


class FileForm(Protocol):
    """A form of files; travels to the workers."""

    def can_hold(self, kind: pa.DataType) -> bool:
        """Whether slots read columns of a type from files of this form."""
        ...

    def look_into(self, path: str, wanted: Columns) -> Footer:
        """Looks whether a reader gets the values that Spark would read; never raises an error."""
        ...

    def read(self, path: str, wanted: Columns, parts: Sequence[int] | None = None) -> pa.Table:
        """The columns of a file that was looked into, or of some of its parts, as the types of its stream."""
        ...

    def read_several(self, pieces: Sequence[Part], wanted: Columns) -> Iterator[pa.Table]:
        """Yields the columns of several files."""
        ...


class OneByOne:
    """A form whose files are read one after the other."""

    def read_several(self: FileForm, pieces: Sequence[Part], wanted: Columns) -> Iterator[pa.Table]:
        for path, parts in pieces:
            yield self.read(path, wanted, parts)


@dataclass(frozen=True)
class Reading:
    """How rows of a stream are made from its files."""

    form: FileForm
    made: Mapping[str, Expr]
    """The columns of the stream that are read, over columns of the files."""
    conditions: tuple[Expr, ...] = ()
    """What rows of the files must fulfil to be rows of the stream."""

    @cached_property
    def columns(self) -> Columns:
        """The columns of the files that are read."""
        read = (column for each in (*self.made.values(), *self.conditions) for column in columns(each))
        return {column.name: column.type for column in read}

    def only(self, names: Collection[str]) -> Reading:
        """The same rows with these columns."""
        return replace(self, made={name: self.made[name] for name in names})

    def look_into(self, path: str) -> Footer:
        return self.form.look_into(path, self.columns)

    def read(self, pieces: Sequence[Part]) -> Iterator[pa.Table]:
        """The rows of the stream that files hold, or some of their parts."""
        return map(self._rows, self.form.read_several(pieces, self.columns))

    def _rows(self, table: pa.Table) -> pa.Table:
        if not self.conditions and all(_is_named(each, name) for name, each in self.made.items()):
            return table
        values = {name: flat(table.column(name)) for name in table.column_names}
        length = len(table)

        def read(column: Column) -> pa.Array:
            return values[column.name]

        for condition in self.conditions:
            kept = evaluate_mask(condition, read, length)
            if not kept.all():
                accepted = pa.array(kept)
                values = {name: each.filter(accepted) for name, each in values.items()}
                length = int(kept.sum())
        return pa.table({name: evaluate(each, read, length) for name, each in self.made.items()})


def _is_named(made: Expr, name: str) -> bool:
    return isinstance(made, Column) and made.name == name
