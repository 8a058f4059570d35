"""The reader's side of its links: which batches of its producers make up its next batch.

An *inlet* is one derived stream of an operator. Usually it is one link. After a hand-over it is several *segments*: the
rows of the old producer, which were cut at an event time, then those of the new one that are at least as new. The tick
of an inlet is that of the first segment that is not through: its tick has not reached the beginning of the next.

An offset names, for each link, the last batch that was taken and where its segment begins. Offsets are logged before a
batch runs, so a replay reads the same rows, whatever the inlets are by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from anabranch.lang.schema import TIMESTAMP
from anabranch.lang.window import FOREVER
from anabranch.plan.join_graph import Part
from anabranch.run.links.link import LIMIT, NO_BATCH, Entry, Link
from anabranch.run.links.place import open_link
from anabranch.run.links.shape import oldest, times

BEFORE_ALL = -FOREVER
NEWEST = "newest"
"""The column with the event time of a derived row: the newest of its parts."""
MOST_BATCHES = 64
"""The most batches of a producer that one batch of its reader takes."""

Offset: TypeAlias = dict[str, dict[str, dict[str, int]]]
"""By stream, then by link: `at`, the last batch taken, and `start`, where the segment begins."""


@dataclass(frozen=True)
class Segment:
    """A stretch of a derived stream, from one producer: rows that are not older than `start`."""

    link: str
    start: int = BEFORE_ALL
    place: str = ""
    """Where the link is; empty for the place of the feed."""


@dataclass(frozen=True)
class Inlet:
    """One derived stream of an operator; `since` drops combinations with any older row, for a query that joins late."""

    stream: str
    schema: pa.Schema
    parts: tuple[Part, ...]
    segments: tuple[Segment, ...]
    since: int = BEFORE_ALL


@dataclass(frozen=True)
class Piece:
    """One part of one entry, to be read by one task."""

    stream: str
    link: str
    place: str
    entry: Entry
    start: int


def _reached(offset: Offset) -> dict[tuple[str, str], int]:
    """The batches that have been taken."""
    return {
        (stream, name): where["at"]
        for stream, links in offset.items()
        for name, where in links.items()
        if where["at"] > NO_BATCH
    }


class Feed:
    """The inlets of one operator, under its name as a reader."""

    def __init__(self, reader: str, place: str, inlets: Sequence[Inlet], limit: int = LIMIT) -> None:
        self.reader = reader
        self.place = place
        self.inlets = {inlet.stream: inlet for inlet in inlets}
        self.limit = limit

    def link(self, name: str, place: str = "") -> Link:
        return open_link(place or self.place, name, self.limit)

    def latest(self, start: Offset, most: int = MOST_BATCHES) -> Offset:
        """The offset of what the links hold now, at most some batches after the start; the start if there is none."""
        end: Offset = {}
        for inlet in self.inlets.values():
            before = start.get(inlet.stream, {})
            end[inlet.stream] = {}
            for segment in inlet.segments:
                link = self.link(segment.link, segment.place)
                last = link.last()
                at = before.get(segment.link, {}).get("at", NO_BATCH)
                # A link that was opened late begins with the batch of its opening.
                reach = max(at, link.status().first - 1) + most if at == NO_BATCH else at + most
                end[inlet.stream][segment.link] = {"at": max(at, min(last, reach)), "start": segment.start}
        return end if _reached(end) != _reached(start) else start

    def pieces(self, start: Offset, end: Offset) -> list[Piece]:
        """The entries between two offsets."""
        found = []
        for stream, links in end.items():
            places = {segment.link: segment.place for segment in self.inlets[stream].segments}
            for name, where in links.items():
                at = start.get(stream, {}).get(name, {}).get("at", NO_BATCH)
                place = places.get(name, "")
                entries = self.link(name, place).entries(at, where["at"])
                found += [Piece(stream, name, place, entry, where["start"]) for entry in entries]
        return found

    def ticks(self, end: Offset) -> dict[str, int]:
        """The tick of each stream that has one at an offset."""
        found = {}
        for stream, links in end.items():
            places = {segment.link: segment.place for segment in self.inlets[stream].segments}
            tick = BEFORE_ALL
            ordered = sorted(links.items(), key=lambda item: item[1]["start"])
            for number, (name, where) in enumerate(ordered):
                entries = self.link(name, places.get(name, "")).entries(where["at"] - 1, where["at"])
                own = entries[-1].tick if where["at"] > NO_BATCH and entries else BEFORE_ALL
                tick = max(own, where["start"])
                following = ordered[number + 1][1]["start"] if number + 1 < len(ordered) else None
                if following is None or own < following:
                    break
            if tick > BEFORE_ALL:
                found[stream] = tick
        return found

    def read(self, piece: Piece) -> Iterator[pa.Table]:
        """The rows of a piece with their newest time: those that belong to its segment and its inlet."""
        inlet = self.inlets[piece.stream]
        for rows in self.link(piece.link, piece.place).read(piece.entry):
            newest, valid = times(rows, inlet.parts)
            valid &= newest >= piece.start
            valid &= oldest(rows, inlet.parts) >= inlet.since
            column = pa.array(newest, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
            taken = rows.select(inlet.schema.names).append_column(NEWEST, column)
            yield taken if bool(np.all(valid)) else taken.filter(pa.array(valid))

    def tables(self, start: Offset, end: Offset) -> dict[str, pa.Table]:
        """The rows between two offsets, by stream."""
        found: dict[str, list[pa.Table]] = {stream: [] for stream in end}
        for piece in self.pieces(start, end):
            found[piece.stream] += self.read(piece)
        return {
            stream: pa.concat_tables(several) if several else self.empty(stream) for stream, several in found.items()
        }

    def empty(self, stream: str) -> pa.Table:
        return pa.schema([*self.inlets[stream].schema, pa.field(NEWEST, TIMESTAMP)]).empty_table()

    def commit(self, end: Offset) -> None:
        """Acknowledges everything up to an offset, and lets the links go of it."""
        for stream, links in end.items():
            places: Mapping[str, str] = {segment.link: segment.place for segment in self.inlets[stream].segments}
            for name, where in links.items():
                if where["at"] > NO_BATCH:
                    link = self.link(name, places.get(name, ""))
                    link.ack(self.reader, where["at"])
                    link.trim()
