"""A batch's way from the last manifest to the next: its task, then its slots' reports; the same on every host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.engine.engine import expiry
from anabranch.host.clock import Clocks
from anabranch.host.slot import SlotPlan, SlotTask
from anabranch.host.store import Manifest, RowFile, new_attempt
from anabranch.plan.bundle import BundlePlan
from anabranch.plan.execution import DEFAULT_EXECUTION, ExecutionModel
from anabranch.plan.mesh import Plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query import Query
from anabranch.stats.step import StepStatistics, merge
from anabranch.window import FOREVER

COMPACT_FILES = 32
"""A slot with this many row files is compacted, once the younger ones hold half as many rows as the oldest."""
COMPACT_FILES_ALWAYS = 256
"""With this many it is compacted anyway: a restart must not open files without end."""


def relation_floors(query: Query, clocks: Clocks) -> dict[str, int]:
    """The floor of each relation's stream."""
    return {relation.name: clocks.streams[relation.stream].floor for relation in query.graph.relations}


def newest_by_stream(query: Query, reports: Mapping[int, Mapping[str, Any]]) -> dict[str, int]:
    """The largest event time that the slots received, for each stream that had any."""
    newest: dict[str, int] = {}
    for report in reports.values():
        for name, time in [*report["newest"].items(), *report.get("rejected", {}).items()]:
            stream = query.graph.relation(name).stream
            newest[stream] = max(time, newest.get(stream, time))
    return newest


def counts_by_stream(query: Query, reports: Mapping[int, Mapping[str, Any]], kind: str) -> dict[str, int]:
    """How many rows of each stream the slots report under `rows` or `late`.

    A stream that is read several times, in a self-join, is counted where most of its rows passed the filter.
    """
    totals = {relation.stream: 0 for relation in query.graph.relations}
    for relation in query.graph.relations:
        count = sum(report[kind].get(relation.name, 0) for report in reports.values())
        totals[relation.stream] = max(count, totals[relation.stream])
    return totals


def merged_statistics(reports: Mapping[int, Mapping[str, Any]]) -> StepStatistics:
    return merge(StepStatistics.from_json(report["statistics"]) for report in reports.values())


def next_task(
    query: Query,
    plans: tuple[SlotPlan, ...],
    partitioning: Partitioning,
    batch: int,
    clocks: Clocks,
    manifest: Manifest | None,
    clocks_after: Clocks | None,
    execution: ExecutionModel = DEFAULT_EXECUTION,
) -> SlotTask:
    """A new attempt at a batch, from the state that the last manifest left; `clocks_after` if they are known yet."""
    return SlotTask(
        query=query,
        plans=plans,
        partitioning=partitioning,
        batch=batch,
        attempt=new_attempt(),
        after=manifest.attempt if manifest else None,
        floors=relation_floors(query, clocks),
        answered_before=clocks.watermark,
        watermark=clocks_after.watermark if clocks_after else None,
        files=manifest.files if manifest else (),
        partitionings=manifest.partitionings if manifest else (),
        execution=execution,
        compacting=slots_to_compact(manifest, partitioning),
    )


def next_manifest(task: SlotTask, reports: Mapping[int, Mapping[str, Any]], clocks: Clocks) -> Manifest:
    """The manifest of a batch: older files that still hold live rows, and this batch's."""
    lows = expiry(task.query, relation_floors(task.query, clocks), task.execution)
    replaced = {slot for slot in task.compacting if slot in reports}
    kept = [
        (file, task.partitionings[file.partitioning])
        for file in task.files
        if is_alive(task.query, file, lows)
        and not (file.slot in replaced and task.partitionings[file.partitioning] == task.partitioning)
    ]
    # Once every slot has been compacted, nothing of an older partitioning is needed any more.
    if len(replaced) == task.partitioning.slots:
        kept = []
    for slot, report in sorted(reports.items()):
        written = report["file"]
        file = RowFile(task.rows_name(slot), task.batch, slot, written["rows"], written["newest"], -1)
        if file.rows:
            kept.append((file, task.partitioning))
    used = [p for p in dict.fromkeys(partitioning for _, partitioning in kept) if p != task.partitioning]
    partitionings = (*used, task.partitioning)
    files = tuple(
        RowFile(f.name, f.batch, f.slot, f.rows, f.newest, partitionings.index(partitioning))
        for f, partitioning in kept
    )
    return Manifest(task.batch, task.attempt, clocks, files, partitionings, _told(task.plan))


def _told(plan: Plan | BundlePlan) -> dict[str, Any]:
    if isinstance(plan, BundlePlan):
        return {"plans": {name: str(each) for name, each in plan.plans.items()}}
    return {"plan": str(plan)}


def is_alive(query: Query, file: RowFile, lows: Mapping[str, int]) -> bool:
    """True when some row of the file may still be part of a result."""
    for name, newest in file.newest.items():
        window = query.graph.relation(name).window.range
        if newest + (FOREVER if window is None else window) >= lows[name]:
            return True
    return False


def slots_to_compact(manifest: Manifest | None, partitioning: Partitioning) -> frozenset[int]:
    """The slots whose files have become many; all of them after the partitioning has changed."""
    if manifest is None or not manifest.files:
        return frozenset()
    if any(manifest.partitionings[file.partitioning] != partitioning for file in manifest.files):
        return frozenset(range(partitioning.slots))
    chosen = set()
    for slot in range(partitioning.slots):
        rows = [file.rows for file in manifest.files if file.slot == slot]
        grown = len(rows) >= COMPACT_FILES and 2 * (sum(rows) - max(rows)) >= max(rows)
        if grown or len(rows) >= COMPACT_FILES_ALWAYS:
            chosen.add(slot)
    return frozenset(chosen)
