"""The reader's side of its links: determines which batches of its producers form its next batch.

An *inlet* is one derived stream of an operator. Usually it is one link. After a hand-over it has several *segments*:
the rows of the old producer up to the cut, then those of the new producer from the cut on. The tick of an inlet is that
of its first unfinished segment; a segment is finished when its tick has reached the start of the next one.

An offset has, for each link, the last batch that was read and the start of its segment. Invariant: offsets are logged
before a batch runs, so a replay reads the same rows, even if the inlets have changed since.
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
"""The maximum number of batches of a producer in one batch of its reader."""

Offset: TypeAlias = dict[str, dict[str, dict[str, int]]]
"""By stream, then by link: `at`, the last batch that was read, and `start`, the event time at which the segment starts.
"""


@dataclass(frozen=True)
class Segment:
    """The part of a derived stream from one producer: rows with an event time of at least `start`."""

    link: str
    start: int = BEFORE_ALL
    place: str = ""
    """The place of the link; empty for the place of the feed."""


@dataclass(frozen=True)
class Inlet:
    """One derived stream of an operator; for a query that was added later, `since` excludes combinations with an older
    row.
    """

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
    """Returns the last batch of each link that was read."""
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
        """Returns the offset of the latest entries, at most `most` batches per link after the start.

        Returns the start if there are no new entries.
        """
        end: Offset = {}
        for inlet in self.inlets.values():
            before = start.get(inlet.stream, {})
            end[inlet.stream] = {}
            for segment in inlet.segments:
                link = self.link(segment.link, segment.place)
                last = link.last()
                at = before.get(segment.link, {}).get("at", NO_BATCH)
                # A link that was opened later begins with the producer's batch at that time.
                reach = max(at, link.status().first - 1) + most if at == NO_BATCH else at + most
                end[inlet.stream][segment.link] = {"at": max(at, min(last, reach)), "start": segment.start}
        return end if _reached(end) != _reached(start) else start

    def pieces(self, start: Offset, end: Offset) -> list[Piece]:
        """Returns the entries between two offsets."""
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
        """Returns the tick at an offset of each stream that has one."""
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
        """Yields the rows of a piece that belong to its segment and inlet, with their newest time."""
        inlet = self.inlets[piece.stream]
        for rows in self.link(piece.link, piece.place).read(piece.entry):
            newest, valid = times(rows, inlet.parts)
            valid &= newest >= piece.start
            valid &= oldest(rows, inlet.parts) >= inlet.since
            column = pa.array(newest, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
            taken = rows.select(inlet.schema.names).append_column(NEWEST, column)
            yield taken if bool(np.all(valid)) else taken.filter(pa.array(valid))

    def tables(self, start: Offset, end: Offset) -> dict[str, pa.Table]:
        """Returns the rows between two offsets, by stream."""
        found: dict[str, list[pa.Table]] = {stream: [] for stream in end}
        for piece in self.pieces(start, end):
            found[piece.stream] += self.read(piece)
        return {
            stream: pa.concat_tables(several) if several else self.empty(stream) for stream, several in found.items()
        }

    def empty(self, stream: str) -> pa.Table:
        return pa.schema([*self.inlets[stream].schema, pa.field(NEWEST, TIMESTAMP)]).empty_table()

    def commit(self, end: Offset) -> None:
        """Acknowledges all rows up to an offset, so that the links can remove them."""
        for stream, links in end.items():
            places: Mapping[str, str] = {segment.link: segment.place for segment in self.inlets[stream].segments}
            for name, where in links.items():
                if where["at"] > NO_BATCH:
                    link = self.link(name, places.get(name, ""))
                    link.ack(self.reader, where["at"])
                    link.trim()
