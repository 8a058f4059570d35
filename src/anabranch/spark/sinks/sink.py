"""The protocol of a sink: its actions before a batch, inside the workers, and after the batch.

For every batch `deliver` calls, in this order:

1. `stage` before any result exists. If a sink returns a `WorkerWriter`, the workers write its results.
2. `write` with the results as a frame; not for sinks whose workers write.
3. `publish` for every sink, after all results of the batch are written.

Invariant: publishing a batch again replaces the earlier attempt, so a batch replayed after a crash leaves the rows of
one batch. An error in any method leaves the batch uncommitted; the restarted query replays the batch.

In real-time mode, results that the workers do not write reach the driver as an Arrow table; a sink that `takes_tables`
gets `take` instead of `write`, and any other one whose workers do not write is refused.

Limit: a concurrent reader may see a part of the batch being published. Sinks over append-only Spark writers are
at-least-once for the one batch that a crash interrupts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from anabranch.errors import InvariantBroken
from anabranch.spark.sinks.workers import WorkerWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Batch:
    """A batch of a streaming query: its number, and the query identity, which restarts keep."""

    number: int
    query_id: str = ""
    attempt: str = ""
    """The name of this attempt at the batch."""
    answered_before: int = -(2**62)
    """The watermark before the batch: the tick for readers of a link."""


class Sink(Protocol):
    """Receives the results of each batch. Subclass it: only `title` and either `write` or `stage` have no default."""

    @property
    def title(self) -> str:
        """The name of the sink in errors, for example `'parquet' at 'out'`."""
        ...

    @property
    def place(self) -> str | None:
        """The location that this sink uses exclusively; two queries of one run may not share it."""
        return None

    @property
    def is_lasting(self) -> bool:
        """True when results outlive the Spark session; the checkpoint must then outlive it too."""
        return True

    @property
    def is_single_pass(self) -> bool:
        """True when `write` evaluates its frame exactly once, so that the frame need not be cached.

        Evaluating the frame runs the engine's step. `deliver` caches the frame for every other sink, which may then
        evaluate it any number of times, also partially. Read after `stage`.
        """
        return False

    @property
    def workers_write(self) -> bool:
        """True if `stage` returns a writer for every batch."""
        return False

    @property
    def takes_tables(self) -> bool:
        """True if the sink has the method `take`."""
        return False

    def begin(self) -> None:
        """Runs once, after the query has started and before its first batch is published."""
        return

    def stage(self, batch: Batch) -> WorkerWriter | None:
        """Prepares for a batch; returns a writer if the workers write the results themselves."""
        return None

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """Writes the results of a batch. Sinks whose workers write do not implement it."""
        raise InvariantBroken(f"sink {self.title} neither writes frames nor has its workers write", detail=f"{batch}")

    def take(self, rows: pa.Table, batch: Batch) -> None:
        """Writes the results of a batch that are in the driver's memory."""
        raise InvariantBroken(f"sink {self.title} does not take tables", detail=f"{batch}")

    def publish(self, batch: Batch) -> None:
        """Makes the written results of a batch visible; replaces an earlier attempt at the batch."""
        return
