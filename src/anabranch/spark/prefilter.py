"""Keys of small tables filter the streams before the shuffle.

A row of a stream whose key no row of a table has is part of no result of an inner join with the table. Such rows move
the clock of their stream and go no further, as rows that a filter rejects. Rows are compared by the codes of their
keys, so a row that passes by a shared hash is only sent in vain.

Law: a row is left out only if no version of the table that could complete a result with it has its key. So this is
done where a row meets the version of its own batch (a query of one stream) or where the first version stays for ever.

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
"""A table with more keys filters nothing: the keys are part of the plan of a micro-batch."""


@dataclass(frozen=True)
class Shared:
    """A key that rows of a stream share with those of a table, by the relations."""

    stream: str
    table: str
    code: str


def shared_keys(queries: QuerySet) -> tuple[Shared, ...]:
    """The keys by which tables may filter streams, none where a later version could complete a result."""
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
    """True of rows of a relation with one of these codes, and of all rows of others."""
    is_other = f.col(RELATION) != layout.queries.graph.names.index(relation)
    wire = layout.code_columns[layout.codes[relation].index(code)]
    # As one text: one call of the JVM, not one for each key.
    return is_other | f.expr(f"{wire} IN ({', '.join(f'{key}L' for key in keys)})") if keys else is_other


class Prefilter:
    """The condition that rows must pass before they are sent, for the versions of tables in force."""

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
        """The condition; None where no table filters anything. It is made once for each version."""
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
