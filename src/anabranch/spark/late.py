"""The side output of late rows on Spark: from the workers to its sink, with a warning if there is no sink.

The slots write diverted rows to files of the batch, named by attempt (`Store.write_diverted`). After the step, and
before the batch commits, Spark reads those files into the sink. So diverted rows are delivered like results: a repeated
batch replaces the rows of its earlier attempt.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.errors import LateRowsDropped
from anabranch.plan.query_set import ALONE
from anabranch.run.side_output import Bounds, SideOutputLayout
from anabranch.run.slot import SlotTask
from anabranch.run.wire import RELATION, TIME, WHOLE, WireLayout
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
        task: SlotTask,
        reports: SlotReports,
        checkpoint: str,
        *,
        may_replace: bool,
    ) -> None:
        """Delivers the diverted rows of a batch.

        Skips a batch without any, unless an earlier attempt at it may have had some.
        """
        names = [
            task.rows_name(slot)
            for slot, report in reports.items()
            if sum(report.late.values()) + sum(report.ahead.values())
        ]
        if not names and not may_replace:
            return
        schema = to_spark(self.layout.schema)

        def compute(writers: Mapping[str, WorkerWriter]) -> DataFrame:
            read = read_diverted_function(names, checkpoint)
            if ALONE in writers:
                read = written_by(writers[ALONE], read)
            return spark.range(0, len(names), 1, max(1, len(names))).mapInArrow(read, schema)

        deliver({ALONE: self.sink}, batch, compute)


def only_diverted(frame: DataFrame, layout: WireLayout, diverted: SideOutputLayout, bounds: Bounds) -> DataFrame:
    """Returns the frame with full rows only for those that the bounds divert, so that no others reach the slots."""
    outside = f.lit(False)
    for position, name in enumerate(layout.queries.graph.names):
        if name not in bounds.floors:
            continue  # a table
        beyond = f.col(TIME) < bounds.floors[name]
        if (ceiling := bounds.ceilings.get(name)) is not None:
            beyond = beyond | (f.col(TIME) > ceiling)
        outside = f.when(f.col(RELATION) == position, beyond).otherwise(outside)
    columns = (f"{WHOLE}{number}" for number in range(len(diverted.streams)))
    return frame.withColumns({name: f.when(outside, f.col(name)) for name in columns})


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
