"""The files of a micro-batch as pieces, and the reader of a piece.

A piece is a file, row groups of a file, or a range of Kafka offsets (`run/kafka`). Reader tasks share the pieces by
size, so that each byte is read once; or every slot reads all pieces, which saves the exchange. Invariant: the rows are
those that Spark would read; `run/files` reads each format, and decides which files are left to Spark. Limit: files of
an Arrow file system.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from anabranch.run.files.form import Footer, Part, Reading
from anabranch.run.ingest import Read

MOST_READERS = 2
"""The number of slots up to which every slot reads all pieces: reading twice costs less than an exchange."""


@dataclass(frozen=True)
class Piece:
    """A part of a stream's file: row groups, or the whole file; or a range of Kafka offsets, encoded in `path`."""

    stream: str
    path: str
    bytes: int
    groups: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PieceReader:
    """Reads the pieces of a task, which may have none; it is pickled on its way to the workers."""

    shares: tuple[tuple[Piece, ...], ...]
    readings: Mapping[str, Reading]
    """The conversion from files to rows, by stream."""

    def read(self, part: int, given: Iterator[pa.RecordBatch]) -> Iterator[Read]:
        for _ in given:
            pass  # The rows from Spark only start the task.
        several: dict[str, list[Part]] = {}
        for piece in self.shares[part] if part < len(self.shares) else ():
            several.setdefault(piece.stream, []).append((piece.path, piece.groups))
        for stream, pieces in several.items():
            yield from (Read(stream, table) for table in self.readings[stream].read(pieces))


def pieces_of(stream: str, path: str, footer: Footer) -> list[Piece]:
    """Returns the smallest pieces of a file."""
    if len(footer.sizes) < 2:
        return [Piece(stream, path, sum(footer.sizes))]
    return [Piece(stream, path, size, (group,)) for group, size in enumerate(footer.sizes)]


def files_of(pieces: Iterable[Piece]) -> dict[str, tuple[str, ...]]:
    """Returns the files of pieces, by stream."""
    found: dict[str, dict[str, None]] = {}
    for piece in pieces:
        found.setdefault(piece.stream, {})[piece.path] = None
    return {stream: tuple(paths) for stream, paths in found.items()}


def shared(pieces: Sequence[Piece], readings: Mapping[str, Reading], slots: int) -> PieceReader:
    """Returns the reader with which every slot reads all pieces."""
    whole = {(piece.stream, piece.path): Piece(piece.stream, piece.path, 0) for piece in pieces}
    return PieceReader((tuple(whole.values()),) * slots, readings)


def divided(pieces: Sequence[Piece], readings: Mapping[str, Reading], readers: int) -> PieceReader:
    """Returns the reader of tasks that share the pieces; the largest pieces are given first, to the least loaded."""
    shares: list[list[Piece]] = [[] for _ in range(max(1, min(readers, len(pieces))))]
    loads = [0] * len(shares)
    for piece in sorted(pieces, key=lambda each: (-each.bytes, each.path, each.groups or ())):
        least = loads.index(min(loads))
        shares[least].append(piece)
        loads[least] += piece.bytes
    return PieceReader(tuple(tuple(_by_file(share)) for share in shares), readings)


def _by_file(share: Sequence[Piece]) -> Iterator[Piece]:
    """Yields the pieces of a task with the row groups of one file together, so that its footer is read once."""
    files: dict[tuple[str, str], list[Piece]] = {}
    for piece in share:
        files.setdefault((piece.stream, piece.path), []).append(piece)
    for (stream, path), several in files.items():
        groups = [group for piece in several for group in piece.groups or ()]
        yield Piece(stream, path, sum(piece.bytes for piece in several), tuple(sorted(groups)) or None)
