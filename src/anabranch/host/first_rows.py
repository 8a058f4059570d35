"""Rows of the first batches, as a sample of streams that could not be sampled before the start.

Rows are read with columns that nobody carries (`WideLayout`), and some of them are kept: all rows of some values of the
key that most relations share, so that a row is kept with its partners (as `host/sample.Kin`). How large the share is,
the batch before the first that is drawn from tells. Drawing ends when the rows are enough for a profile, and never goes
beyond `MOST_BATCHES`.

Law: no answer depends on what is drawn.

Limit: queries over streams alone. Rows of tables, and results of other queries, are not among those that are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import RelationBatch
from anabranch.engine.evaluate.expression import evaluate_mask
from anabranch.engine.evaluate.rows import row_hashes
from anabranch.expr import Column
from anabranch.host.profiles import SAMPLED
from anabranch.host.rows import flat
from anabranch.host.sample import FEWEST_ROWS, Kin, Sample, Stretch, narrowed, sampled, shared_key
from anabranch.host.wire import RELATION, TIME, WireLayout, placed_by_type, wire_layout
from anabranch.plan.classing import MOST_COLUMNS, Classes, further_columns
from anabranch.plan.join_graph import KeyClass
from anabranch.plan.partitioning import row_code
from anabranch.plan.query import Query
from anabranch.plan.query_set import Member, Plans, QuerySet, by_itself, partitioning_of
from anabranch.schema import Field, is_text

MOST_ROWS = 20_000
"""Rows of a relation that are kept, about."""
BATCHES = 4
"""Batches that are drawn from, at least."""
TOO_FEW = 4
"""How many times the rows that are drawn could be drawn, for the drawing to begin anew."""
MOST_BATCHES = 64
"""Batches after which what was drawn must do."""

Learn = Callable[[Mapping[str, Sample], Plans], Classes]
"""Gives the class columns that rows should travel with, by the samples of some queries and the plans of all."""


@dataclass(frozen=True)
class WideLayout:
    """Where columns stand that rows are read with and that do not travel, by relation: shared by type, as payload."""

    fields: Mapping[str, tuple[Field, ...]]

    @cached_property
    def places(self) -> Mapping[str, Mapping[str, str]]:
        """Relation to column to wire column."""
        return placed_by_type(self.fields, "_wide")[0]

    @cached_property
    def columns(self) -> Mapping[str, pa.DataType]:
        """The type of each wire column."""
        return dict(placed_by_type(self.fields, "_wide")[1])


@dataclass(frozen=True)
class FirstBatches:
    """Queries of a set that are to learn from their first batches, and what becomes of it."""

    queries: QuerySet
    """All queries of the set, which know the columns of their streams."""
    learning: Mapping[str, Query]
    """Those that learn, as they are by themselves."""
    learn: Learn
    is_asked: bool = True
    """Whether routes were asked for by name, so that reading further columns as long as a query runs may cost."""

    @cached_property
    def relations(self) -> frozenset[str]:
        return frozenset(name for query in self.learning.values() for name in query.graph.names)

    def layout(self, classes: Classes, most: int = MOST_COLUMNS) -> WideLayout:
        """The columns to read: those of classes and, of relations that are learnt from, so many that could decide.

        Texts and booleans come first: kinds and regions are such columns.
        """
        found = {}
        for relation in self.queries.graph.relations:
            needed = {each.column for each in classes.get(relation.name, ())}
            more = further_columns(relation) if relation.name in self.relations else []
            more.sort(key=lambda field: not (is_text(field.type) or pa.types.is_boolean(field.type)))
            every = [*(each for each in relation.source if each.name in needed), *more[:most]]
            found[relation.name] = tuple({each.name: each for each in every}.values())
        return WideLayout(found)


@dataclass(frozen=True)
class Draw:
    """Which rows of a batch are drawn: of relations with the key, by its values; of others, by their times."""

    relations: frozenset[str]
    key: KeyClass | None
    share: float


@dataclass
class FirstRows:
    """The rows that were drawn so far."""

    first: FirstBatches
    wide: WideLayout
    _draw: Draw | None = None
    _tables: list[pa.Table] = field(default_factory=list)
    _counts: dict[str, int] = field(default_factory=dict)
    _seen: int = 0

    @property
    def draw(self) -> Draw | None:
        """What to draw from the next batch; None before a batch has shown how much comes."""
        return self._draw

    @property
    def is_complete(self) -> bool:
        """Whether no more is to be drawn: there are rows enough, or too many, or it has taken too long."""
        if self._seen >= MOST_BATCHES:
            return True
        counts = [self._counts.get(name, 0) for name in self.first.relations]
        is_enough = min(counts) >= SAMPLED or max(counts) >= MOST_ROWS
        return len(self._tables) >= BATCHES and is_enough and min(counts) >= FEWEST_ROWS

    @property
    def is_telling(self) -> bool:
        """Whether there are rows enough of all relations to learn from."""
        return all(self._counts.get(name, 0) >= FEWEST_ROWS for name in self.first.relations)

    def note(self, arrived: Mapping[str, float]) -> None:
        """Takes in how many rows of each relation a batch had."""
        self._seen += 1
        most = max((arrived.get(name, 0.0) for name in self.first.relations), default=0.0)
        share = min(1.0, MOST_ROWS / BATCHES / most) if most else 0.0
        if share > (0.0 if self._draw is None else TOO_FEW * self._draw.share):
            # The first, or a batch that is much smaller than the one that told: a run may begin with a long backlog.
            self._draw = Draw(self.first.relations, shared_key(self.first.queries.graph), share)
            self._tables.clear()
            self._counts.clear()

    def take(self, table: pa.Table) -> None:
        """Takes in the rows that were drawn from a batch: in the wire layout, with wide columns."""
        self._tables.append(table)
        positions = table.column(RELATION).to_numpy()
        for number, name in enumerate(self.first.queries.graph.names):
            self._counts[name] = self._counts.get(name, 0) + int((positions == number).sum())

    def samples(self, layout: WireLayout) -> dict[str, Sample]:
        """The sample of each query that learns."""
        assert self._draw is not None
        rows = {name: self._rows(name, layout) for name in self.first.relations}
        return {
            name: _sample(query, self.first.queries.member(name), rows, self._draw)
            for name, query in self.first.learning.items()
        }

    def _rows(self, name: str, layout: WireLayout) -> RelationBatch:
        """The rows of a relation in order of time, with all their columns."""
        position = layout.queries.graph.names.index(name)
        table = pa.concat_tables(self._tables)
        table = table.filter(pa.array(table.column(RELATION).to_numpy() == position)).combine_chunks()
        codes = zip(layout.codes[name], layout.code_columns, strict=False)
        schema = layout.queries.graph.relation(name).schema
        columns = {each.name: (layout.payload[name][each.name], each.type) for each in schema}
        columns |= {each.name: (self.wide.places[name][each.name], each.type) for each in self.wide.fields[name]}
        batch = RelationBatch(
            table.column(TIME).to_numpy(),
            {code: table.column(wire).to_numpy() for code, wire in codes},
            pa.RecordBatch.from_pydict(
                {column: flat(table.column(wire)).cast(kind) for column, (wire, kind) in columns.items()}
            ),
        )
        return batch.take(np.argsort(batch.times, kind="stable"))


def _sample(query: Query, member: Member, rows: Mapping[str, RelationBatch], draw: Draw) -> Sample:
    """The sample of a query by itself: its own rows among those of the set, with its own codes."""
    terms = {each.relation: each.filter for each in member.terms}
    own = {shared.name: key for key, shared in zip(query.graph.keys, member.query.graph.keys, strict=True)}
    layout = wire_layout(by_itself(query), partitioning_of(by_itself(query), 1))
    found: dict[str, RelationBatch] = {}
    for name in query.graph.names:
        batch = rows[name]

        def read(column: Column, payload: pa.RecordBatch = batch.payload) -> pa.Array:
            return payload.column(column.name)

        if (condition := terms.get(name)) is not None:
            batch = batch.take(np.flatnonzero(evaluate_mask(condition, read, len(batch))))
        codes = {own[code].name: values for code, values in batch.codes.items() if code in own}
        found[name] = _coded(replace(batch, codes=codes), layout.codes[name], row_code(name))
    stretches = {
        name: Stretch(len(batch) / draw.share, float(np.ptp(batch.times)) / 1e6 if len(batch) else 0.0, 1.0)
        for name, batch in found.items()
    }
    key = None if draw.key is None or draw.share == 1.0 else own.get(draw.key.name)
    kin = None if key is None else Kin(key, draw.share, {name: found[name] for name in key.relations})
    narrow = narrowed(query, found)
    return Sample(sampled(query, stretches, narrow), narrow, kin, found)


def _coded(batch: RelationBatch, codes: Collection[str], by_rows: str) -> RelationBatch:
    if by_rows in codes and by_rows not in batch.codes:
        return replace(batch, codes={**batch.codes, by_rows: row_hashes(batch)})
    return batch
