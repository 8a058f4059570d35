"""The rows of one relation: event time, codes, payload; the only state that must survive a crash.

Everything else (intermediate states, groups, indexes) can be recomputed from the live base rows, so a checkpoint holds
only these and does not depend on the plan. `export` returns them as a `RelationBatch`, which both snapshots and
migrations use.

Invariant: a row is readable once appended, and can be found once linked. Limit: rows leave in order of arrival, so an
expired row may stay behind a live one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import Classes, Combinations, RelationBatch, deadlines, empty_batch
from anabranch.engine.compile import bands_of
from anabranch.engine.evaluate.codes import band_codes, combine_codes, key_codes
from anabranch.engine.evaluate.expression import evaluate
from anabranch.engine.evaluate.rows import row_hashes
from anabranch.engine.kernels import BoolArray, Int64Array
from anabranch.engine.state.arena import Arena, Array
from anabranch.engine.state.chunks import ChunkStore
from anabranch.engine.state.columns import numpy_form, to_arrow, to_numpy, validity
from anabranch.engine.state.counts import Counted, Counts
from anabranch.engine.state.indexed import Indexed
from anabranch.engine.state.kept import Kept
from anabranch.engine.state.ring import ANY_TIME, DEADLINE, Index, Ring
from anabranch.engine.state.texts import TextColumn, TextStore
from anabranch.lang.schema import Schema, is_fixed_width, is_text
from anabranch.lang.window import CountWindow
from anabranch.plan.classes import UNKNOWN
from anabranch.plan.join_graph import Band, JoinGraph

ABSENT = -1
"""The row number for a relation that has no row in a combination."""
WASTE = 1 << 12
"""The tolerated excess of expired rows of a count window; a state is rebuilt at twice its last size plus this."""
_HASH = "hash"
_NUMBER = "number"
_PLAIN_FORM = ("<i8", 1)
_REMOVED = ANY_TIME
"""The deadline of a removed row: nothing matches it."""


class BaseState(Indexed):
    """Live rows of a relation in a ring, with one hash index per combination of codes that some probe uses."""

    def __init__(
        self,
        arena: Arena,
        graph: JoinGraph,
        relation: str,
        codes: tuple[str, ...],
    ) -> None:
        self.declared = declared = graph.relation(relation)
        self.relation = relation
        self.schema = declared.schema
        self.window = declared.window
        self.codes = codes
        self.bands = bands_of(graph, relation)
        self._keys = {key.name: key for key in graph.keys_of([relation])}
        self._absent_codes: dict[str, int] = {}
        self._fixed = {field.name: field for field in declared.schema if is_fixed_width(field.type)}
        columns: dict[str, tuple[str, int]] = {f"code.{name}": ("<i8", 1) for name in codes}
        columns |= {f"code.{name}": ("<i8", 1) for name, _ in self.bands}
        for field in self._fixed.values():
            columns[f"value.{field.name}"] = numpy_form(field.type)
        self._classes = {each.attribute: each.digest for each in declared.classes}
        columns |= {f"class.{digest}": ("|i1", 1) for digest in self._classes.values()}
        self.may_be_absent = False
        """True if combinations may lack a row of this relation, because of an outer join."""
        self.leaves_early = False
        """True if bands allow rows to be dropped before their deadlines have passed the floors of all others."""
        self._removes = False
        """True if rows of a table have been removed, so that each has a deadline of its own."""
        if declared.is_table:
            columns[_NUMBER] = _PLAIN_FORM
        self._types = {field.name: field.type for field in declared.schema}
        texts = {field.name: field.type for field in declared.schema if is_text(field.type)}
        self.texts = TextStore(arena, relation, texts) if texts else None
        if self.texts is not None:
            columns |= self.texts.columns
        self._flat = {field.name: field for field in declared.schema if field.name in {**self._fixed, **texts}}
        """The columns that numpy can hold, texts as bytes."""
        self._with_null: set[str] = set()
        """The columns that have had a NULL; for other columns, no validity is kept."""
        self._counts = Counts(declared) if isinstance(declared.window, CountWindow) else None
        self._counted: Counted | None = None
        """The counts of the rows to be appended next."""
        self.kept_rows = 0
        """The number of rows when the state was last rebuilt."""
        if self._counts is not None:
            columns |= self._counts.columns
        self._span = None if declared.is_derived else self.window.span
        super().__init__(Ring(arena, relation, columns, span=self._span))
        if self._counts is not None:
            self.require(self._counts.indexes)
        variable = [pa.field(f.name, f.type) for f in declared.schema if f.name not in self._flat]
        self.chunks = ChunkStore(arena, relation, pa.schema(variable)) if variable else None
        self._fresh: tuple[int, Int64Array] | None = None
        """The first row that is not linked yet, and the event times of such rows, which no index has."""

    @property
    def is_spread(self) -> bool:
        """True while the state keeps the hash of each row, which spreads rows of heavy keys."""
        return _HASH in self.ring.columns

    def spread(self, wanted: bool) -> None:
        """Starts or stops keeping the hash of each row; all live rows must be linked."""
        if wanted and not self.is_spread:
            self.ring.keep_column(_HASH, _PLAIN_FORM, row_hashes(self.export()))
        elif self.is_spread and not wanted:
            self.ring.drop_column(_HASH)

    def row_hashes(self, rows: Int64Array) -> Int64Array:
        """Returns the hashes of the rows with those numbers; the state must keep them."""
        return self.ring.get(_HASH, rows)

    def layout(self) -> dict[str, Any]:
        return {
            "spread": self.is_spread,
            "removes": self._removes,
            "kept_rows": self.kept_rows,
            "with_null": sorted(self._with_null),
            "classes": sorted(self._classes.values()),
            "ring": self.ring.layout(),
            "texts": self.texts.layout() if self.texts else None,
            "chunks": self.chunks.layout() if self.chunks else None,
        }

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self.kept_rows = layout["kept_rows"]
        for name in layout["with_null"]:
            self._keep_nulls(name)
        self.ring.columns.pop(_HASH, None)
        if layout["spread"]:
            self.ring.columns[_HASH] = _PLAIN_FORM
        if layout["removes"]:
            self._use_deadlines()
            self.ring.columns[DEADLINE] = _PLAIN_FORM
        # Classes added since are unknown for the existing rows.
        lacking = [f"class.{digest}" for digest in self._classes.values() if digest not in layout["classes"]]
        for column in lacking:
            del self.ring.columns[column]
        self.ring.reopen(layout["ring"])
        for column in lacking:
            self.ring.add_column(column, "|i1", UNKNOWN)
        if self.texts is not None:
            self.texts.reopen(layout["texts"])
        if self.chunks is not None:
            self.chunks.reopen(layout["chunks"])

    @property
    def bytes(self) -> int:
        variable = (store.bytes for store in (self.texts, self.chunks) if store is not None)
        return self.ring.bytes + sum(variable)

    def count(self, batch: RelationBatch) -> None:
        """Counts the rows to be appended next, in counting order, if the relation has a count window.

        Rows that they push out have their deadlines from now on.
        """
        if self._counts is not None:
            self._counted = self._counts.count(self.ring, batch, self.column)

    def deadlines(self, rows: Int64Array) -> Int64Array:
        """Returns the deadlines, as far as known, of rows of a count window."""
        return self.ring.get(DEADLINE, rows)

    @property
    def is_wasteful(self) -> bool:
        """True when many expired rows may follow live ones: the parts of a count window fill unevenly."""
        return self._counts is not None and bool(self._counts.indexes) and self.ring.live > 2 * self.kept_rows + WASTE

    def append(self, batch: RelationBatch) -> Combinations:
        """Adds rows, readable but not yet findable, and returns each as a combination of one row."""
        columns: dict[str, Array] = {f"code.{name}": batch.codes[name] for name in self.codes}
        for name, band in self.bands:
            columns[f"code.{name}"] = _band_codes(self.relation, band, batch)
        for field in self._flat.values():
            array = batch.payload.column(field.name)
            if field.name in self._fixed:
                columns[f"value.{field.name}"] = to_numpy(array)
            if field.nullable and array.null_count and field.name not in self._with_null:
                self._keep_nulls(field.name)
            if field.name in self._with_null:
                columns[f"valid.{field.name}"] = validity(array)
        for digest in self._classes.values():
            classes = batch.classes.get(digest)
            columns[f"class.{digest}"] = np.full(len(batch), UNKNOWN, np.int8) if classes is None else classes
        if self.is_spread:
            columns[_HASH] = row_hashes(batch)
        if self.declared.is_table:
            columns[_NUMBER] = np.zeros(len(batch), np.int64) if batch.numbers is None else batch.numbers
        # Times may be in Arrow's read-only memory, or one column of several; the kernels accept neither.
        times = np.require(batch.times, requirements=["C", "W"])
        counted: Mapping[str, Array] = {}
        if self._counted is not None:
            deadline, counted, self._counted = self._counted.deadline, self._counted.columns, None
        else:
            deadline = deadlines(self.declared, batch)
        if self._span is None:
            columns[DEADLINE] = deadline
        columns |= counted
        if self.texts is not None:
            columns |= self.texts.append([batch.payload.column(name) for name in self.texts.types])
        first = self.ring.append(columns, len(batch))
        if self.chunks is not None:
            self.chunks.append(first, batch.payload.select(self.chunks.schema.names))
        self._fresh = first, times
        rows = np.arange(first, first + len(batch), dtype=np.int64)
        return Combinations({self.relation: rows}, times, deadline)

    def remove(self, numbers: Int64Array) -> None:
        """Removes those rows of a table that have one of these ascending numbers; all live rows must be linked.

        They stay in the ring, and in combinations, and match nothing any more.
        """
        live = range(self.ring.first, self.ring.next)
        if not live:
            return
        held = self.ring.get(_NUMBER, live)
        places = np.searchsorted(held, numbers)
        places = places[places < len(held)]
        if not self._removes:
            ends = self.ring.times(self.ring.numbers)[1]
            self._use_deadlines()
            self.ring.keep_column(DEADLINE, _PLAIN_FORM, ends)
        gone = places[held[places] == numbers[: len(places)]]
        self.ring.put(DEADLINE, gone + self.ring.first, _REMOVED)

    def _use_deadlines(self) -> None:
        self._removes, self._span, self.ring.span = True, None, None

    @property
    def loses_rows(self) -> bool:
        """Whether a combination may have a row that is not there any more."""
        return self.leaves_early or self._removes

    def are_there(self, rows: Int64Array) -> BoolArray:
        """Whether the rows with those numbers have been neither dropped nor removed."""
        there: BoolArray = rows >= self.ring.first
        return there & (self.ring.get(DEADLINE, rows) > _REMOVED) if self._removes else there

    def _keep_nulls(self, name: str) -> None:
        """Starts keeping the validity of a column; all values so far are valid."""
        self._with_null.add(name)
        self.ring.add_column(f"valid.{name}", "|u1", 1)

    def link(self, news: Combinations) -> None:
        """Makes appended rows findable through every index."""
        self._fresh = None
        if len(news):
            first = int(news.rows[self.relation][0])
            self.ring.link(first, partial(self._codes, range(first, first + len(news))), news.newest)

    def retain(self, indexes: tuple[Index, ...]) -> None:
        super().retain((*indexes, *(self._counts.indexes if self._counts is not None else ())))

    def require(self, indexes: tuple[Index, ...]) -> None:
        """Maintains these indexes from now on; a new one finds all live rows, which must be linked."""
        self.ring.require(indexes, lambda index: self._codes(self.ring.numbers, index))

    def _codes(self, rows: Int64Array | range, index: Index) -> Int64Array:
        return combined([self.code(name, rows) for name in index], len(rows))

    def everything(self) -> Combinations:
        """Returns all live rows, which must be linked."""
        rows = self.ring.numbers
        return Combinations({self.relation: rows}, *(self.ring.times(rows) if len(rows) else (rows, rows)))

    def keep(self, wanted: BoolArray) -> Kept:
        """Keeps only some of the live rows, which must be linked; `wanted` has a flag for each of them."""
        kept = Kept(self.ring.first, wanted)
        if not wanted.all():
            rows = kept.numbers
            self.ring.keep(rows, {} if self.texts is None else self.texts.keep(self.ring, rows))
            if self.chunks is not None:
                self.chunks.keep(rows, self.ring.first)
        return kept

    def drop(self, low: int) -> int:
        dropped = self.ring.drop(low)
        if self.texts is not None and dropped:
            self.texts.drop(self.ring)
        if self.chunks is not None and dropped:
            self.chunks.drop(self.ring.first)
        return dropped

    def times(self, rows: Int64Array) -> Int64Array:
        """Returns the event times of the rows with those numbers, linked or not."""
        first, fresh = self._fresh or (self.ring.next, None)
        is_fresh = rows >= first
        if fresh is None or not is_fresh.any():
            return self.ring.times(rows)[0]
        if is_fresh.all():
            return fresh.take(rows - first)
        return np.where(is_fresh, fresh.take(np.maximum(rows - first, 0)), self.ring.times(rows)[0])

    def code(self, name: str, rows: Int64Array | range) -> Int64Array:
        """Returns the codes of the rows with those numbers; an absent row has the code of its key over NULLs."""
        if not self._has_absent(rows):
            return self.ring.get(f"code.{name}", rows)
        codes, is_here = np.full(len(rows), self._absent_code(name), dtype=np.int64), np.asarray(rows) != ABSENT
        if is_here.any():
            codes[is_here] = self.ring.get(f"code.{name}", np.asarray(rows)[is_here])
        return codes

    def _has_absent(self, rows: Int64Array | range) -> bool:
        return self.may_be_absent and not isinstance(rows, range) and len(rows) > 0 and rows.min() == ABSENT

    def _absent_code(self, name: str) -> int:
        """Returns the code of a row of NULLs: `COALESCE(b.k, 5)` has a value even without a row of b."""
        if name not in self._absent_codes:
            nothing = pa.RecordBatch.from_pydict({field: pa.nulls(1, kind) for field, kind in self._types.items()})
            band = dict(self.bands).get(name)
            if band is not None:
                codes = _band_codes(self.relation, band, RelationBatch(np.zeros(1, dtype=np.int64), {}, nothing))
            else:
                key = self._keys[name]
                values = evaluate(key.expression(self.relation), lambda column: pa.nulls(1, column.type), 1)
                codes = key_codes(values, key.type)
            self._absent_codes[name] = int(codes[0])
        return self._absent_codes[name]

    def classes(self, attribute: str, rows: Int64Array | range) -> Classes:
        """Returns the classes of the rows with those numbers; UNKNOWN for rows restored from a checkpoint."""
        return self.ring.get(f"class.{self._classes[attribute]}", rows)

    def column(self, name: str, rows: Int64Array | range) -> pa.Array:
        """Returns a payload column of the rows with those numbers; for a range, valid until the next step.

        The value of an absent row is NULL.
        """
        if self._has_absent(rows):
            is_here = np.asarray(rows) != ABSENT
            places = pa.array(np.cumsum(is_here) - 1, mask=~is_here)
            here = self.column(name, rows[is_here]) if is_here.any() else pa.nulls(0, self._types[name])
            return here.take(places)
        field = self._flat.get(name)
        if field is None:
            assert self.chunks is not None
            return self.chunks.get(name, rows)
        valid = self.ring.get(f"valid.{name}", rows) if name in self._with_null else None
        if self.texts is not None and name in self.texts.types:
            numbers = np.arange(rows.start, rows.stop, dtype=np.int64) if isinstance(rows, range) else rows
            return self.texts.get(name, self.ring, numbers, valid)
        return to_arrow(self.ring.get(f"value.{name}", rows), valid, field.type)

    def plain(self, name: str, rows: Int64Array | range) -> Array | None:
        """Like `column` without a copy, for eight-byte numbers without NULL; None for any other column."""
        field = self._fixed.get(name)
        if field is None or field.type not in (pa.int64(), pa.float64()) or name in self._with_null:
            return None
        return self.ring.get(f"value.{name}", rows)

    def text(self, name: str) -> TextColumn | None:
        """Returns a text column in place; None for any other column, and if a text may be NULL."""
        if self.texts is None or name not in self.texts.types or name in self._with_null or self.may_be_absent:
            return None
        return self.texts.place(name, self.ring)

    def keys(self) -> RelationBatch:
        """Returns all live rows, which must be linked, without their payload."""
        rows = self.ring.numbers
        if not len(rows):
            return empty_batch(Schema(()), self.codes)
        codes = {name: self.code(name, rows) for name in self.codes}
        return RelationBatch(self.ring.times(rows)[0], codes, pa.RecordBatch.from_pydict({}))

    def export(self) -> RelationBatch:
        """Returns all live rows, which must be linked."""
        rows = self.ring.numbers
        if not len(rows):
            return empty_batch(self.schema, self.codes)
        payload = pa.RecordBatch.from_pydict({field.name: self.column(field.name, rows) for field in self.schema})
        return RelationBatch(self.ring.times(rows)[0], {name: self.code(name, rows) for name in self.codes}, payload)


def combined(codes: list[Int64Array], length: int) -> Int64Array:
    """Combines several codes per row into one; the code of no code is zero."""
    if not codes:
        return np.zeros(length, dtype=np.int64)
    return codes[0] if len(codes) == 1 else combine_codes(codes)


def _band_codes(relation: str, band: Band, batch: RelationBatch) -> Int64Array:
    is_left = relation == band.left_relation
    side = band.left if is_left else band.right
    values = evaluate(side, lambda column: batch.payload.column(column.name), len(batch))
    return band_codes(values, band.low, band.high, is_left=is_left)
