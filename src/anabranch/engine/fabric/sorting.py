"""Divides new rows into row groups: a classifier reads some attributes of each row and selects its route.

Invariant: the rows of a relation are classified once, on arrival. A group smaller than `SMALLEST_ROW_GROUP` joins the
largest: a separate route would cost more than it saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import Classes, Combinations
from anabranch.engine.fabric import kernels
from anabranch.engine.fabric.row_group import CompiledRoute, RowGroup
from anabranch.engine.kernels import Int64Array
from anabranch.engine.state.base import BaseState
from anabranch.lang.arrays import Doubles
from anabranch.plan.classes import UNKNOWN, ClassColumn
from anabranch.plan.classifier import Classifier, attributes, column_of
from anabranch.plan.classify import AttributeColumn, hours, lay_out
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import key_columns

SMALLEST_ROW_GROUP = 100
"""The number of rows below which a group does not pay for the fixed cost of its probes (Nehme et al. 2012, Table 3)."""


class Sorting:
    """Divides the new rows of a relation by route."""

    def __init__(self, graph: JoinGraph, base: BaseState, classifier: Classifier) -> None:
        self._base = base
        self._attributes = Attributes(graph, base, attributes(classifier))
        self._table = lay_out(classifier)

    def cut(self, found: Combinations, routes: Sequence[CompiledRoute]) -> list[RowGroup]:
        """Returns the rows of each route; rows of a route with too few rows join the largest."""
        relation, size = self._base.relation, len(found)
        numbers = found.rows[relation]
        labels = self._table.assign(self._attributes.glance(numbers), size)
        cut = np.empty((3, size), dtype=np.int64)
        counts = kernels.cut(labels, len(routes), SMALLEST_ROW_GROUP, numbers, found.newest, found.deadline, cut)
        row_groups, start = [], 0
        for route, count in zip(routes, counts.tolist(), strict=True):
            if count == size:
                return [RowGroup(found, route)]
            if count:
                rows, newest, deadline = cut[:, start : start + count]
                row_groups.append(RowGroup(Combinations({relation: rows}, newest, deadline), route))
                start += count
        return row_groups


class Attributes:
    """Attributes of a relation's rows that a classifier may test, in the order of `plan.mesh.attributes_of`."""

    def __init__(self, graph: JoinGraph, base: BaseState, names: Iterable[str]) -> None:
        self._base = base
        codes = {name.lower(): key.name for name, key in key_columns(graph, base.relation).items()}
        classes = {each.attribute: _Decoding.of(each) for each in base.declared.classes}
        self._columns: dict[str, str] = {}
        self._codes: dict[str, str] = {}
        self._classes: dict[str, _Decoding] = {}
        self._hours: dict[str, str] = {}
        for name in names:
            if (field := base.schema.find(name)) is not None:
                self._columns[name] = field.name
            elif name.lower() in codes:
                # A number even if the column is a date or a boolean; classifiers treat those the same way.
                self._codes[name] = codes[name.lower()]
            elif name in classes:
                self._classes[name] = classes[name]
            else:
                self._hours[name] = column_of(name)

    def read(self, rows: Int64Array) -> dict[str, pa.Array]:
        """Returns the columns of the rows, by the requested names."""
        columns = {name: self._base.column(column, rows) for name, column in self._columns.items()}
        columns |= {name: pa.array(self._base.code(code, rows)) for name, code in self._codes.items()}
        columns |= {name: pa.array(self._hours_of(column, rows)) for name, column in self._hours.items()}
        for name, decoding in self._classes.items():
            values = decoding.decoded(self._base.classes(name, rows))
            columns[name] = pa.array(values) if isinstance(values, np.ndarray) else values.dictionary_decode()
        return columns

    def glance(self, numbers: Int64Array) -> dict[str, AttributeColumn]:
        """Like `read` for rows with ascending numbers, without copying contiguous rows; valid until the next step.

        A query that shares its states with others may use only some of the new rows.
        """
        first, last = int(numbers[0]), int(numbers[-1])
        rows = range(first, last + 1) if last - first + 1 == len(numbers) else numbers
        found: dict[str, AttributeColumn] = {name: self._base.code(code, rows) for name, code in self._codes.items()}
        for name, column in self._columns.items():
            plain = self._base.plain(column, rows)
            found[name] = self._base.column(column, rows) if plain is None else plain
        found |= {name: each.decoded(self._base.classes(name, rows)) for name, each in self._classes.items()}
        return found | {name: self._hours_of(column, numbers) for name, column in self._hours.items()}

    def _hours_of(self, column: str, rows: Int64Array) -> Doubles:
        base = self._base
        is_event_time = column == base.declared.event_time
        return hours(base.times(rows) if is_event_time else base.column(column, rows))


@dataclass(frozen=True, eq=False)
class _Decoding:
    """The values that represent the classes of an attribute: numbers by class, NaN for UNKNOWN; or texts."""

    numbers: Doubles
    texts: pa.Array | None

    @classmethod
    def of(cls, column: ClassColumn) -> _Decoding:
        if column.is_text:
            return cls(np.empty(0), pa.array(column.values, pa.string()))
        return cls(np.array([np.nan, *column.values], dtype=np.float64), None)

    def decoded(self, classes: Classes) -> Doubles | pa.DictionaryArray:
        if self.texts is None:
            found: Doubles = self.numbers.take(classes)
            return found
        places = pa.array(classes.astype(np.int32) - 1, mask=classes == UNKNOWN)
        return pa.DictionaryArray.from_arrays(places, self.texts)
