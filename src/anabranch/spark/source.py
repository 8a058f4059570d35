"""The streams of a query as one streaming frame in the wire layout, computed by Spark SQL.

Every relation becomes (relation, event time, codes, shared payload columns, cell). A micro-batch is a part of the union
of all relations. The cell of a row is its place in the grid; the table of the batch maps cells to slots (`Routing`), so
that partition groups can move while the query runs. Cells of heavy keys are found batch by batch, from the columns that
travel; the streaming plan does not know them.

A row that the relation's filter rejects still advances the clock of its stream. A filter that was written by the user
travels as a boolean column until the largest event times have been observed. A filter that only keeps NULL keys out
(most queries have no other) rejects few rows, and observing costs more than carrying those: each goes to one
slot under the complement of its relation's number, as a bare time (`WireLayout.without_rejected`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, ByteType, IntegerType, MapType, StructType, TimestampType, VariantType

from anabranch.engine.evaluate.rows import key_names, spread_columns
from anabranch.lang.expr import Call, Expr, conjuncts
from anabranch.plan.classes import ClassColumn
from anabranch.plan.classifier import case_expression
from anabranch.plan.cost_rank import costliest_last
from anabranch.plan.join_graph import Relation
from anabranch.plan.partitioning import Dimension, Partitioning, row_code
from anabranch.run.side_output import SideOutputLayout
from anabranch.run.wire import RELATION, TIME, WHOLE, WireLayout
from anabranch.spark.arrow_schema import data_type, nulls_of
from anabranch.spark.expressions import key_code, quote, to_column, value_code
from anabranch.spark.locality import SLOT, anchored, slot_keys
from anabranch.spark.offsets import in_scan_order
from anabranch.spark.own import register_functions

PASSES, CELL = "_passes", "_cell"
_MOST_RUNS = 8
_NOT_HASHED = (ArrayType, MapType, StructType, VariantType)


@dataclass(frozen=True)
class Cells:
    """The numbers that the streaming plan gives to rows: their place in the grid, and which copy of a row it is.

    The numbers run through all relations. A row that several slots need by the table of the start travels as that many
    copies, as long as all rows of its relation need equally many; so only rows of such relations are copied.
    """

    layout: WireLayout
    start: Partitioning

    def copies(self, relation: str) -> int:
        """How many copies of each row travel."""
        counts = {len(slots) for slots in self.start.slots_of(relation)}
        return counts.pop() if len(counts) == 1 else 1

    def first(self, relation: str) -> int:
        """The number of the relation's first cell."""
        before = itertools.takewhile(lambda name: name != relation, self.layout.queries.graph.names)
        return sum(len(self.start.slots_of(name)) * self.copies(name) for name in before)

    def column(self, relation: str, columns: Mapping[str, Column]) -> Column:
        """The number of a row; a generator of them where the row is copied. A row that was rejected is not copied."""
        copies = self.copies(relation)
        number = _place(self.layout, self.start, relation, columns) * copies + self.first(relation)
        if copies == 1:
            return number.cast(IntegerType())
        numbers = [(number + copy).cast(IntegerType()) for copy in range(copies)]
        return f.explode(f.when(columns[RELATION] < 0, f.array(numbers[0])).otherwise(f.array(*numbers)))

    def rows(self, sent: Mapping[int, int]) -> dict[str, int]:
        """The rows of each relation of a stream, by the rows that are sent under each number of a relation."""
        return {
            relation.name: sent.get(position, 0) // self.copies(relation.name)
            + (0 if relation.is_derived else sent.get(~position, 0))
            for position, relation in enumerate(self.layout.queries.graph.relations)
            if not relation.is_table and not relation.is_result
        }

    @property
    def later_copies(self) -> list[int]:
        """The numbers of copies beyond the first one of a row."""
        found = []
        for name in self.layout.queries.graph.names:
            copies, first = self.copies(name), self.first(name)
            count = len(self.start.slots_of(name)) * copies
            found += [first + number for number in range(count) if number % copies]
        return found

    def slots(self, table: Partitioning) -> list[tuple[int, ...]]:
        """The slots of each number by a table over the same grid; of several copies, the first goes to all of them."""
        found: list[tuple[int, ...]] = []
        for name in self.layout.queries.graph.names:
            copies = self.copies(name)
            for slots in table.slots_of(name)[: table.first_cell(name, 0)]:
                is_as_copied = table == self.start and len(slots) == copies
                found += [(slot,) for slot in slots] if is_as_copied else [slots, *[()] * (copies - 1)]
        return found


