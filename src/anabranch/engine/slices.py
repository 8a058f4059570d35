"""Cuts a batch into slices by event time.

A batch that spans much more time than the windows would fill states with rows that expire before the batch ends. With
slices, states stay as small as the windows allow and hash chains stay short. Invariant: results do not depend on the
cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from anabranch.engine.batch import RelationBatch
from anabranch.plan.join_graph import JoinGraph

SLICE_ROWS = 1 << 15
"""The smallest average slice, in rows; each slice has a fixed cost."""


class Slice:
    """Rows of one time span, and how far each relation has been read after it."""

    def __init__(self, rows: dict[str, RelationBatch], read: dict[str, int], is_last: bool) -> None:
        self.rows = rows
        self.read = read
        self.is_last = is_last


def slices(batches: Mapping[str, RelationBatch], longest_range: int) -> Iterator[Slice]:
    """Cuts batches in time order into spans of about a quarter of the longest range, or fewer and longer ones."""
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
    """Returns the floors inside a batch, from its unread rows and the earliest rows that later batches may contain."""
    inside = dict(floors)
    for name, batch in batches.items():
        if len(batch):
            relation = graph.relation(name)
            if relation.is_derived:
                # Only ticks of its producer show what may still arrive.
                continue
            later = int(batch.times[-1]) - relation.disorder
            read = part.read[name]
            unread = int(batch.times[read]) if read < len(batch) else later
            inside[name] = max(floors[name], min(later, unread))
    return inside


def in_time_order(batch: RelationBatch) -> RelationBatch:
    """Sorts rows by event time; ties keep their order."""
    times = batch.times
    if len(times) < 2 or bool((times[1:] >= times[:-1]).all()):
        return batch
    return batch.take(np.argsort(times, kind="stable"))
