"""Execution models: the order in which rows are processed, what is buffered, and the order of results.

| model | what waits | results of a join query come |
|---|---|---|
| un-synchronised | nothing | as they are found |
| semi-synchronised | results, until the batch is done | in order of newest, batch by batch |
| row-synchronised | rows, until the watermark has passed them | as they are found |
| totally-synchronised | rows, until the watermark has passed them | in order of newest, from first to last |

The models are those of Zhu 2006, Chapter 15; the default is the un-synchronised model, which suits whole batches. A
*punctuation* marks that a stream has no older rows to come. The end of a batch is a punctuation on every stream queue:
when a step ends, every operator has processed all earlier input. So between two steps a plan holds no queued rows, and
its states can be moved without synchronisation. The watermark is the other punctuation: in the two models that buffer
rows, they wait for it in one buffer in front of the plan and are then processed in order of time. One step processes
the rows between two watermarks, so all its results are newer than all earlier results.

Invariant: the multiset of results is the same in every model, for results that the watermark has passed. Rows and
combinations carry newest and deadline in every model. The paper's single timestamp, the newest, would suffice to order
queues and purge states, but a window over all rows of a combination also needs the oldest. States are purged by floors
and not by passing rows, so purging is safe in any processing order.

Limit: order holds within a slot; slots do not wait for one another. A model that orders results holds all results of a
step in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import RelationBatch, joined
from anabranch.engine.kernels import Int64Array
from anabranch.engine.slices import in_time_order
from anabranch.engine.state.arena import Arena


def in_order(results: Iterable[tuple[str, Int64Array, pa.RecordBatch]]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields the results of each query in order of their newest times; ties keep the order in which they were found."""
    by_query: dict[str, list[tuple[Int64Array, pa.RecordBatch]]] = {}
    for name, newest, batch in results:
        by_query.setdefault(name, []).append((newest, batch))
    for name, found in by_query.items():
        order = np.argsort(np.concatenate([newest for newest, _ in found]), kind="stable")
        ordered = pa.Table.from_batches([batch for _, batch in found]).take(pa.array(order))
        yield from ((name, batch) for batch in ordered.combine_chunks().to_batches())


class WatermarkBuffer:
    """Buffers rows until the watermark has passed them."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.passed: int | None = None
        """The watermark so far: all rows before it have been released."""
        self._rows: dict[str, RelationBatch] = {}
        self._written = 0
        self._files: dict[str, str] = {}

    def __len__(self) -> int:
        return sum(len(batch) for batch in self._rows.values())

    @property
    def bytes(self) -> int:
        return sum(
            batch.times.nbytes + sum(codes.nbytes for codes in batch.codes.values()) + int(batch.payload.nbytes)
            for batch in self._rows.values()
        )

    @property
    def rows(self) -> Mapping[str, RelationBatch]:
        return self._rows

    def pass_through(self, arrived: Mapping[str, RelationBatch], watermark: int) -> dict[str, RelationBatch]:
        """Returns the buffered and new rows that the watermark has passed; buffers the rest."""
        self.passed = watermark if self.passed is None else max(self.passed, watermark)
        released = {}
        for name in {**self._rows, **arrived}:
            # Each batch is in time order, so most rows pass without a copy.
            several = [in_time_order(rows[name]) for rows in (self._rows, arrived) if name in rows]
            cuts = [int(np.searchsorted(batch.times, self.passed)) for batch in several]
            parts = list(zip(several, cuts, strict=True))
            released[name] = _merged([batch.slice(0, cut) for batch, cut in parts])
            waiting = _merged([batch.slice(cut, len(batch)) for batch, cut in parts])
            # A copy: few rows wait, and they must not keep the memory of the whole batch alive.
            self._rows[name] = waiting.take(np.arange(len(waiting)))
        return released

    def layout(self) -> dict[str, Any]:
        """Writes the buffered rows to the arena and returns their location."""
        for file in self._files.values():
            self.arena.release(file)
        self._files = {}
        for name, batch in self._rows.items():
            if len(batch):
                # No relation can have this name; chunks of a relation have its name.
                file = f"+waiting.{name}.{self._written}"
                self.arena.keep_batch(file, _to_record(batch))
                self._files[name] = file
        self._written += 1
        return {"passed": self.passed, "written": self._written, "files": self._files}

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self.passed, self._written, self._files = layout["passed"], layout["written"], dict(layout["files"])
        self._rows = {name: _from_record(self.arena.open_batch(file)) for name, file in self._files.items()}


def _merged(several: list[RelationBatch]) -> RelationBatch:
    """Merges one or two batches in time order; sorts only the part where they overlap."""
    some = [batch for batch in several if len(batch)] or several[:1]
    if len(some) == 1:
        return some[0]
    first, second = some
    cut = int(np.searchsorted(second.times, first.times[-1], side="right"))
    head = in_time_order(joined([first, second.slice(0, cut)]))
    return joined([head, second.slice(cut, len(second))])


def _to_record(batch: RelationBatch) -> pa.RecordBatch:
    columns = {"time": pa.array(batch.times)}
    columns |= {f"code.{name}": pa.array(codes) for name, codes in batch.codes.items()}
    columns |= {f"value.{name}": batch.payload.column(name) for name in batch.payload.schema.names}
    columns |= {f"class.{name}": pa.array(classes) for name, classes in batch.classes.items()}
    return pa.RecordBatch.from_pydict(columns)


def _from_record(record: pa.RecordBatch) -> RelationBatch:
    names = record.schema.names
    codes = {name.removeprefix("code."): _numbers(record, name) for name in names if name.startswith("code.")}
    values = {name.removeprefix("value."): record.column(name) for name in names if name.startswith("value.")}
    classes = {
        name.removeprefix("class."): record.column(name).to_numpy() for name in names if name.startswith("class.")
    }
    return RelationBatch(_numbers(record, "time"), codes, pa.RecordBatch.from_pydict(values), classes)


def _numbers(record: pa.RecordBatch, name: str) -> Int64Array:
    numbers: Int64Array = record.column(name).to_numpy()
    return numbers