def tagged_union(
    cells: Cells,
    frames: Mapping[str, DataFrame],
    diverted: SideOutputLayout | None = None,
    scans: Sequence[tuple[int, Relation] | str] | None = None,
) -> DataFrame:
    """All relations in the wire layout, with the cell of each row, and whether it passes where that is to be observed.

    With a layout of diverted rows, the whole row of its stream travels along, until the batch knows which are diverted.

    Each relation is one projection, because Spark plans it anew for every micro-batch. Expressions that the user did
    not write are built without SQL text: the first text of a session takes Spark's parser a second.
    """
    layout = cells.layout
    relations = layout.queries.graph.relations
    is_observed = has_observed_filters(each for each in relations if not each.is_result)
    parts = []
    for scan in in_scan_order(layout.queries, None) if scans is None else scans:
        if isinstance(scan, str):
            parts.append(_nothing(layout, frames[scan], is_observed))
            continue
        position, relation = scan[0], relations[scan[0]]
        columns = wire_columns(position, relation, layout, frames[relation.stream])
        passes = columns.pop(PASSES)
        if relation.filter is not None and keeps_null_keys_out(relation.filter):
            columns[RELATION] = f.when(passes, position).otherwise(~position).cast(ByteType())
            passes = f.lit(True)
        columns[CELL] = cells.column(relation.name, columns)
        if is_observed:
            columns[PASSES] = passes
        if diverted is not None:
            columns |= _whole_rows(relation, diverted)
        parts.append(_selected(relation, frames[relation.stream], columns))
    return reduce(DataFrame.unionAll, parts)


def _whole_rows(relation: Relation, diverted: SideOutputLayout) -> dict[str, Column]:
    """The whole row of the relation's stream, and NULL in the places of the other streams."""
    columns = {}
    for number, (name, schema) in enumerate(diverted.streams.items()):
        whole = f.struct(*map(_named, schema.names)) if name == relation.stream else f.lit(None)
        columns[f"{WHOLE}{number}"] = whole.cast(data_type(diverted.struct(name), name))
    return columns


def below_ceilings(names: Sequence[str], bounds: Mapping[str, int]) -> Column:
    """The event time of a row, or NULL if it lies beyond the ceiling of its relation."""
    time = f.col(TIME)
    for position, name in enumerate(names):
        if (ceiling := bounds.get(name)) is not None:
            is_here = f.col(RELATION).isin(position, ~position)
            time = f.when(is_here & (f.col(TIME) > ceiling), f.lit(None)).otherwise(time)
    return time


def _nothing(layout: WireLayout, frame: DataFrame, is_observed: bool) -> DataFrame:
    """A scan of a stream that no query reads: no rows, in the wire layout."""
    columns = {field.name: f.lit(None).cast(nulls_of(field.type, field.name)) for field in layout.sent}
    columns |= {RELATION: f.lit(0).cast(ByteType()), TIME: f.lit(0).cast("long"), CELL: f.lit(0).cast(IntegerType())}
    columns |= {PASSES: f.lit(True)} if is_observed else {}
    return frame.where(f.lit(False)).select(*(column.alias(name) for name, column in columns.items()))


def has_observed_filters(relations: Iterable[Relation]) -> bool:
    """True when some relation of a stream has a filter that rejects more than NULL keys."""
    filters = (relation.filter for relation in relations if not relation.is_table)
    return any(condition is not None and not keeps_null_keys_out(condition) for condition in filters)


def keeps_null_keys_out(condition: Expr) -> bool:
    """True of a conjunction of IS NOT NULL tests."""
    return all(isinstance(part, Call) and part.function == "is_not_null" for part in conjuncts(condition))


