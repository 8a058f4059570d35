"""Resident slots without Spark: the slots are threads of this process, with real connections, engines and files.

A `ResidentRun` takes tables batch by batch, as the contract of hosts requires, and writes them to files, because slots
read files. `lose` cuts the connection of a slot, as its death would.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.records import Record
from anabranch.errors import BatchError
from anabranch.lang.expr import Column
from anabranch.plan.mesh import Plan
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans, QuerySet, as_plans, as_set
from anabranch.plan.slots import SlotRange
from anabranch.run.commit import late_by_stream
from anabranch.run.controls import Controls
from anabranch.run.files.form import Reading
from anabranch.run.files.parquet import Parquet
from anabranch.run.ingest import columns_to_read
from anabranch.run.manifest import Manifest
from anabranch.run.pieces import Piece, divided, files_of, shared
from anabranch.run.results import ResultLayout
from anabranch.run.round import Announce, Arrivals, EventTimeRules, announce_nothing, open_round, recovered, take_batch
from anabranch.run.slot import SlotTask
from anabranch.run.store import Store
from anabranch.run.work import Work
from anabranch.spark.micro_batch import reports_of
from anabranch.spark.resident.messages import BatchOrder, SharedPickler, Turn, batches_of
from anabranch.spark.resident.slot import Address, serve
from anabranch.spark.resident.slots import Slots
from anabranch.stats.report import SlotReports


class Threads:
    """A job whose tasks are threads; like Spark, it starts all of them again when one has ended."""

    def __init__(self, count: int) -> None:
        self._count = count

    def run(self, address: Address, number: int) -> None:
        several = [threading.Thread(target=serve, args=(address, slot, (number, 0))) for slot in range(self._count)]
        for each in several:
            each.start()
        for each in several:
            each.join()

    def cancel(self) -> None: ...


class ResidentRun(Controls):
    """A run whose slots are resident threads."""

    def __init__(
        self,
        query: Query | QuerySet,
        plan: Plan | Plans,
        folder: Path,
        *,
        slots: int = 1,
        is_direct: bool = False,
        announce: Announce = announce_nothing,
    ) -> None:
        queries = as_set(query)
        work = Work(queries, as_plans(plan), SlotRange.fixed(slots))
        self.store = Store(str(folder))
        self.store.open(work.queries, work.execution)
        work, manifest = recovered(work, self.store)
        self.queries = work.queries
        self.round = open_round(work, manifest, self.store, EventTimeRules())
        self.steering = self.round.steering
        self.late: dict[str, int] = dict.fromkeys(self.queries.streams, 0)
        self.slots = Slots(slots, "127.0.0.1", str(folder), Threads(slots))
        self.announce = announce
        self._folder, self._is_direct = folder, is_direct
        self._pieces: list[Piece] = []
        self._pickler: tuple[Turn, SharedPickler] = ((0, 0), SharedPickler())
        self._readings = {
            stream: Reading(Parquet(), {name: Column(stream, name, kind, True) for name, kind in columns.items()})
            for stream, columns in columns_to_read(self.queries).items()
        }
        self.answer: pa.Table

    def step(self, rows: Mapping[str, pa.Table]) -> pa.Table:
        """Takes one batch, and returns the results that it completes."""
        self._pieces = []
        for stream, table in rows.items():
            if stream not in self._readings:
                raise BatchError(f"the query does not read '{stream}'", hint="give tables of its streams")
            if missing := [name for name in self._readings[stream].columns if name not in table.column_names]:
                raise BatchError(f"no column '{missing[0]}' of stream '{stream}'", hint="give all columns")
            path = self._folder / f"{stream}-{self.round.batch}.parquet"
            parquet.write_table(table, path, row_group_size=2)
            self._pieces.append(Piece(stream, str(path), table.num_rows))
        taken = take_batch(self.round, self)
        for stream, count in late_by_stream(self.queries, taken.reports).items():
            self.late[stream] += count
        return self.answer

    def lose(self, slot: int) -> None:
        """Cuts the connection between the driver and a slot, as the death of the slot would."""
        self.slots._channels[slot].close()

    def close(self) -> None:
        """Ends the slots, as the death of the driver would."""
        self.slots.close()

    # --- the host, as the round runs it -------------------------------------------------------------------------------

    def now(self) -> int:
        return 0

    def arrivals(self, batch: int) -> Arrivals:
        return Arrivals({}, files_of(self._pieces))

    def run(self, task: SlotTask) -> SlotReports:
        working = task.partitioning.working
        reader = (shared if self._is_direct else divided)(self._pieces, self._readings, len(working))
        order = BatchOrder(task, reader, self._is_direct, {})
        same = {"queries": task.queries, "table": task.partitioning, "readings": self._readings}

        def content(turn: Turn) -> bytes:
            if turn != self._pickler[0]:
                self._pickler = turn, SharedPickler()
            return self._pickler[1].dumps(order, same)

        answers = self.slots.order(working, content)
        layout = ResultLayout(self.queries)
        batches = [batch for answer in answers.values() for batch in batches_of(answer.results)]
        self.answer = pa.Table.from_batches(batches, layout.schema.to_arrow())
        steps = {slot: answer.steps for slot, answer in answers.items()}
        return reports_of(task, steps, [report for answer in answers.values() for report in answer.merges])

    def divert(self, task: SlotTask, reports: SlotReports) -> None: ...

    def commit(self, manifest: Manifest) -> None:
        self.store.commit(manifest)

    def collect(self, kept: tuple[Manifest, ...]) -> None:
        self.store.collect(kept)

    def facts(self, batch: BatchFacts) -> BatchFacts:
        return replace(batch, cores=2)

    def note(self, records: list[Record]) -> None: ...
