"""A link: the log of one derived stream, from one producer to its readers.

Each batch of the producer is one entry: files of rows (*parts*) and a *tick*. Workers write parts under names that are
unique to their attempt; one atomic append makes them visible. The tick of batch b is the producer's watermark before b.
Every result of b or later contains a row that was admitted in b or later, so its newest time is not below the tick, and
no row of the stream is late at a reader.

Invariants:

- An entry is appended completely and once: a second append of the same batch has no effect. Two attempts at a batch
  have the same rows and the same tick, so either may be kept.
- Batches have no gaps. Every batch has an entry, even without rows.
- A reader never requests rows again that it has acknowledged. Rows up to the smallest acknowledgement may be removed at
  any time; the entry of that batch is kept, because its tick is still the reader's floor.
- If a reader falls behind by more than the limit, the link is closed, and the producer continues: rows are removed,
  `closed` has the reason, later appends have no effect, and the reader gets a LinkClosed.

`cut` ends the rows of a link at an event time, for a hand-over to another producer: newer rows are no longer written.
It is refused if such rows were appended before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from anabranch.errors import LinkClosed, LinkError

NO_BATCH = -1
LIMIT = 1 << 30
"""The bytes that a link retains for its readers before it is closed."""


@dataclass(frozen=True)
class Part:
    """Rows that a worker wrote; they are invisible until an entry lists them."""

    name: str
    rows: int
    bytes: int
    """Bytes of the values, not of the file, as estimates of network traffic use them."""
    newest: int | None
    """The largest newest time of the rows."""

    @classmethod
    def named(cls, batch: int, attempt: str, number: int, rows: pa.Table, newest: int | None) -> Part:
        """Returns the part for these rows; its name has all fields, so parts are found without opening files."""
        size = values_bytes(rows)
        top = "none" if newest is None else str(newest)
        return cls(f"{batch:09d}.{attempt}.{number:06d}.{rows.num_rows}.{size}.{top}", rows.num_rows, size, newest)

    @classmethod
    def parse(cls, name: str) -> Part:
        _, _, _, rows, size, top = name.split(".")
        return cls(name, int(rows), int(size), None if top == "none" else int(top))


def batch_of(name: str) -> int:
    """Returns the batch of a part, by its name."""
    return int(name.partition(".")[0])


@dataclass(frozen=True)
class Entry:
    """One batch of the producer; `total_*` and `top` cover all entries up to this one."""

    batch: int
    tick: int
    parts: tuple[Part, ...] = ()
    total_rows: int = 0
    total_bytes: int = 0
    top: int | None = None
    """The largest newest time of this and all earlier batches."""

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "parts": [part.name for part in self.parts]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Entry:
        return cls(**{**value, "parts": tuple(Part.parse(name) for name in value["parts"])})


@dataclass(frozen=True)
class LinkStatus:
    """The size of a link, the progress of its readers, and whether it is closed."""

    first: int
    last: int
    acknowledged: int
    """The smallest acknowledgement of the readers; -1 if there is none."""
    rows: int
    """Since the link was opened."""
    bytes: int
    retained: int
    """Bytes that some reader has not acknowledged."""
    tick: int | None
    closed: str | None = None

    @property
    def lag(self) -> int:
        """The number of batches that the slowest reader has not acknowledged."""
        return self.last - max(self.acknowledged, self.first - 1) if self.last >= self.first >= 0 else 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "lag": self.lag}


class Link(Protocol):
    """The log of one derived stream; the module lists its invariants."""

    @property
    def name(self) -> str: ...

    def write(self, batch: int, attempt: str, number: int, rows: pa.Table, newest: int | None) -> Part:
        """Writes rows of an attempt at a batch, which remain invisible until `append`; called by workers."""
        ...

    def staged(self, batch: int, attempt: str) -> list[Part]:
        """Returns the parts that workers have written for an attempt at a batch."""
        ...

    def append(self, batch: int, parts: Sequence[Part], tick: int) -> None:
        """Makes a batch visible; has no effect if it is already visible or the link is closed."""
        ...

    def last(self) -> int:
        """Returns the last batch that was appended; -1 before the first."""
        ...

    def entries(self, after: int, to: int) -> list[Entry]:
        """Returns the entries of the batches from `after` (exclusive) to `to`.

        If an entry is missing, raises LinkClosed for a closed link and LinkError otherwise.
        """
        ...

    def read(self, entry: Entry) -> list[pa.Table]:
        """Returns the rows of an entry, one table for each part."""
        ...

    def ack(self, reader: str, batch: int) -> None:
        """Records that a reader no longer needs rows up to a batch."""
        ...

    def trim(self) -> None:
        """Removes rows that no reader needs any more, and the parts of unfinished attempts."""
        ...

    def cut(self, until: int) -> bool:
        """Ends the rows before an event time; returns False, without effect, if later rows were appended."""
        ...

    def until(self) -> int | None:
        """Returns the event time at which the link was cut; None if it was not."""
        ...

    def status(self) -> LinkStatus: ...

    def remove(self) -> bool:
        """Removes the link and its rows; returns False if files are left because a producer has just written to it."""
        ...


def following(name: str, before: Entry | None, batch: int, parts: Sequence[Part], tick: int) -> Entry:
    """Returns the entry of a batch, given the previous entry; raises LinkError if a batch is missing between them."""
    if before is not None and batch != before.batch + 1:
        raise LinkError(
            f"link '{name}' ends with batch {before.batch}, and its producer continues with batch {batch}",
            hint="two producers write it, or its producer lost its checkpoint: deploy the query again",
        )
    tops = [part.newest for part in parts if part.newest is not None]
    if before is not None and before.top is not None:
        tops.append(before.top)
    return Entry(
        batch,
        tick,
        tuple(parts),
        (before.total_rows if before else 0) + sum(part.rows for part in parts),
        (before.total_bytes if before else 0) + sum(part.bytes for part in parts),
        max(tops, default=None),
    )


def refuse_gap(name: str, after: int, to: int, first: int) -> None:
    """Raises LinkError if batches between the last one that was read and the first available one are missing."""
    if NO_BATCH < after < min(first - 1, to):
        raise LinkError(
            f"link '{name}' begins with batch {first}, and its reader continues after batch {after}",
            detail="rows that the reader has not taken are lost",
            hint="restore the store of the producer's site, or deploy the query that reads the link again",
        )


def closed_error(name: str, reason: str) -> LinkClosed:
    return LinkClosed(
        f"link '{name}' is closed",
        detail=reason,
        hint="deploy the query that reads it again; it continues from a later event time",
    )


def overrun(name: str, retained: int, limit: int) -> str:
    """Returns the reason for closing a link whose reader fell behind."""
    return f"its reader left {retained:,} bytes unread, more than the limit of {limit:,}"


def values_bytes(rows: pa.Table) -> int:
    """Returns the bytes of the values: fixed widths, and the lengths of texts."""
    total = 0
    for column in rows.columns:
        kind = column.type
        try:
            total += rows.num_rows * kind.bit_width // 8
        except ValueError:
            total += sum(_variable_bytes(chunk) for chunk in column.chunks)
    return total


def _variable_bytes(values: pa.Array) -> int:
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        # The last offset minus the first, without a copy.
        if not len(values):
            return 0
        offsets = np.frombuffer(values.buffers()[1], dtype=np.int32, count=len(values) + 1, offset=4 * values.offset)
        return int(offsets[-1] - offsets[0])
    return int(values.nbytes)
