"""The producer's side of its links: its readers, and the entries of a batch.

The list of readers is requested for every batch, so readers can be added and removed without a change of the operator:
neither its fingerprint nor its checkpoint contains them. The order within a batch is `stage` (driver), `write`
(workers), `append` (driver), then the manifest of the batch. Invariant: after a crash at any point the batch is
repeated, and entries that were appended before are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from anabranch.lang.window import FOREVER
from anabranch.run.links.link import LIMIT, Link
from anabranch.run.links.place import open_link
from anabranch.run.links.shape import Shape

NEVER = 2 * FOREVER - 1


@dataclass(frozen=True)
class Reader:
    """One reader of an operator: its link, its shape and, if a cut is requested, the event time of the cut."""

    link: str
    shape: Shape
    until: int | None = None
    place: str = ""
    """The place of the link; empty for the place of the operator's other links."""


@dataclass(frozen=True)
class Staged:
    """The readers of one attempt at a batch; it is sent to the workers."""

    place: str
    batch: int
    attempt: str
    readers: tuple[Reader, ...]
    limit: int = LIMIT

    def link(self, reader: Reader) -> Link:
        return open_link(reader.place or self.place, reader.link, self.limit)

    def write(self, number: int, rows: Sequence[pa.RecordBatch]) -> None:
        """Writes results for every reader; a number must not be used twice in an attempt."""
        if not any(batch.num_rows for batch in rows):
            return
        table = pa.Table.from_batches(rows)
        for reader in self.readers:
            taken, newest = reader.shape.of(table, NEVER if reader.until is None else reader.until)
            if taken.num_rows:
                self.link(reader).write(self.batch, self.attempt, number, taken, newest)

    def append(self, tick: int) -> None:
        """Makes the batch visible to every reader."""
        for reader in self.readers:
            link = self.link(reader)
            link.append(self.batch, link.staged(self.batch, self.attempt), tick)


class Outlet:
    """The links of one producer."""

    def __init__(self, place: str, readers: Callable[[], Sequence[Reader]], limit: int = LIMIT) -> None:
        self.place = place
        self.limit = limit
        self._readers = readers
        self.refused: frozenset[str] = frozenset()
        """The links that could not be cut at the requested time, because newer rows had been written."""

    def stage(self, batch: int, attempt: str) -> Staged:
        """Returns the readers of a batch; cuts links for which a cut is newly requested, or records a refusal."""
        staged = Staged(self.place, batch, attempt, (), self.limit)
        readers, refused = [], set()
        for reader in self._readers():
            link = staged.link(reader)
            if reader.until is not None and link.until() is None and not link.cut(reader.until):
                refused.add(reader.link)
            readers.append(Reader(reader.link, reader.shape, link.until(), reader.place))
        self.refused = frozenset(refused)
        return Staged(self.place, batch, attempt, tuple(readers), self.limit)
