"""The protocol of a sink: what it does before a batch, inside the workers, and after.

For every batch `deliver` calls, in this order:

1. `stage` before any result exists. A sink that returns a `WorkerWriter` has its results written by the workers.
2. `write` with the results as a frame; not for sinks whose workers write.
3. `publish` once all results of the batch are written, for every sink.

Law: publishing a batch again replaces the earlier attempt at that batch, so a batch replayed after a crash leaves the
rows of one batch. An error in any method leaves the batch uncommitted; the restarted query replays the batch.

Limit: a reader that looks while a batch is published may see a part of that batch. Sinks over Spark writers that can
only append are at-least-once for the one batch that a crash interrupts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from anabranch.errors import InvariantBroken
from anabranch.spark.sinks.workers import WorkerWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Batch:
    """A batch of a streaming query: its number, and the identity of the query across restarts."""

    number: int
    query_id: str = ""
    attempt: str = ""
    """The name of this attempt at the batch."""
    answered_before: int = -(2**62)
    """The watermark before the batch: the tick that readers of a link get."""


class Sink(Protocol):
    """Takes the results of each batch. Inherit from it: only `title` and `write` or `stage` have no default."""

    @property
    def title(self) -> str:
        """How errors name the sink, for example `'parquet' at 'out'`."""
        ...

    @property
    def place(self) -> str | None:
        """The place that this sink needs for itself; two queries of one run may not have the same one."""
        return None

    @property
    def is_lasting(self) -> bool:
        """True when results outlive the Spark session; the checkpoint must then outlive it too."""
        return True

    @property
    def is_single_pass(self) -> bool:
        """True when `write` evaluates its frame exactly once, so that the frame need not be cached.

        Evaluating the frame runs the engine's step. `deliver` caches the frame for every other sink, which may then
        evaluate it never, partly or several times. Read after `stage`.
        """
        return False

    def begin(self) -> None:
        """Called once, after the query has started and before its first batch is published."""
        return

    def stage(self, batch: Batch) -> WorkerWriter | None:
        """Prepares for a batch; returns a writer if the workers are to write the results themselves."""
        return None

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """Writes the results of a batch. Sinks whose workers write do not implement it."""
        raise InvariantBroken(f"sink {self.title} neither writes frames nor has its workers write", detail=f"{batch}")

    def publish(self, batch: Batch) -> None:
        """Makes the written results of a batch visible, in place of an earlier attempt at the batch."""
        return
