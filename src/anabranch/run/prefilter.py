"""Filters streams by the keys of small tables before rows are sent to slots (semi-join pruning).

A stream row whose key is in no table row is part of no result of an inner join with the table. Such rows only advance
the clock of their stream, like rows that a filter rejects. Rows are compared by the codes of their keys, so a hash
collision only sends a row unnecessarily.

Invariant: a row is dropped only if no table version that could complete a result with it has its key. So pruning
applies only if a row is joined with the version of its own batch (a query of one stream), or if the first version is
kept. Queries that change or join later lack the rows (`demands`).

Limit: at most `MOST_KEYS` keys, which travel to every reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from anabranch.engine.kernels import Int64Array
from anabranch.plan.join_graph import Relation
from anabranch.plan.query_set import QuerySet
from anabranch.run.table_versions import ReadTable
from anabranch.run.tables import table_batch
from anabranch.run.wire import WireLayout

MOST_KEYS = 1_000
"""Tables with more keys do not filter: the keys are part of the task of every reader."""

TableKeys: TypeAlias = Mapping[str, Mapping[str, Int64Array]]
"""The codes of keys that rows must have, by relation of a stream and by code."""


@dataclass(frozen=True)
class Shared:
    """A key that a stream and a table have in common, by their relations."""

    stream: str
    table: str
    code: str


def shared_keys(queries: QuerySet) -> tuple[Shared, ...]:
    """Returns the keys by which tables may filter streams; empty if a later version could complete a result."""
    if len(queries.members) > 1:
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


def demands(queries: QuerySet) -> dict[str, frozenset[object]]:
    """Returns what tables demand of the rows of each relation: rows that do not meet it are never kept.

    Two sets of queries drop the same rows if their tables, the filters of these and the compared expressions are equal.
    """
    keys, found = {key.name: key for key in queries.graph.keys}, dict[str, frozenset[object]]()
    for shared in shared_keys(queries):
        table, key = queries.graph.relation(shared.table), keys[shared.code]
        demand = (table.stream, table.filter, key.expression(shared.table), key.expression(shared.stream))
        found[shared.stream] = found.get(shared.stream, frozenset()) | {demand}
    return found


class Prefilter:
    """The keys that rows must have, for the current versions of tables."""

    def __init__(self, layout: WireLayout, read: ReadTable) -> None:
        self._layout = layout
        self._read = read
        self._keys = shared_keys(layout.queries)
        self._made: tuple[dict[str, str], TableKeys] | None = None

    def keys(self, versions: Mapping[str, str]) -> TableKeys:
        """Returns the keys, cached per version."""
        if not self._keys:
            return {}
        if self._made is None or self._made[0] != versions:
            self._made = dict(versions), self._found(versions)
        return self._made[1]

    def _found(self, versions: Mapping[str, str]) -> TableKeys:
        graph = self._layout.queries.graph
        found: dict[str, dict[str, Int64Array]] = {}
        for shared in self._keys:
            relation = graph.relation(shared.table)
            rows = self._read(versions[relation.stream])
            # Most large tables have too many keys among their first rows.
            if len(self._codes(relation, shared, rows.slice(0, 2 * MOST_KEYS))) > MOST_KEYS:
                continue
            codes = self._codes(relation, shared, rows)
            if len(codes) > MOST_KEYS:
                continue
            of_stream = found.setdefault(shared.stream, {})
            known = of_stream.get(shared.code)
            of_stream[shared.code] = codes if known is None else np.intersect1d(known, codes)
        return found

    def _codes(self, relation: Relation, shared: Shared, rows: pa.Table) -> Int64Array:
        found: Int64Array = np.unique(table_batch(relation, self._layout, rows).codes[shared.code])
        return found
