"""A host in this process whose slots behave like Spark's workers: no engine lives from one batch to the next.

Before each batch a slot finds its arrays in the hot folder, or is rebuilt from the checkpoint; after the batch, it
stamps them (`run.hot`). So tests that draw moves, switches and crashes cover that code without Spark.
"""

from __future__ import annotations

from typing import Any

from anabranch.plan.query_set import as_set
from anabranch.run import hot
from anabranch.run.local import LocalHost
from anabranch.run.rebuilding import RowSource
from anabranch.run.slot import NOTHING_OPENED, Opening, SlotTask


class WorkerHost(LocalHost):
    """A host that needs a checkpoint, and a separate hot folder for the test (ANABRANCH_HOT_FOLDER)."""

    def __init__(self, query: Any, plan: Any, *, checkpoint: str, **settings: Any) -> None:
        self._opened: dict[int, hot.OpenEngine] = {}
        self._identity: str | None = None
        super().__init__(query, plan, checkpoint=checkpoint, **settings)
        assert self.store is not None
        self._identity = self.store.open(as_set(query), self.round.setup.execution)
        hot.claim(self._identity, self.store.location)

    def is_ready(self, task: SlotTask) -> bool:
        return False  # no engine lives from one batch to the next

    def open_slot(self, task: SlotTask, slot: int, held: list[RowSource], same_plans: bool = True) -> Opening:
        if self._identity is None:
            return NOTHING_OPENED  # a worker opens its state with a batch
        assert self.store is not None
        self._opened[slot] = opened = hot.open_engine(task, slot, self._identity, self.store)
        self.engines[slot] = opened.engine
        return Opening(opened.changes, opened.was_hot, taken=opened.taken)

    def keep_slots(self, task: SlotTask) -> None:
        assert self._identity is not None
        for slot in task.partitioning.working:
            hot.keep_engine(self._opened[slot], task, slot, self._identity)