def wire_columns(position: int, relation: Relation, layout: WireLayout, frame: DataFrame) -> dict[str, Column]:
    """Every wire column of a relation, and whether a row passes its filter."""
    keys = {key.name: key for key in layout.queries.graph.keys_of([relation.name])}
    computed = [key.expression(relation.name) for key in keys.values()]
    computed += [relation.filter] if relation.filter is not None else []
    register_functions(frame.sparkSession, computed, relation.stream)
    selected = {
        RELATION: f.lit(position).cast(ByteType()),
        TIME: event_micros(relation),
    }
    for wire, code in zip(layout.code_columns, layout.codes[relation.name], strict=False):
        if code == row_code(relation.name):
            selected[wire] = f.xxhash64(*map(_named, _hashable(frame)))
        else:
            key = keys[code]
            selected[wire] = key_code(key.expression(relation.name), key.type)
            has_nulls = layout.queries.has_terms(relation.name) or layout.queries.has_sides
            if has_nulls or relation.window.is_counted:
                # Rows without this key are of use to the queries that do not compare it; the others filter them. In
                # an outer join they come out alone, and a count window counts them.
                selected[wire] = f.coalesce(selected[wire], f.lit(0))
    selected |= {wire: _named(name) for name, wire in layout.payload[relation.name].items()}
    selected |= {layout.classes[relation.name][each.digest]: class_column(each) for each in relation.classes}
    nulls = {
        field.name: f.lit(None).cast(nulls_of(field.type, field.name))
        for field in layout.sent
        if field.name not in selected
    }
    columns = {name: (selected | nulls)[name] for name in layout.sent.names}
    columns[PASSES] = (
        f.lit(True) if relation.filter is None else f.coalesce(to_column(costliest_last(relation.filter)), f.lit(False))
    )
    return columns


def class_column(column: ClassColumn) -> Column:
    """The class of a row in an attribute; see `plan.classes`."""
    return f.expr(case_expression(column.tree, {column.attribute: column.type})).cast(ByteType())


def event_micros(relation: Relation) -> Column:
    """The event time of a row of the relation, in microseconds."""
    return f.unix_micros(_named(relation.event_time).cast(TimestampType()))


