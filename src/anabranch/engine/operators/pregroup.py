"""The lower stage of a two-stage group-by: merges rows that are indistinguishable above, before they join.

Invariant: a merged row represents a set of rows (or of combinations of a sub-join) that count at the same boundaries
and agree in everything that operators above read; `plan.pregrouping` defines what that is. So it joins as any of them
would, and the newest of them is kept in its place: joins, checks and keys are unaffected. The weight and the parts of
the aggregates are carried along by value. Merging merged rows is idempotent.

Times become boundaries: the newest time of a merged row is the first boundary it counts at, and its deadline is the
last. A combination counts at a boundary iff all its rows do, so the test of newest and deadline is exact for grouped
queries. Rows that count at no boundary are dropped.

The state of a merged input is derived from base rows, like any intermediate state. New rows are merged among themselves
on arrival. `compact` merges the whole state when it has doubled, so that its size is within twice the number of
distinct rows, at a constant cost per row. Limit: `compact` renumbers rows and must not run while two plans share the
state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import CarriedColumn, Combinations
from anabranch.engine.evaluate.expression import evaluate
from anabranch.engine.operators.group_by import Carried, boundaries, raw_parts, reduced
from anabranch.engine.operators.join import code_reader, keep, living, read_column
from anabranch.engine.ownership import Ownership
from anabranch.engine.state.arena import Array
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.columns import numpy_form, to_arrow, to_numpy, validity
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.lang.expr import Column
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import PreGroup
from anabranch.plan.pregrouping import Part, agreement, parts_of
from anabranch.plan.query import Grouping, Query

_WEIGHT = Part("weight", -1, "count", pa.int64())
_POSITION = Part("position", -1, "max", pa.int64())
COMPACT_AT = 1 << 10
"""A smaller state is not worth merging again."""


class Merger:
    """Merges the rows of one input, given the states that its row numbers refer to."""

    def __init__(
        self,
        graph: JoinGraph,
        grouping: Grouping,
        relations: Sequence[str],
        bases: Mapping[str, BaseState],
        owns: Ownership | None = None,
    ) -> None:
        self.grouping = grouping
        self.agreement = agreement(graph, grouping, relations)
        self.bases = bases
        self.codes = code_reader(bases, graph)
        self.owns = owns
        self._marks: Mapping[str, int] = {}

    def tell_apart(self, marks: Mapping[str, int]) -> None:
        """During a migration with two plans, keeps rows before these numbers separate from later ones."""
        self._marks = {name: mark for name, mark in marks.items() if name in self.agreement.relations}

    def work(self, found: Combinations) -> Combinations:
        """Merges combinations; drops those that count at no boundary."""
        first, last = boundaries(found.newest, found.deadline, self.grouping)
        counts = first <= last
        if not counts.all():
            found, first, last = keep(found, counts), first[counts], last[counts]
        if not len(found):
            return found
        length = len(found)

        def read(column: Column) -> pa.Array:
            return read_column(self.bases, column, found)

        agreed = {"first": pa.array(first), "last": pa.array(last)}
        agreed |= {f"code.{name}": pa.array(self.codes(name, found)) for name in self.agreement.codes}
        agreed |= {f"value{i}": evaluate(value, read, length) for i, value in enumerate(self.agreement.values)}
        agreed |= {f"old.{name}": pa.array(found.rows[name] < mark) for name, mark in self._marks.items()}
        if self.owns is not None:
            # Slots may share rows; rows that different slots will own must stay separate.
            agreed["group"] = pa.array(self.owns.group(found, self.bases))
            agreed["old"] = pa.array(self.owns.is_old(found, self.bases))
        below = carried_by(self.grouping, found)
        columns = raw_parts(self.grouping, self.agreement.carried, read, length, below)
        columns["weight"] = pa.array(np.multiply.reduce([np.ones(length, np.int64), *(part.weight for part in below)]))
        columns["position"] = pa.array(np.arange(length))
        parts = (_WEIGHT, *self.agreement.carried)
        merged = reduced(pa.table(agreed | columns), list(agreed), (*parts, _POSITION)).combine_chunks()
        first, last = merged.column("first").to_numpy(), merged.column("last").to_numpy()
        kept = found.take(merged.column("position").to_numpy())
        carried: dict[CarriedColumn, Array] = {}
        for part in parts:
            values = merged.column(part.name).combine_chunks()
            column = CarriedColumn(self.agreement.relations, part.name)
            carried[column] = to_numpy(values)
            if part.function != "count":
                carried[column._replace(is_validity=True)] = validity(values)
        return Combinations(kept.rows, self.grouping.instant(first), self.grouping.instant(last), carried)

    def compact(self, state: IntermediateState, low: int) -> None:
        """Merges the whole state of the input if it has grown enough to pay; drops what expires before `low`."""
        if state.ring.live < max(COMPACT_AT, 2 * state.compacted):
            return
        found = state.everything()
        # An overdue combination may follow a live one, and its base rows may be gone.
        merged = self.work(living(keep(found, found.deadline >= low), self.bases))
        state.ring.clear()
        state.insert(merged, self.codes)
        state.compacted = len(merged)


def merged_columns(plan: PreGroup, query: Query) -> dict[CarriedColumn, tuple[str, int]]:
    """The columns that the rows of a merged input carry: numpy kind, and values per row."""
    assert query.grouping is not None
    agreed = agreement(query.graph, query.grouping, plan.relations)
    columns: dict[CarriedColumn, tuple[str, int]] = {}
    for part in (_WEIGHT, *agreed.carried):
        column = CarriedColumn(agreed.relations, part.name)
        columns[column] = numpy_form(part.type)
        if part.function != "count":
            columns[column._replace(is_validity=True)] = ("|u1", 1)
    return columns


def carried_by(grouping: Grouping, found: Combinations) -> list[Carried]:
    """Returns the weights and parts of each merged input of some combinations, for the group-by above."""
    types = {part.name: part.type for i, call in enumerate(grouping.aggregates) for part in parts_of(i, call)}
    merged: dict[frozenset[str], dict[CarriedColumn, Array]] = defaultdict(dict)
    for column, values in found.carried.items():
        merged[column.merged][column] = values
    return [_carried(relations, columns, types) for relations, columns in merged.items()]


def _carried(
    relations: frozenset[str], columns: Mapping[CarriedColumn, Array], types: Mapping[str, pa.DataType]
) -> Carried:
    """Returns the weights and parts of the merged rows of one input."""
    parts = {
        column.part: to_arrow(values, columns.get(column._replace(is_validity=True)), types[column.part])
        for column, values in columns.items()
        if column.part in types and not column.is_validity
    }
    return Carried(columns[CarriedColumn(relations, _WEIGHT.name)], parts)
