"""The engine of one slot: states, joins and grouping of one plan, advanced one batch at a time.

Law: the multiset of everything `step` ever returns depends on the rows alone. It does not depend on how they were cut
into batches, on the plan, or on whether the engine was rebuilt from its base rows in between.

A step costs its new rows plus their matches. A batch that spans much more time than the windows is cut into slices by
time, so that state stays as small as the windows allow and chains stay short; by the law above the cut is free.

The caller gives *floors*: for each relation the event time below which no row will be admitted any more. A row may go
when its deadline lies before the floors of all others; in a grouped query, before its own as well, so that pending
groups can be recomputed from what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import Combinations, RelationBatch
from anabranch.engine.evaluate import evaluate
from anabranch.engine.kernels import BoolArray
from anabranch.engine.meter import Meter
from anabranch.engine.operators.group_by import GroupState
from anabranch.engine.operators.join import keep, read_column
from anabranch.engine.state.arena import Arena, ProcessArena
from anabranch.engine.state.base import BaseState
from anabranch.engine.track import PlanTrack
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Query
from anabranch.stats.step import StepStatistics
from anabranch.window import FOREVER

Ownership = Callable[[Combinations, Mapping[str, BaseState]], BoolArray]
"""Which finished combinations belong to this slot, when rows are replicated to several."""

SLICE_ROWS = 1 << 15
"""A batch is not cut into slices smaller than this on average; a slice has a fixed cost of its own."""


class Engine:
    """One plan of one query over its states."""

    def __init__(
        self,
        query: Query,
        plan: PhysicalPlan,
        *,
        arena: Arena | None = None,
        codes: Mapping[str, tuple[str, ...]] | None = None,
        owns: Ownership | None = None,
    ) -> None:
        self.query = query
        self.owns = owns
        self.meter = Meter()
        self.arena = arena or ProcessArena()
        self.bases = {
            name: BaseState(self.arena, query.graph, name, (codes or key_codes_of(query))[name])
            for name in query.graph.names
        }
        self.tracks = [PlanTrack(query.graph, plan, self.bases, self.arena, self.meter)]
        self.groups = GroupState(self.arena, query.grouping) if query.grouping is not None else None

    @property
    def plan(self) -> PhysicalPlan:
        return self.tracks[-1].plan

    # --- life ---------------------------------------------------------------------------------------------------------

    def layout(self) -> dict[str, Any]:
        """What is needed, beside the arena's contents, to find the states again."""
        return {
            "bases": {name: state.layout() for name, state in self.bases.items()},
            "tracks": [track.layout() for track in self.tracks],
            "groups": self.groups.layout() if self.groups else None,
        }

    def reopen(self, layout: Mapping[str, Any]) -> None:
        for name, state in self.bases.items():
            state.reopen(layout["bases"][name])
        for track, kept in zip(self.tracks, layout["tracks"], strict=True):
            track.reopen(kept)
        if self.groups is not None:
            self.groups.reopen(layout["groups"])

    def export(self) -> dict[str, RelationBatch]:
        """The live base rows: all that a checkpoint needs, and all that a rebuild carries."""
        return {name: state.export() for name, state in self.bases.items()}

    def restore(self, rows: Mapping[str, RelationBatch], answered_before: int | None) -> None:
        """Takes base rows as already processed: states are rebuilt, no result is produced.

        A grouped query gets its pending groups back, for boundaries not below `answered_before`, the watermark up to
        which boundaries have been answered.
        """
        if self.groups is not None and answered_before is not None:
            self.groups.pass_watermark(answered_before)
        ordered = {name: _in_time_order(batch) for name, batch in rows.items()}
        for found in self._advance(ordered, wanted=self.groups is not None):
            self._group(found)
        self.meter.reset()

    # --- work ---------------------------------------------------------------------------------------------------------

    def step(
        self, batches: Mapping[str, RelationBatch], floors: Mapping[str, int], watermark: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The results that the new rows complete; for a grouped query, parts of the boundaries the watermark passed.

        `floors` hold as of before the batch; `watermark` (grouped queries only) as of after it. The iterator must be
        exhausted: states advance as it is read.
        """
        self._drop(floors)
        ordered = {name: _in_time_order(batch) for name, batch in batches.items()}
        for name, batch in ordered.items():
            self.meter.rows_in[name] += len(batch)
        for part in _slices(ordered, self._longest_range()):
            for found in self._advance(part.rows, wanted=True):
                if self.groups is not None:
                    self._group(found)
                else:
                    yield self._project(found)
            if not part.is_last:
                self._drop(_floors_after(part, ordered, floors, self.query))
        if self.groups is not None and watermark is not None:
            parts = self.groups.pass_watermark(watermark)
            self.meter.rows_out += parts.num_rows
            yield from parts.combine_chunks().to_batches()

    def statistics(self) -> StepStatistics:
        """What happened since this was last asked."""
        sizes = {name: (state.ring.live, state.bytes) for name, state in self.bases.items()}
        for track in self.tracks:
            sizes |= {name: (state.ring.live, state.bytes) for name, state in track.intermediates.items()}
        if self.groups is not None:
            sizes["groups"] = (self.groups.rows, self.groups.bytes)
        return self.meter.finish(sizes)

    def result_schema(self) -> pa.Schema:
        """The schema of what `step` returns."""
        if self.groups is not None:
            return self.groups.empty_parts().schema
        return self.query.schema.to_arrow()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _advance(self, batches: Mapping[str, RelationBatch], *, wanted: bool) -> Iterator[Combinations]:
        """Takes new rows into the states, relation by relation, and yields the finished combinations if wanted."""
        for name, state in self.bases.items():
            batch = batches.get(name)
            if batch is None or not len(batch):
                continue
            started = perf_counter()
            first = state.append(batch)
            # Times may stand in Arrow's memory, which is read-only, or be one column of several; the kernels take
            # neither.
            times = np.require(batch.times, requirements=["C", "W"])
            rows = np.arange(first, first + len(batch), dtype=np.int64)
            news = Combinations({name: rows}, times, times + state.range)
            self.meter.spent("append", perf_counter() - started)
            for track in self.tracks:
                for found in track.take(name, news, wanted=wanted):
                    yield self._owned(found)
            started = perf_counter()
            state.link(rows, news.newest, news.deadline)
            self.meter.spent("insert", perf_counter() - started)
            self.meter.inserted(name, len(batch))

    def _owned(self, found: Combinations) -> Combinations:
        return found if self.owns is None else keep(found, self.owns(found, self.bases))

    def _project(self, found: Combinations) -> pa.RecordBatch:
        started = perf_counter()
        arrays = [
            evaluate(output.expression, lambda column: read_column(self.bases, column, found), len(found))
            for output in self.query.outputs
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.query.schema.to_arrow())
        self.meter.rows_out += len(found)
        self.meter.spent("project", perf_counter() - started)
        return batch

    def _group(self, found: Combinations) -> None:
        assert self.groups is not None
        started = perf_counter()
        if len(found):
            self.groups.add(found.newest, found.deadline, lambda column: read_column(self.bases, column, found))
        self.meter.spent("group", perf_counter() - started)

    def _drop(self, floors: Mapping[str, int]) -> None:
        """Drops what can no longer be part of any result; prefixes only, so this costs what is dropped."""
        started = perf_counter()
        lows = expiry(self.query, floors)
        for name, state in self.bases.items():
            self.meter.dropped(name, state.drop(lows[name]))
        for track in self.tracks:
            track.drop(floors, self.meter)
        self.meter.spent("drop", perf_counter() - started)

    def _longest_range(self) -> int:
        return max(state.range for state in self.bases.values())


def key_codes_of(query: Query) -> dict[str, tuple[str, ...]]:
    """The code names of each relation: one per key class it is a member of."""
    return {name: tuple(key.name for key in query.graph.keys_of([name])) for name in query.graph.names}


def expiry(query: Query, floors: Mapping[str, int]) -> dict[str, int]:
    """For each relation the time before which a row's deadline makes it useless; with nothing to meet, at once."""
    return {
        name: min(
            (floor for other, floor in floors.items() if other != name or query.grouping is not None),
            default=2 * FOREVER - 1,
        )
        for name in query.graph.names
    }


class _Slice:
    """Rows of one stretch of time, and how far each relation has been read after it."""

    def __init__(self, rows: dict[str, RelationBatch], read: dict[str, int], is_last: bool) -> None:
        self.rows = rows
        self.read = read
        self.is_last = is_last


def _slices(batches: Mapping[str, RelationBatch], longest_range: int) -> Iterator[_Slice]:
    total = sum(len(batch) for batch in batches.values())
    spans = [(int(batch.times[0]), int(batch.times[-1])) for batch in batches.values() if len(batch)]
    if not spans:
        yield _Slice({}, {}, is_last=True)
        return
    start, stop = min(first for first, _ in spans), max(last for _, last in spans)
    pieces = max(1, min(total // SLICE_ROWS, 4 * (stop - start) // max(1, longest_range)))
    read = dict.fromkeys(batches, 0)
    for piece in range(1, pieces + 1):
        until = start + (stop - start) * piece // pieces + 1
        ends = {name: int(np.searchsorted(batch.times, until, side="left")) for name, batch in batches.items()}
        rows = {name: batch.slice(read[name], ends[name]) for name, batch in batches.items()}
        read = ends
        yield _Slice(rows, read, is_last=piece == pieces)


def _floors_after(
    part: _Slice, batches: Mapping[str, RelationBatch], floors: Mapping[str, int], query: Query
) -> dict[str, int]:
    """Floors inside a batch: what is still unread of it, and what later batches may still bring."""
    inside = dict(floors)
    for name, batch in batches.items():
        if len(batch):
            later = int(batch.times[-1]) - query.graph.relation(name).disorder
            read = part.read[name]
            unread = int(batch.times[read]) if read < len(batch) else later
            inside[name] = max(floors[name], min(later, unread))
    return inside


def _in_time_order(batch: RelationBatch) -> RelationBatch:
    times = batch.times
    if len(times) < 2 or bool((times[1:] >= times[:-1]).all()):
        return batch
    return batch.take(np.argsort(times, kind="stable"))
