"""Sorts new rows into rusters: a classifier reads some attributes of each row and names its route.

Law: the rows of a relation are classified once, when they are taken. A ruster smaller than `SMALLEST_RUSTER` goes with
the largest: a route of its own would cost more than it can save.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from anabranch.classify import AttributeColumn, lay_out
from anabranch.engine.batch import Combinations
from anabranch.engine.fabric import kernels
from anabranch.engine.fabric.ruster import CompiledRoute, Ruster
from anabranch.engine.kernels import Int64Array
from anabranch.engine.state.base import BaseState
from anabranch.plan.classifier import Classifier, attributes
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import key_columns

SMALLEST_RUSTER = 100
"""Rows below which a ruster is not worth the fixed cost of its probes (Nehme et al. 2012, Table 3)."""


class Sorting:
    """Cuts the new rows of a relation by route."""

    def __init__(self, graph: JoinGraph, base: BaseState, classifier: Classifier) -> None:
        self._base = base
        self._attributes = Attributes(graph, base, attributes(classifier))
        self._table = lay_out(classifier)

    def cut(self, found: Combinations, routes: Sequence[CompiledRoute]) -> list[Ruster]:
        """The rows of each route; a route that only few take leaves its rows to the largest."""
        relation, size = self._base.relation, len(found)
        numbers = found.rows[relation]
        labels = self._table.assign(self._attributes.glance(numbers), size)
        cut = np.empty((3, size), dtype=np.int64)
        counts = kernels.cut(labels, len(routes), SMALLEST_RUSTER, numbers, found.newest, found.deadline, cut)
        rusters, start = [], 0
        for route, count in zip(routes, counts.tolist(), strict=True):
            if count == size:
                return [whole_ruster(found, route)]
            if count:
                rows, newest, deadline = cut[:, start : start + count]
                rusters.append(whole_ruster(Combinations({relation: rows}, newest, deadline), route))
                start += count
        return rusters


class Attributes:
    """Columns of a relation's rows that a classifier may test: carried ones, and keys whose code is the value."""

    def __init__(self, graph: JoinGraph, base: BaseState, names: Iterable[str]) -> None:
        self._base = base
        codes = {name.lower(): key.name for name, key in key_columns(graph, base.relation).items()}
        fields = {name: base.schema.find(name) for name in names}
        self._columns = {name: field.name for name, field in fields.items() if field is not None}
        # A code is a number where the column may be a date or a boolean; classifiers count those the same way.
        self._codes = {name: codes[name.lower()] for name, field in fields.items() if field is None}

    def read(self, rows: Int64Array) -> dict[str, pa.Array]:
        """The columns of the rows, by the names under which they were asked for."""
        columns = {name: self._base.column(column, rows) for name, column in self._columns.items()}
        return columns | {name: pa.array(self._base.code(code, rows)) for name, code in self._codes.items()}

    def glance(self, numbers: Int64Array) -> dict[str, AttributeColumn]:
        """Like `read` for rows with rising numbers, without copying contiguous rows; valid until the next step.

        A query that shares its states with others may take in only some of the new rows.
        """
        first, last = int(numbers[0]), int(numbers[-1])
        rows = range(first, last + 1) if last - first + 1 == len(numbers) else numbers
        found: dict[str, AttributeColumn] = {name: self._base.code(code, rows) for name, code in self._codes.items()}
        for name, column in self._columns.items():
            plain = self._base.plain(column, rows)
            found[name] = self._base.column(column, rows) if plain is None else plain
        return found


def whole_ruster(found: Combinations, route: CompiledRoute) -> Ruster:
    return Ruster(found, route, route.token)
