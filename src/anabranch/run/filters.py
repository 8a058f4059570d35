"""Measures selectivity and cost of filters on single relations, which determine where a filter is placed.

The sampled rows must be unfiltered, so the query is sampled with these filters deferred. The engine's evaluator is
timed on all sampled rows at once. Limit: a filter that fails on unfiltered rows is not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import thread_time

import pyarrow as pa

from anabranch.engine.batch import RelationBatch
from anabranch.engine.evaluate.expression import evaluate_mask
from anabranch.errors import ExpressionError
from anabranch.lang.expr import Column, Expr
from anabranch.plan.query import Query
from anabranch.stats.filters import SeenFilter

FEWEST_ROWS = 1_000
"""The number of rows below which the cost and the selectivity of a filter stay unknown."""
TURNS = 3
"""The number of evaluations of a filter; the fastest counts."""


def seen_filters(query: Query, rows: Mapping[str, RelationBatch]) -> tuple[SeenFilter, ...]:
    """Measures the deferred filters of a query on sampled rows.

    Leaves out filters of relations with fewer than `FEWEST_ROWS` rows.
    """
    found = []
    for theta in query.graph.thetas:
        if len(theta.relations) != 1:
            continue
        (name,) = theta.relations
        batch = rows.get(name)
        if batch is None or len(batch) < FEWEST_ROWS:
            continue
        try:
            passing, seconds = timed(theta.predicate, batch)
        except ExpressionError:
            continue  # it fails on rows that another condition would have rejected first
        share, each = max(passing, 0.5) / len(batch), seconds / len(batch)
        found.append(SeenFilter(name, str(theta), share, each))
    return tuple(found)


def timed(condition: Expr, rows: RelationBatch) -> tuple[float, float]:
    """Returns the number of rows that pass, and the CPU seconds of evaluating all rows; tests replace this function."""

    def read(column: Column) -> pa.Array:
        return rows.payload.column(column.name)

    least, passing = float("inf"), 0.0
    for _ in range(TURNS):
        started = thread_time()
        passing = float(evaluate_mask(condition, read, len(rows)).sum())
        least = min(least, thread_time() - started)
    return passing, least


def bytes_of_columns(rows: Mapping[str, RelationBatch]) -> dict[str, dict[str, float]]:
    """Returns the mean bytes of a value of each column, by relation."""
    return {
        name: {each: batch.payload.column(each).nbytes / len(batch) for each in batch.payload.schema.names}
        for name, batch in rows.items()
        if len(batch)
    }
