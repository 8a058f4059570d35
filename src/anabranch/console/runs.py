"""The runs that a console shows: those of handles, and one read from a checkpoint after it ended.

Invariant: viewing a run changes nothing. `control` is None for a run that cannot be changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from anabranch.checkpoint.examine import opened
from anabranch.plan.query_set import QuerySet
from anabranch.run.manifest import Manifest


class Control(Protocol):
    """The members of a query handle that change the query."""

    def migrate(
        self,
        plan: str,
        strategy: str = "auto",
        slots: Iterable[int] | None = None,
        box_by_box: bool = False,
        query: str | None = None,
    ) -> None: ...

    def abortMigration(self, query: str | None = None) -> None: ...

    def freeze(self, frozen: bool = True) -> None: ...

    def rebalance(self) -> None: ...

    def move(self, groups: Iterable[int], to: int) -> None: ...

    def scale(self, slots: int) -> None: ...

    def split(self, value: Any, over: int | Sequence[int] | None = None, key: str | None = None) -> None: ...

    def unite(self, value: Any, key: str | None = None) -> None: ...


class Handle(Control, Protocol):
    """The members of a query handle that the console uses."""

    @property
    def runId(self) -> str: ...

    @property
    def name(self) -> str | None: ...

    @property
    def isActive(self) -> bool: ...

    @property
    def queries(self) -> QuerySet: ...

    @property
    def history(self) -> list[dict[str, Any]]: ...

    def progressAfter(self, batch: int) -> Sequence[Mapping[str, Any]]: ...

    @property
    def status(self) -> Mapping[str, Any]: ...

    def exception(self) -> BaseException | None: ...


class Run(Protocol):
    """One run as the console shows it."""

    @property
    def id(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def text(self) -> str:
        """The queries as they were written."""

    @property
    def queries(self) -> QuerySet | None:
        """The bound queries; None if only their text is known."""

    @property
    def control(self) -> Control | None: ...

    def status(self) -> str:
        """Returns `running`, `ended`, or `failed: ` followed by the reason."""

    def is_idle(self) -> bool:
        """Returns whether the sources have no new rows and no batch runs."""

    def progress_after(self, batch: int) -> Sequence[Mapping[str, Any]]:
        """Returns the progress of the triggers after a batch, oldest first."""

    def records(self) -> list[dict[str, Any]]:
        """Returns the history, oldest first."""


class LiveRun:
    """A run of this driver."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.id = handle.runId

    @property
    def title(self) -> str:
        return self._handle.name or "query"

    @property
    def text(self) -> str:
        return self.queries.text

    @property
    def queries(self) -> QuerySet:
        return self._handle.queries

    @property
    def control(self) -> Control | None:
        return self._handle if self._handle.isActive else None

    def status(self) -> str:
        if self._handle.isActive:
            return "running"
        error = self._handle.exception()
        return "ended" if error is None else f"failed: {error}"

    def is_idle(self) -> bool:
        return not self._handle.status["isDataAvailable"]

    def progress_after(self, batch: int) -> Sequence[Mapping[str, Any]]:
        return self._handle.progressAfter(batch)

    def records(self) -> list[dict[str, Any]]:
        return self._handle.history


class StoredRun:
    """A run read from its checkpoint."""

    queries: QuerySet | None = None
    control: Control | None = None

    def __init__(self, location: str) -> None:
        self._store, metadata = opened(location)
        self.id = str(metadata.get("identity", "checkpoint"))
        self.title = location
        self.text = str(metadata.get("query", ""))

    def status(self) -> str:
        manifest = self._manifest()
        return (
            "stored: no batch was committed" if manifest is None else f"stored: committed up to batch {manifest.batch}"
        )

    def is_idle(self) -> bool:
        return False

    def progress_after(self, batch: int) -> Sequence[Mapping[str, Any]]:
        return ()

    def records(self) -> list[dict[str, Any]]:
        return self._store.history()

    def facts(self) -> dict[str, Any]:
        """Returns the state after the last batch: plans, table of partition groups, files, clocks."""
        manifest = self._manifest()
        if manifest is None:
            return {}
        table = manifest.partitionings[-1]
        return {
            "batch": manifest.batch,
            "plans": dict(manifest.plans),
            "slots": {str(slot): table.table.count(slot) for slot in range(table.slots)},
            "files": len(manifest.files),
            "rows": sum(file.rows for file in manifest.files),
            "watermark": None if manifest.clocks.known_watermark is None else manifest.clocks.known_watermark / 1e6,
        }

    def _manifest(self) -> Manifest | None:
        return self._store.latest()
