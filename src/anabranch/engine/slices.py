"""Cutting a batch into slices by event time.

A batch that spans much more time than the windows would fill states with rows that are overdue before the batch ends.
Cut by time, state stays as small as the windows allow and chains stay short; the answer does not depend on the cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from anabranch.engine.batch import RelationBatch
from anabranch.plan.join_graph import JoinGraph

SLICE_ROWS = 1 << 15
"""A batch is not cut into slices smaller than this on average; a slice has a fixed cost of its own."""


class Slice:
    """Rows of one stretch of time, and how far each relation has been read after it."""

    def __init__(self, rows: dict[str, RelationBatch], read: dict[str, int], is_last: bool) -> None:
        self.rows = rows
        self.read = read
        self.is_last = is_last


def slices(batches: Mapping[str, RelationBatch], longest_range: int) -> Iterator[Slice]:
    """Batches in time order, cut into stretches of about a quarter of the longest range, or fewer and longer ones."""
    total = sum(len(batch) for batch in batches.values())
    spans = [(int(batch.times[0]), int(batch.times[-1])) for batch in batches.values() if len(batch)]
    if not spans:
        yield Slice({}, {}, is_last=True)
        return
    start, stop = min(first for first, _ in spans), max(last for _, last in spans)
    pieces = max(1, min(total // SLICE_ROWS, 4 * (stop - start) // max(1, longest_range)))
    read = dict.fromkeys(batches, 0)
    for piece in range(1, pieces + 1):
        until = start + (stop - start) * piece // pieces + 1
        ends = {name: int(np.searchsorted(batch.times, until, side="left")) for name, batch in batches.items()}
        rows = {name: batch.slice(read[name], ends[name]) for name, batch in batches.items()}
        read = ends
        yield Slice(rows, read, is_last=piece == pieces)


def floors_after(
    part: Slice, batches: Mapping[str, RelationBatch], floors: Mapping[str, int], graph: JoinGraph
) -> dict[str, int]:
    """Floors inside a batch: what is still unread of it, and what later batches may still bring."""
    inside = dict(floors)
    for name, batch in batches.items():
        if len(batch):
            relation = graph.relation(name)
            if relation.is_derived:
                # Only its producer's ticks say what may still come.
                continue
            later = int(batch.times[-1]) - relation.disorder
            read = part.read[name]
            unread = int(batch.times[read]) if read < len(batch) else later
            inside[name] = max(floors[name], min(later, unread))
    return inside


def in_time_order(batch: RelationBatch) -> RelationBatch:
    """The rows by event time; those of one instant as they came."""
    times = batch.times
    if len(times) < 2 or bool((times[1:] >= times[:-1]).all()):
        return batch
    return batch.take(np.argsort(times, kind="stable"))
