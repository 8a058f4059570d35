"""Tables with a transaction log: the workers write Parquet files, and the driver adds a batch in one transaction.

The transaction also records the query, the number of the batch and how many files it has. Before a transaction the sink
reads this record: a batch that the table already has is replaced, in one transaction too.

Invariant: the table shows a batch completely or not at all, and never twice, at whatever point the driver is killed.

Limit: a repeated batch can be replaced only while its files are in the table. If another program rewrote them in
between (a compaction), or if the table has batches that the checkpoint lacks, the sink raises a SinkError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from anabranch.errors import AnabranchError, SinkError
from anabranch.settings.secrets import without_secrets
from anabranch.spark.sinks.folder import BatchFolder, batch_prefix
from anabranch.spark.sinks.partitions import Partitions
from anabranch.spark.sinks.sink import Batch, Sink
from anabranch.spark.sinks.worker_files import StagedFile, WrittenForm


@dataclass(frozen=True)
class Committed:
    """The last batch of a query in a table, and the number of its files."""

    batch: int
    files: int


class LakeTable(Protocol):
    """A table of one format; only `open` and `commit` change it."""

    @property
    def title(self) -> str: ...

    @property
    def partitions(self) -> Partitions: ...

    @property
    def place(self) -> str:
        """A unique name of the table."""
        ...

    def open(self) -> str:
        """Creates the table if it does not exist; returns the folder of its data files."""
        ...

    def committed(self, query_id: str) -> Committed | None:
        """Returns the last batch of a query in the newest version of the table."""
        ...

    def files_of(self, prefix: str) -> list[str]:
        """Returns the current data files whose names have this prefix, as `commit` takes them."""
        ...

    def commit(self, batch: Batch, folder: BatchFolder, added: Sequence[str], removed: Sequence[str]) -> None:
        """Adds files of the folder and removes files of the table, with the record of the batch, in one transaction."""
        ...


@contextmanager
def named_table(title: str) -> Iterator[None]:
    """Names the table in errors of a library that opens or creates it."""
    try:
        yield
    except AnabranchError:
        raise
    except Exception as error:
        raise SinkError(
            f"table {title} cannot be opened",
            detail=without_secrets(f"{type(error).__name__}: {error}".partition("\n")[0]),
            hint="check its location or the properties of its catalog, and the credentials in the environment",
        ) from error


class LakeSink(Sink):
    """Adds each batch to a table with a transaction log."""

    def __init__(self, table: LakeTable, form: WrittenForm) -> None:
        self.table = table
        self._form = form
        self._folder: BatchFolder | None = None
        self._is_first = True

    @property
    def title(self) -> str:
        return self.table.title

    @property
    def place(self) -> str:
        return self.table.place

    @property
    def folder(self) -> BatchFolder:
        """The folder of the data files."""
        if self._folder is None:
            self._folder = BatchFolder(self.table.open(), self._form.name)
        return self._folder

    def begin(self) -> None:
        _ = self.folder

    @property
    def workers_write(self) -> bool:
        return True

    def stage(self, batch: Batch) -> StagedFile:
        staging = self.folder.stage(batch.number, batch.query_id)
        return StagedFile(staging, self._form, self.table.partitions)

    def publish(self, batch: Batch) -> None:
        last = self.table.committed(batch.query_id)
        if last is not None and last.batch > batch.number:
            raise SinkError(
                f"{self.title} has batch {last.batch} of this query, and the checkpoint continues with {batch.number}",
                detail="the checkpoint is older than the table",
                hint="restore the table to the version of the checkpoint, or use a new checkpoint and a new table",
            )
        removed: list[str] = []
        if last is not None and last.batch == batch.number:
            removed = self.table.files_of(batch_prefix(batch.number, batch.query_id))
            if len(removed) != last.files:
                raise SinkError(
                    f"batch {batch.number} of {self.title} cannot be replaced",
                    detail=f"the table has {len(removed)} of its {last.files} files; another program rewrote it",
                    hint="restore the table to its version before that rewrite, then restart the query",
                )
        elif self._is_first:
            self.folder.drop_leftovers(batch.number, batch.query_id)
        self._is_first = False
        added = self.folder.move(batch.number, batch.query_id)
        if added or removed:
            self.table.commit(batch, self.folder, added, removed)
