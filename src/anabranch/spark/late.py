"""The side output of late rows on Spark: from the workers to its sink, with a warning if there is no sink.

Readers write diverted rows to files of the batch, named by attempt (`Store.write_diverted`). After the step, and
before the batch commits, Spark reads those files into the sink. Invariant: diverted rows are delivered like results, so
a repeated batch replaces the rows of its earlier attempt.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from anabranch.errors import LateRowsDropped
from anabranch.plan.query_set import ALONE
from anabranch.run.commit import intake_of
from anabranch.run.side_output import SideOutputLayout
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.sinks.delivery import deliver
from anabranch.spark.sinks.sink import Batch, Sink
from anabranch.spark.sinks.workers import WorkerWriter
from anabranch.spark.worker import read_diverted_function, written_by
from anabranch.stats.report import SlotReports


@dataclass(frozen=True)
class LateRows:
    """The sink of diverted rows, and their layout."""

    sink: Sink
    layout: SideOutputLayout

    def deliver(
        self,
        spark: SparkSession,
        batch: Batch,
        reports: SlotReports,
        checkpoint: str,
        *,
        may_replace: bool,
    ) -> None:
        """Delivers the diverted rows of a batch.

        Skips a batch without any, unless an earlier attempt at it may have had some.
        """
        names = intake_of(reports).diverted
        if not names and not may_replace:
            return
        schema = to_spark(self.layout.schema)

        def compute(writers: Mapping[str, WorkerWriter]) -> DataFrame:
            read = read_diverted_function(names, checkpoint)
            if ALONE in writers:
                read = written_by(writers[ALONE], read)
            return spark.range(0, len(names), 1, max(1, len(names))).mapInArrow(read, schema)

        deliver({ALONE: self.sink}, batch, compute)


@dataclass
class LateRowsWarning:
    """Warns once for each stream that drops late rows without a declared watermark delay."""

    streams: frozenset[str]

    def note(self, late: Mapping[str, int]) -> None:
        """Receives the number of late rows of each stream in a batch."""
        for stream in sorted(stream for stream in self.streams if late.get(stream)):
            self.streams -= {stream}
            warnings.warn(
                f"stream '{stream}' has late rows, which are dropped: it was registered without a watermark, so its "
                "rows must arrive in order of event time; register it with watermark='10 seconds', or what it needs "
                "('0 seconds' if this is intended), or give late rows a sink of their own: late(path)",
                LateRowsDropped,
                stacklevel=2,
            )
