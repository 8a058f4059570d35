"""Filters streams by the keys of small tables before the shuffle (semi-join pruning).

A stream row whose key is in no table row is part of no result of an inner join with the table. Such rows only advance
the clock of their stream, like rows that a filter rejects. Rows are compared by the codes of their keys, so a hash
collision only sends a row unnecessarily.

Invariant: a row is dropped only if no table version that could complete a result with it has its key. So pruning
applies only if a row is joined with the version of its own batch (a query of one stream), or if the first version is
kept.

Limit: at most `MOST_KEYS` keys, which are part of the plan of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pyspark.sql import Column
from pyspark.sql import functions as f

from anabranch.plan.query_set import ALONE, QuerySet
from anabranch.run.tables import ReadTable, table_batch
from anabranch.run.wire import RELATION, WireLayout

MOST_KEYS = 1_000
"""Tables with more keys do not filter: the keys are part of the plan of a micro-batch."""


@dataclass(frozen=True)
class Shared:
    """A key that a stream and a table have in common, by their relations."""

    stream: str
    table: str
    code: str


def shared_keys(queries: QuerySet) -> tuple[Shared, ...]:
    """Returns the keys by which tables may filter streams; empty if a later version could complete a result."""
    if queries.names != (ALONE,):
        return ()
    (member,) = queries.members
    graph = member.query.graph
    if len(member.query.whole.streamed) > 1 and not queries.needs_watermark:
        return ()
    relations = {relation.name: relation for relation in graph.relations}
    return tuple(
        Shared(stream, table, key.name)
        for key in graph.keys
        for stream in sorted(key.relations)
        for table in sorted(key.relations)
        if relations[table].is_table and not relations[stream].is_table and not relations[stream].window.is_counted
    )


def _has_key(layout: WireLayout, relation: str, code: str, keys: Sequence[int]) -> Column:
    """Returns a condition: true for rows of the relation with one of these codes and for rows of other relations."""
    is_other = f.col(RELATION) != layout.queries.graph.names.index(relation)
    wire = layout.code_columns[layout.codes[relation].index(code)]
    # As one text: one JVM call instead of one per key.
    return is_other | f.expr(f"{wire} IN ({', '.join(f'{key}L' for key in keys)})") if keys else is_other


class Prefilter:
    """The condition for rows to be sent, for the current versions of tables."""

    def __init__(self, layout: WireLayout, read: ReadTable) -> None:
        self._layout = layout
        self._read = read
        self._keys = shared_keys(layout.queries)
        self._made: tuple[dict[str, str], Column | None] | None = None

    @property
    def may_filter(self) -> bool:
        """Whether some version of a table could filter a stream."""
        return bool(self._keys)

    def condition(self, versions: Mapping[str, str]) -> Column | None:
        """Returns the condition; None if no table filters. It is cached per version."""
        if self._made is None or self._made[0] != versions:
            self._made = dict(versions), self._condition(versions)
        return self._made[1]

    def _condition(self, versions: Mapping[str, str]) -> Column | None:
        graph = self._layout.queries.graph
        found: Column | None = None
        for shared in self._keys:
            relation = graph.relation(shared.table)
            rows = self._read(versions[relation.stream])
            codes = np.unique(table_batch(relation, self._layout, rows).codes[shared.code])
            if len(codes) > MOST_KEYS:
                continue
            passes = _has_key(self._layout, shared.stream, shared.code, codes.tolist())
            found = passes if found is None else found & passes
        return found
