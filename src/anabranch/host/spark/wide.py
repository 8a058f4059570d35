"""Columns that rows are read with and that do not travel: of streams whose rows nobody has seen before the start.

The streaming plan of a query is fixed, and what it does not select cannot be asked for later. So where a query may
learn routes and no sample tells which columns decide them, the plan reads every column that a classifier could test
(`host/first_rows`). Each batch computes the classes that are known by then, before rows are sent; the columns
themselves go no further. Where slots read files, nothing of this is in the plan: the slots read the columns of the
classes that are known by then. In both cases a few of the first batches are read a second time, by a small job that
brings some of their rows to the driver.

Limit: a column that Spark reads costs its copy within a row, for as long as the query runs, used or not; so it reads
`MOST_READ` of them.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from anabranch.adapt.searches import Search, Searches
from anabranch.host.first_rows import MOST_ROWS, Draw, FirstBatches, FirstRows
from anabranch.host.spark.source import CELL, REJECTED, Cells, class_column
from anabranch.host.wire import RELATION, TIME, WireLayout
from anabranch.plan.classes import ClassColumn
from anabranch.plan.classifier import hour_attribute, hour_of
from anabranch.plan.classing import MOST_COLUMNS, Classes, classes_of
from anabranch.plan.query_set import Plans
from anabranch.stats.report import SlotReports, merged_statistics

_log = logging.getLogger(__name__)

MOST_READ = 8
"""Columns of a relation that Spark reads beyond those that a query needs, for as long as the query runs."""
_VALUES = 1 << 30
"""Parts into which the values of a key are cut, to draw some of them."""


class Wide:
    """The columns that are read beyond those that travel, and what the first batches show of them."""

    def __init__(self, first: FirstBatches, cells: Cells, *, is_read_by_slots: bool, waits: bool) -> None:
        most = MOST_COLUMNS if is_read_by_slots else MOST_READ
        self.layout = first.layout(classes_of(cells.layout.queries.graph), most)
        self._first = first
        self._cells = cells
        self._rows: FirstRows | None = FirstRows(first, self.layout)
        self._searches = Searches(waits=waits)
        self._search: Search[Classes] | None = None

    @property
    def is_drawing(self) -> bool:
        """Whether rows of the batch at hand are to be drawn."""
        return self._rows is not None and self._rows.draw is not None

    def look(self, frame: DataFrame) -> None:
        """Draws rows of a batch, which has all wide columns."""
        assert self._rows is not None
        assert self._rows.draw is not None
        layout, draw = self._cells.layout, self._rows.draw
        rows = frame.where(f.col(REJECTED) == 0) if REJECTED in frame.columns else frame
        if later := self._cells.later_copies:
            rows = rows.where(~f.col(CELL).isin(later))
        drawn = rows.where(_is_drawn(layout, draw)).select(*layout.schema.names, *self.layout.columns)
        try:
            # A batch may have many times the rows of the one before.
            self._rows.take(drawn.limit(MOST_ROWS * len(draw.relations)).toArrow())
        except PySparkException as error:
            self._rows = None
            _log.warning("nothing is learnt from the first batches, as their rows could not be drawn: %s", error)

    def after(self, reports: SlotReports, plans: Plans) -> Classes | None:
        """Takes in a batch; the classes that rows should travel with, once when they are known."""
        if self._search is not None:
            found = self._search.outcome() if self._search.is_done else None
            self._search = None if self._search.is_done else self._search
            return found
        if self._rows is None:
            return None
        self._rows.note(merged_statistics(reports.values()).rows_in)
        if not self._rows.is_complete:
            return None
        rows, self._rows = self._rows, None
        if not rows.is_telling:
            return None
        layout, learn = self._cells.layout, self._first.learn
        self._search = self._searches.begin("columns", lambda: learn(rows.samples(layout), plans), is_long=True)
        return self.after(reports, plans) if self._search.is_done else None

    def classed(self, frame: DataFrame, layout: WireLayout) -> DataFrame:
        """The rows with the classes of a layout, and without the columns that those are computed from."""
        classes: dict[str, Column] = {}
        for position, relation in enumerate(layout.queries.graph.relations):
            for each in relation.classes:
                wire = layout.classes[relation.name][each.digest]
                is_here, found = f.col(RELATION) == position, self._class(relation.name, each)
                classes[wire] = classes[wire].when(is_here, found) if wire in classes else f.when(is_here, found)
        return frame.withColumns(classes).drop(*self.layout.columns) if classes else frame.drop(*self.layout.columns)

    def _class(self, relation: str, column: ClassColumn) -> Column:
        wire = self.layout.places[relation][column.column]
        attribute = wire if hour_of(column.attribute) is None else hour_attribute(wire)
        return class_column(replace(column, attribute=attribute))

    def close(self) -> None:
        """Ends the search."""
        self._searches.close()


def _is_drawn(layout: WireLayout, draw: Draw) -> Column:
    """Whether a row is drawn: by the code of its key, so that it is drawn with its partners."""
    conditions = []
    for position, name in enumerate(layout.queries.graph.names):
        if name in draw.relations:
            has_key = draw.key is not None and name in draw.key.relations
            wire = layout.code_columns[layout.codes[name].index(draw.key.name)] if has_key and draw.key else TIME
            is_mine = f.pmod(f.xxhash64(wire), f.lit(_VALUES)) < round(draw.share * _VALUES)
            conditions.append((f.col(RELATION) == position) & is_mine)
    return reduce(Column.__or__, conditions)
