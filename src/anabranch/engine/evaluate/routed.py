"""Evaluates the user functions of a filter in an order that may differ between classes of rows.

Each conjunct is evaluated and timed on a sample of the rows. The order of conjuncts is greedy by measured rank: cost
per rejected row among the remaining rows, so correlated conjuncts are counted once. If a column with few values divides
the rows into classes with different best orders, each class gets its own order: a query mesh of one stream with
predicates as operators (Nehme et al. 2012). Orders are learnt on one half of the sample and compared on the other.
Classes are used if their gain exceeds `GAIN` by two standard errors; while this is undecided, the sample is doubled.
Rows of the sample are not evaluated again.

Invariant: the rows that pass do not depend on the order; a conjunct that may guard another one keeps its place. Limit:
orders are learnt anew for each batch of a reader, so small batches keep the assumed order. Built-in functions keep it
too, because evaluating them costs about as much as gathering rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import thread_time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.evaluate.expression import ColumnLookup, Mask, evaluate_mask
from anabranch.engine.kernels import Int64Array
from anabranch.lang.arrays import Doubles
from anabranch.lang.expr import Column, Expr, conjunction, conjuncts, own_functions
from anabranch.plan.cost_rank import costliest_last
from anabranch.plan.selections import guarded_by

SAMPLE = 512
"""The number of rows of the first sample."""
WORTH = 64
"""A sample is at most one row in this many, so that it costs less than a learnt order saves."""
MOST_VALUES = 16
"""The maximum number of distinct sampled values of a column that forms classes."""
FEWEST = 32
"""The sampled rows below which a class uses the order of all rows."""
SLOW = 1e-6
"""The seconds per row of all conjuncts together below which gathering rows costs as much as an order saves."""
TIMED = 64
"""The number of rows of a class on which its costs are measured."""
MOST_TIMED = SAMPLE // 2
"""The maximum number of rows that are evaluated again to measure the costs of classes."""
GAIN = 0.05
"""The minimum share of the cost that classes must save."""
Order = tuple[int, ...]
Timer = Callable[[], float]
Costs = Doubles
"""Seconds per row, by conjunct and by row or class."""


@dataclass(frozen=True)
class Routes:
    """The order of conjuncts for all rows, or for each class, which is a value of a column."""

    order: Order
    column: str | None = None
    by_value: Mapping[object, Order] | None = None


@dataclass(frozen=True)
class Learnt:
    """Routes, and the rows that were evaluated to learn them."""

    routes: Routes
    rows: Int64Array
    passed: Mask


def routed_mask(condition: Expr, columns: Mapping[str, pa.Array], length: int, timer: Timer = thread_time) -> Mask:
    """Returns the mask of rows that pass a filter, as `evaluate_mask` does; `columns` may divide the rows into
    classes.
    """

    def read(column: Column) -> pa.Array:
        return columns[column.name]

    ordered = costliest_last(condition)
    parts = conjuncts(ordered)
    cheap = tuple(part for part in parts if not own_functions(part))
    costly = parts[len(cheap) :]
    if length < SAMPLE * WORTH or len(costly) < 2 or parts[: len(cheap)] != cheap or _guards(costly):
        return evaluate_mask(ordered, read, length)
    first = conjunction(cheap)
    mask = np.ones(length, dtype=np.bool_) if first is None else evaluate_mask(first, read, length)
    rows = np.flatnonzero(mask)
    if len(rows) < SAMPLE * WORTH:
        order = tuple(range(len(costly)))
        return _marked(length, _passing(costly, order, read, rows))
    learnt = learn(costly, columns, rows, timer)
    mask[learnt.rows] = False
    divided = _divided(learnt.routes, columns, np.flatnonzero(mask))
    passing = (_passing(costly, order, read, mine) for order, mine in divided)
    return _marked(length, learnt.rows[learnt.passed], *passing)


def learn(parts: Sequence[Expr], columns: Mapping[str, pa.Array], rows: Int64Array, timer: Timer) -> Learnt:
    """Learns the routes of the rows at the given positions, from a sample that grows until the choice is clear."""
    doublings = max(0, (len(rows) // (WORTH * SAMPLE)).bit_length() - 1)
    sample = _Sample(parts, columns, rows[np.linspace(0, len(rows) - 1, SAMPLE << doublings).astype(np.int64)], timer)
    for step in (1 << left for left in range(doublings, -1, -1)):
        sample.evaluate(step)
        routes, is_clear = sample.routes()
        if is_clear:
            break
    return Learnt(routes, *sample.seen)


class _Sample:
    """Rows at equal distances, of which every n-th was evaluated; the conjuncts were timed on these."""

    def __init__(self, parts: Sequence[Expr], columns: Mapping[str, pa.Array], rows: Int64Array, timer: Timer) -> None:
        self._parts, self._columns, self._rows, self._timer = parts, columns, rows, timer
        self._passed, self._seconds = np.empty((len(parts), len(rows)), np.bool_), np.empty((len(parts), len(rows)))
        self._is_seen = np.zeros(len(rows), np.bool_)
        self._classes = self._classes_of_rows()
        self._timed = 0
        self._class_seconds: dict[str, Costs] = {}
        """The seconds per row of each conjunct and class, by column."""

    @property
    def seen(self) -> tuple[Int64Array, Mask]:
        """The evaluated rows, and which of them pass all conjuncts."""
        passed: Mask = np.logical_and.reduce(self._passed[:, self._is_seen])
        return self._rows[self._is_seen], passed

    def evaluate(self, step: int) -> None:
        """Evaluates every conjunct on every `step`-th row, except those that were evaluated before."""
        places = np.arange(0, len(self._rows), step)
        places = places[~self._is_seen[places]]
        for number in range(len(self._parts)):
            self._passed[number, places], self._seconds[number, places] = self._measured(number, places)
        self._is_seen[places] = True

    def _measured(self, number: int, places: Int64Array) -> tuple[Mask, float]:
        """Evaluates a conjunct on some rows; returns the mask of passing rows and the seconds per row."""
        rows, started = pa.array(self._rows[places]), self._timer()
        passed = evaluate_mask(self._parts[number], lambda column: self._columns[column.name].take(rows), len(places))
        return passed, (self._timer() - started) / len(places)

    def _costs(self, name: str, values: Int64Array) -> Costs:
        """Returns the seconds of each conjunct on each row, which may depend on its class: texts may be longer.

        Classes are timed once, on evaluated rows, as long as few rows have to be evaluated again.
        """
        classes = int(values.max()) + 1
        if name not in self._class_seconds and self._timed + TIMED * classes <= MOST_TIMED:
            seconds = np.repeat(self._seconds[:, self._is_seen].mean(axis=1)[:, None], classes, axis=1)
            for value in np.unique(values[self._is_seen]).tolist():
                mine = np.flatnonzero(self._is_seen & (values == value))[:TIMED]
                self._timed += len(mine)
                for number in range(len(self._parts)):
                    _, seconds[number, value] = self._measured(number, mine)
            self._class_seconds[name] = seconds
        timed = self._class_seconds.get(name)
        return self._seconds if timed is None else timed[:, values]

    def routes(self) -> tuple[Routes, bool]:
        """Returns the best routes with a significant gain, and whether more rows could not change the choice."""
        seen = np.flatnonzero(self._is_seen)
        first, second = seen[::2], seen[1::2]
        together = Routes(self._order(self._seconds, first))
        best, is_clear, least = together, True, GAIN
        if self._seconds[:, seen].mean(axis=1).sum() < SLOW:
            return Routes(tuple(range(len(self._parts)))), True
        for name, values in self._classes.items():
            seconds = self._costs(name, values)
            order = self._order(seconds, first)
            orders = {
                value: self._order(seconds, mine) if len(mine := first[values[first] == value]) >= FEWEST else order
                for value in np.unique(values[seen]).tolist()
            }
            base = self._cost(seconds, order, second)
            own = np.zeros(len(second))
            for value, each in orders.items():
                mine = values[second] == value
                own[mine] = self._cost(seconds, each, second[mine])
            saved = (base - own) / base.mean()
            error = 2 * float(saved.std()) / len(saved) ** 0.5
            gain = float(saved.mean())
            is_clear &= abs(gain - GAIN) > error
            if gain - error > least and len({*orders.values()}) > 1:
                # A later column must be better by more than the additional cost of reading it.
                texts = self._columns[name].take(pa.array(self._rows[seen]))
                named = dict(zip(values[seen].tolist(), texts.to_pylist(), strict=True))
                best, least = Routes(order, name, {named[value]: each for value, each in orders.items()}), gain + GAIN
        return best, is_clear

    def _classes_of_rows(self) -> dict[str, Int64Array]:
        """Returns the class number of each row, for each column with few values."""
        found = {}
        for name, column in sorted(self._columns.items(), key=lambda each: each[1].nbytes):
            kind = column.type
            if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind)):
                continue
            encoded = column.take(pa.array(self._rows)).dictionary_encode(null_encoding="encode")
            if 1 < len(encoded.dictionary) <= MOST_VALUES:
                found[name] = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return found

    def _order(self, costs: Costs, places: Int64Array) -> Order:
        """Returns the conjuncts by rank, each evaluated on the rows that pass those before it."""
        left, order, rest = places, [], list(range(len(self._parts)))
        while rest:
            seconds = costs[:, left if len(left) else places].mean(axis=1)
            passed = self._passed[:, left].mean(axis=1) if len(left) else np.zeros(len(self._parts))
            number = min(rest, key=lambda each: seconds[each] / max(1 - passed[each], 1e-9))
            rest.remove(number)
            order.append(number)
            left = left[self._passed[number, left]]
        return tuple(order)

    def _cost(self, costs: Costs, order: Order, places: Int64Array) -> Doubles:
        """Returns the seconds per row of an order, for each row."""
        cost, alive = np.zeros(len(places)), np.ones(len(places), dtype=np.bool_)
        for number in order:
            cost += np.where(alive, costs[number, places], 0.0)
            alive &= self._passed[number, places]
        return cost


def _divided(routes: Routes, columns: Mapping[str, pa.Array], rows: Int64Array) -> list[tuple[Order, Int64Array]]:
    """Returns the rows of each order."""
    if routes.column is None or routes.by_value is None:
        return [(routes.order, rows)]
    column, places = columns[routes.column], pa.array(rows)
    orders = [*dict.fromkeys((routes.order, *routes.by_value.values()))]
    values = pa.array([*routes.by_value], column.type)
    numbers = pa.array([orders.index(order) for order in routes.by_value.values()])
    # Values that the sample lacks use the order of all rows.
    known = pc.index_in(column.take(places), value_set=values)
    own = pc.fill_null(numbers.take(known), 0).to_numpy(zero_copy_only=False)
    return [(order, rows[own == number]) for number, order in enumerate(orders)]


def _passing(parts: Sequence[Expr], order: Order, read: Callable[[Column], pa.Array], rows: Int64Array) -> Int64Array:
    """Returns the rows that pass all conjuncts; each conjunct is evaluated on the remaining rows."""
    for number in order:
        if not len(rows):
            break
        rows = rows[evaluate_mask(parts[number], _at(read, rows), len(rows))]
    return rows


def _at(read: Callable[[Column], pa.Array], rows: Int64Array) -> ColumnLookup:
    places = pa.array(rows)
    return lambda column: read(column).take(places)


def _marked(length: int, *several: Int64Array) -> Mask:
    mask = np.zeros(length, dtype=np.bool_)
    for rows in several:
        mask[rows] = True
    return mask


def _guards(parts: Sequence[Expr]) -> bool:
    """Returns True if some conjunct may keep another from rows on which it fails."""
    return any(guarded_by(one, [other]) is not None for one in parts for other in parts if one is not other)
