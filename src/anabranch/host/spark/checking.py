"""What dear filters that Spark checks did to the rows of a micro-batch: counts, observed on the way to the slots.

Rows bear the number of the part of their relation's filter that rejected them (`source.REJECTED`). How many bear which
number says how many reached each part, and how many passed it.

Limit: Spark does not tell the seconds of a part, so these are 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f

from anabranch.expr import Expr
from anabranch.host.spark.source import REJECTED, Cells, checked_parts
from anabranch.host.wire import RELATION
from anabranch.plan.dearness import is_dear
from anabranch.plan.query_set import QuerySet
from anabranch.stats.step import CheckStatistics, merged_checks


def counts(queries: QuerySet) -> list[Column]:
    """Columns to observe: of each relation with dear filters, how many rows bear which number."""
    return [
        f.count(f.when((f.col(RELATION) == position) & (f.col(REJECTED) == number), 1)).alias(_name(position, number))
        for position, parts in _checked(queries)
        for number in range(len(parts) + 1)
    ]


def checks(cells: Cells, observed: Mapping[str, Any]) -> tuple[CheckStatistics, ...]:
    """The dear filters, from what was observed; a row that travels as several copies counts once."""
    found, queries = [], cells.layout.queries
    for position, parts in _checked(queries):
        copies = cells.copies(queries.graph.names[position])
        by_number = [int(observed[_name(position, number)] or 0) // copies for number in range(len(parts) + 1)]
        reached = sum(by_number)
        for rejected, several in zip(by_number[1:], parts, strict=True):
            if is_dear(several[0]):
                found.append(CheckStatistics(str(several[0]), reached, reached - rejected))
            reached -= rejected
    return merged_checks(found)


def _checked(queries: QuerySet) -> Iterator[tuple[int, tuple[tuple[Expr, ...], ...]]]:
    for position, relation in enumerate(queries.graph.relations):
        if not relation.is_table and not relation.is_result:
            parts = checked_parts(relation)
            if any(is_dear(several[0]) for several in parts):
                yield position, parts


def _name(position: int, number: int) -> str:
    return f"_rejected_{position}_{number}"