def _selected(relation: Relation, frame: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    timed = frame.where(_named(relation.event_time).isNotNull())
    return timed.select(*(column.alias(name) for name, column in columns.items()))


def _named(column: str) -> Column:
    return f.col(quote(column))


@dataclass(frozen=True)
class Routing:
    """The slots to which rows go by one table, as an expression; made once for all batches of the table."""

    partitions: int
    """One for each slot that has groups, in the order of the slots."""
    slot: Column
    """The key of a row's slot; a generator of several where rows are copied."""
    copies: bool

    def send(self, frame: DataFrame, anchor: DataFrame | None = None) -> DataFrame:
        """The rows of a micro-batch, each in the partition of its slot; with an anchor, where that is.

        The cell travels along: taking it off would cost a plan node, reading past it costs nothing.
        """
        if anchor is None and not self.copies:
            # As an expression of the shuffle alone: a column of its own would copy every row.
            return frame.repartition(self.partitions, self.slot)
        rows = frame.withColumn(SLOT, self.slot).repartition(self.partitions, SLOT)
        return rows if anchor is None else anchored(rows, anchor)


def routing(cells: Cells, table: Partitioning) -> Routing:
    """Where rows go by a table."""
    layout = cells.layout
    if is_same := cells.start.dimensions == table.dimensions:
        cell, needed = f.col(CELL), cells.slots(table)
    else:
        # Another grid: cells follow from the codes that travel with the rows.
        cell = _cell_of_codes(layout, table)
        names = layout.queries.graph.names
        needed = [slots for name in names for slots in table.slots_of(name)[: table.first_cell(name, 0)]]
    if table.heavy:
        cell, of_heavy = _with_heavy(layout, table, cell, len(needed))
        needed += of_heavy
    if (not is_same or table.heavy) and (later := cells.later_copies):
        # Of several copies one is enough.
        needed.append(())
        cell = f.when(f.col(CELL).isin(later), len(needed) - 1).otherwise(cell)
    # Slots without groups have no partition.
    keys = dict(zip(table.working, slot_keys(len(table.working)), strict=True))
    if all(len(slots) == 1 for slots in needed):
        one = [f.lit(keys[slot]) for (slot,) in needed]
        return Routing(len(keys), _entry(needed, one, cell), copies=False)
    several = [f.array(*(f.lit(keys[slot]) for slot in slots)) for slots in needed]
    # What was rejected goes to one slot.
    slots = f.when(f.col(RELATION) < 0, f.array(f.lit(keys[table.working[0]]))).otherwise(_entry(needed, several, cell))
    return Routing(len(keys), f.explode(slots), copies=True)


def _with_heavy(
    layout: WireLayout, table: Partitioning, cell: Column, first: int
) -> tuple[Column, list[tuple[int, ...]]]:
    """The cell of a row where some rows have heavy keys, and the slots of the cells numbered from `first` on.

    The same numbers as `engine.ownership` computes: the first heavy key that a row has decides.
    """
    found: Column | None = None
    needed: list[tuple[int, ...]] = []
    for position, relation in enumerate(layout.queries.graph.relations):
        name = relation.name
        before = table.first_cell(name, 0)
        for number, key in enumerate(table.heavy):
            share = key.share(name)
            if share is None:
                continue
            code = layout.code_columns[layout.codes[name].index(key.code)]
            is_heavy = (f.col(RELATION) == position) & (f.col(code) == key.value)
            others = tuple(dimension for dimension in table.members(name) if dimension.code != key.code)
            place = _mixed(layout, others, name, {each: f.col(each) for each in layout.code_columns}) * share
            if share > 1:
                place += f.pmod(f.xxhash64(_row_hash(layout, relation)), f.lit(share))
            place += first + len(needed) + table.first_cell(name, number) - before
            found = f.when(is_heavy, place) if found is None else found.when(is_heavy, place)
        needed += table.slots_of(name)[before:]
    assert found is not None, "a heavy key has relations"
    return found.otherwise(cell), needed


def _row_hash(layout: WireLayout, relation: Relation) -> Column:
    """The hash of a row, from the columns that travel; the same as `engine.evaluate.rows` computes."""
    codes = layout.codes[relation.name]
    wires = [layout.code_columns[codes.index(code)] for code in key_names(codes)]
    kinds = {field.name: field.type for field in relation.schema}
    values = [
        f.coalesce(value_code(f.col(layout.payload[relation.name][name]), kinds[name]), f.lit(0))
        for name in spread_columns(relation.schema)
    ]
    return f.xxhash64(f.col(TIME), *(f.col(wire) for wire in wires), *values)


def _cell_of_codes(layout: WireLayout, table: Partitioning) -> Column:
    """The cell of a row in another grid than that of the streaming plan, from the codes that travel with the row."""
    cell: Column | None = None
    first = 0
    columns = {name: f.col(name) for name in layout.code_columns}
    for position, name in enumerate(layout.queries.graph.names):
        # A row that a filter rejected has the complement of its relation's number.
        is_here = f.col(RELATION).isin(position, ~position)
        place = _place(layout, table, name, columns) + first
        cell = f.when(is_here, place) if cell is None else cell.when(is_here, place)
        first += table.first_cell(name, 0)
    assert cell is not None
    return cell


def _place(layout: WireLayout, partitioning: Partitioning, relation: str, columns: Mapping[str, Column]) -> Column:
    """The place of a row in the grid; the same number as `engine.ownership` computes."""
    return _mixed(layout, partitioning.members(relation), relation, columns)


def _mixed(layout: WireLayout, dimensions: Iterable[Dimension], relation: str, columns: Mapping[str, Column]) -> Column:
    place: Column | None = None
    for dimension in dimensions:
        if dimension.share > 1:
            wire = layout.code_columns[layout.codes[relation].index(dimension.code)]
            coordinate = f.pmod(f.xxhash64(columns[wire]), f.lit(dimension.share))
            place = coordinate if place is None else place * dimension.share + coordinate
    return f.lit(0) if place is None else place


def _entry(table: list[tuple[int, ...]], entries: list[Column], place: Column) -> Column:
    """The entry of a table at a place; the usual table is made of few runs, which become comparisons."""
    ends = [i for i in range(1, len(table)) if table[i] != table[i - 1]]
    if not ends:
        return entries[0]
    if len(ends) > _MOST_RUNS:
        return f.element_at(f.array(*entries), (place + 1).cast(IntegerType()))
    found = f.when(place < ends[0], entries[0])
    for start, end in itertools.pairwise(ends):
        found = found.when(place < end, entries[start])
    return found.otherwise(entries[-1])


def _hashable(frame: DataFrame) -> list[str]:
    """The columns whose values Spark can hash."""
    return [field.name for field in frame.schema if not isinstance(field.dataType, _NOT_HASHED)]
