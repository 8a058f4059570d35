"""Creates the task of a batch from the last manifest, and the next manifest from the reports of its slots.

All hosts use these functions. Invariant: nothing here reads or writes files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from anabranch.adapt.facts import Moment
from anabranch.engine.expiry import expiry
from anabranch.plan.execution import ExecutionModel
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query_set import QuerySet
from anabranch.plan.slots import Orders, most_frequent
from anabranch.run.clock import ClockRule, Clocks
from anabranch.run.floors import relation_floors
from anabranch.run.manifest import Manifest, RowFile
from anabranch.run.slot import SlotTask
from anabranch.run.store import new_attempt
from anabranch.run.work import Setup
from anabranch.stats.intake import Intake, merged_intakes
from anabranch.stats.report import SlotReports

NOTHING: Mapping[str, int] = MappingProxyType({})
COMPACT_FILES = 32
"""Row files from which a slot is compacted, once the younger files hold half as many rows as the oldest."""
COMPACT_FILES_ALWAYS = 256
"""The number of row files at which a slot is always compacted, to bound the files that a restart opens."""


def intake_of(reports: SlotReports) -> Intake:
    """Merges the counts of all readers of a batch."""
    return merged_intakes(report.intake for report in reports.values())


def rows_by_stream(queries: QuerySet, reports: SlotReports) -> dict[str, int]:
    """Returns rows in: the rows that each stream's source delivered, each counted once and before filters."""
    return _by_stream(queries, [intake_of(reports).delivered])


def rows_by_query(queries: QuerySet, reports: SlotReports) -> dict[str, int]:
    """Returns rows out: the finished results of each query, after merging groups and after HAVING."""
    return {name: sum(report.results.get(name, 0) for report in reports.values()) for name in queries.names}


def rows_out(queries: QuerySet, reports: SlotReports) -> int:
    """Returns the number of rows that all sinks together received."""
    found = rows_by_query(queries, reports)
    return sum(found[each.name] for each in queries.delivered)


def late_by_stream(queries: QuerySet, reports: SlotReports) -> dict[str, int]:
    """Returns the late rows of each stream."""
    return _by_stream(queries, [intake_of(reports).late])


def ahead_by_stream(queries: QuerySet, reports: SlotReports) -> dict[str, int]:
    """Returns the rows of each stream that were too far in the future."""
    return _by_stream(queries, [intake_of(reports).ahead])


def shed_by_stream(queries: QuerySet, reports: SlotReports) -> dict[str, int]:
    """Returns the rows of each stream that were shed."""
    return _by_stream(queries, [intake_of(reports).shed])


def undated_by_stream(queries: QuerySet, reports: SlotReports) -> dict[str, int]:
    """Returns the rows of each stream without an event time."""
    return _by_stream(queries, [intake_of(reports).undated])


def _by_stream(queries: QuerySet, counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Adds up counts by relation; for a stream that a self-join reads several times, takes the largest count."""
    totals = dict.fromkeys(queries.streams, 0)
    for relation in queries.graph.streamed:
        if relation.is_result:
            continue
        count = sum(each.get(relation.name, 0) for each in counts)
        totals[relation.stream] = max(count, totals[relation.stream])
    return totals


def moment(queries: QuerySet, clocks: Clocks, execution: ExecutionModel) -> Moment:
    """Returns the newest row's event time, and which rows can be part of no further result."""

    def is_over(time: int) -> bool:
        lows = expiry(queries, relation_floors(queries, clocks), execution)
        return all(relation.window.deadline(time - 1) < lows[relation.name] for relation in queries.graph.relations)

    return Moment(clocks.newest, is_over)


def next_task(
    setup: Setup,
    orders: Orders,
    batch: int,
    manifest: Manifest | None,
    clocks: Clocks,
    rule: ClockRule | None,
    ceilings: Mapping[str, int] = NOTHING,
    versions: Mapping[str, str] | None = None,
) -> SlotTask:
    """Creates a new attempt at a batch, from the state of the last manifest.

    `clocks` are those before the batch; with a `rule`, slots compute those after it. `ceilings` has the largest
    admitted event time, by relation, where there is one; `versions` are the current versions of tables.
    """
    return SlotTask(
        queries=setup.queries,
        plans=orders.plans,
        partitioning=orders.table,
        counts_cells=orders.counts_cells,
        kept=orders.kept,
        batch=batch,
        attempt=new_attempt(),
        after=manifest.attempt if manifest else None,
        floors=relation_floors(setup.queries, clocks),
        rule=rule,
        files=manifest.files if manifest else (),
        partitionings=manifest.partitionings if manifest else (),
        execution=setup.execution,
        compacting=slots_to_compact(manifest, orders.table),
        ceilings=ceilings,
        versions=versions or {},
        since=manifest.since if manifest else {},
        until=manifest.until if manifest else {},
        complete=manifest.complete if manifest else {},
    )


def next_manifest(task: SlotTask, reports: SlotReports, clocks: Clocks) -> Manifest:
    """Creates the manifest of a batch: older files that still contain live rows, and the files of this batch."""
    lows = expiry(task.queries, relation_floors(task.queries, clocks), task.execution)
    tables = task.tables
    replaced = {slot for slot in task.compacting if slot in reports}
    files = [
        file
        for file in task.files
        if is_alive(task.queries, file, lows) and file.slot in task.partitioning.working and file.slot not in replaced
    ]
    for slot, report in sorted(reports.items()):
        # The file of a compacted slot has the rows of all stages.
        for written in report.files[-1:] if slot in replaced else report.files:
            if written.rows:
                name = task.rows_name(slot, written.stage)
                files.append(RowFile(name, task.batch, slot, written.rows, written.newest, len(tables) - 1))
    # Tables older than the oldest file are no longer needed.
    oldest = min((file.partitioning for file in files), default=len(tables) - 1)
    plans = {name: str(most_frequent(each)) for name, each in task.plans.items()}
    return Manifest(
        task.batch,
        task.attempt,
        clocks,
        tuple(replace(file, partitioning=file.partitioning - oldest) for file in files),
        tables[oldest:],
        plans,
        task.versions,
        since=task.since,
        until=task.until,
        fingerprint=task.queries.fingerprint,
        complete=task.complete,
    )


def is_alive(queries: QuerySet, file: RowFile, lows: Mapping[str, int]) -> bool:
    """True when some row of the file may still be part of a result."""
    windows = {relation.name: relation.window for relation in queries.graph.relations}
    return any(windows[name].deadline(newest) >= lows[name] for name, newest in file.newest.items())


def slots_to_compact(manifest: Manifest | None, partitioning: Partitioning) -> frozenset[int]:
    """Returns the slots that have too many files."""
    if manifest is None or not manifest.files:
        return frozenset()
    chosen = set()
    for slot in range(partitioning.slots):
        rows = [file.rows for file in manifest.files if file.slot == slot]
        grown = len(rows) >= COMPACT_FILES and 2 * (sum(rows) - max(rows)) >= max(rows)
        if grown or len(rows) >= COMPACT_FILES_ALWAYS:
            chosen.add(slot)
    return frozenset(chosen)
