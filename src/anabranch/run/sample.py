"""Estimates rates, selectivities and row sizes from a sample of each stream, before a query has run.

As in a join, the pairs inside the pairwise windows are counted, and of these the pairs with equal keys. From a large
stream, rows are drawn one by one for the statistics, so that a frequent key does not distort them. Rows drawn in this
way lose most of their matches. For meshes, which depend on the matches of single rows, values of the key that most
relations share are drawn instead, with all their rows (`Kin`).

Limit: a sample that is shorter than the windows cannot estimate the selectivity of keys with few repeated values,
because a match may arrive after the sample. Such a selectivity stays unknown, and the optimizer then treats the
equality as a foreign key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import thread_time

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import RelationBatch
from anabranch.engine.evaluate.codes import combine_codes
from anabranch.engine.evaluate.expression import evaluate, evaluate_mask
from anabranch.errors import ExpressionError
from anabranch.lang.arrays import Doubles, Integers
from anabranch.lang.expr import Call, Column, Expr, walk
from anabranch.lang.schema import TIMESTAMP, Field, is_nested, is_text
from anabranch.lang.window import FOREVER
from anabranch.plan.classes import MOST_CLASSES, ClassColumn, merged
from anabranch.plan.classify import as_doubles, hours
from anabranch.plan.classing import Finer, widened
from anabranch.plan.join_graph import JoinGraph, KeyClass, Relation, Theta
from anabranch.plan.pregrouping import Agreement, agreement
from anabranch.plan.query import Query
from anabranch.stats.groups import groups_behind
from anabranch.stats.view import NOTHING_KNOWN, FixedStatistics

FEWEST_PAIRS = 100
"""The number of pairs inside the windows below which a selectivity stays unknown."""
MOSTLY_DISTINCT = 0.8
"""The largest fraction of distinct values at which the values of a key count as repeated."""
FEWEST_ROWS = 100
"""The number of rows below which the number of groups stays unknown."""
SAMPLED_CLASSES = 24
"""The number of classes into which the sampled numbers of a column are divided."""
RISING = 0.9
"""A column is growing if it does not fall between more than this fraction of rows adjacent in event time."""
TRIED_PAIRS = 5_000
"""The maximum number of pairs on which a predicate is evaluated."""
BANDED_ROWS = 200
"""The number of rows whose pairs are all compared with a band."""


@dataclass(frozen=True)
class Stretch:
    """The number of rows of a relation, their span of event time, and the fraction that passes its filter."""

    rows: float
    seconds: float
    """0 if there are too few rows, and for a table."""
    passing: float


@dataclass(frozen=True, eq=False)
class Kin:
    """Co-sampled rows, by relation: all rows with certain values of one key."""

    key: KeyClass
    share: float
    """The fraction of the values of the key that were drawn."""
    rows: Mapping[str, RelationBatch]


@dataclass(frozen=True, eq=False)
class Sample:
    """Sampled rows that passed the filters, by relation and in time order, and the statistics estimated from them."""

    statistics: FixedStatistics = NOTHING_KNOWN
    rows: Mapping[str, RelationBatch] = field(default_factory=dict)
    kin: Kin | None = None
    """The co-sampled rows; None if no rows were left out or no relations share a key."""
    wide: Mapping[str, RelationBatch] = field(default_factory=dict)
    """The same rows with additional columns of their streams that the query does not carry; `kin` has them too."""


def narrowed(query: Query, rows: Mapping[str, RelationBatch]) -> dict[str, RelationBatch]:
    """Returns the rows with only the columns that a query carries."""
    carried = {each.name: each.schema.names for each in query.graph.relations}
    return {name: replace(batch, payload=batch.payload.select(list(carried[name]))) for name, batch in rows.items()}


def with_attributes(query: Query, rows: Mapping[str, RelationBatch]) -> Query:
    """Returns the query with the columns of wide rows by which a classifier could separate future rows.

    Columns that grow with event time, such as order numbers, are not added, because no threshold on them applies to
    future rows. Columns that the query carries are always kept.
    """

    def separates(relation: Relation, field: Field) -> bool:
        payload = rows[relation.name].payload if relation.name in rows else None
        if payload is None or field.name not in payload.schema.names:
            return False
        # A classifier tests only the hour of day of a timestamp.
        return field.type == TIMESTAMP or not _grows(payload.column(field.name))

    return widened(query, separates)


def sampled_classes(samples: Mapping[str, Sample]) -> Finer:
    """Returns a function that adds to class columns the classes found in the samples of queries, by name."""
    return lambda query, relation, column: with_sampled_classes(samples[query].wide, relation, column)


def with_sampled_classes(rows: Mapping[str, RelationBatch], relation: str, column: ClassColumn) -> ClassColumn:
    """Returns a class column with additional classes: quantiles of the sampled numbers, or the most frequent texts."""
    payload = rows[relation].payload if relation in rows else None
    if payload is None or column.column not in payload.schema.names or not len(payload):
        return column
    values = payload.column(column.column).drop_null()
    if column.is_text:
        counted = values.value_counts()
        order = np.argsort(-np.asarray(counted.field("counts")), kind="stable")[:MOST_CLASSES]
        texts = counted.field("values").take(pa.array(order)).to_pylist()
        return merged(column, replace(column, texts=tuple(texts)))
    numbers = as_doubles(values) if column.column == column.attribute else hours(values)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return column
    bounds = np.unique(np.quantile(numbers, np.linspace(0, 1, SAMPLED_CLASSES), method="lower"))
    return merged(column, replace(column, bounds=tuple(bounds.tolist())))


def _grows(values: pa.Array) -> bool:
    """Returns True if a column, ordered by event time, rarely falls and is not nearly constant."""
    if is_text(values.type) or len(values) < FEWEST_ROWS:
        return False
    numbers = as_doubles(values.drop_null())
    rises = np.diff(numbers)
    return bool(len(rises) and (rises >= 0).mean() > RISING and (rises > 0).mean() > 1 - RISING)


def shared_key(graph: JoinGraph) -> KeyClass | None:
    """Returns the key that most relations share; None if there is none."""
    return max((key for key in graph.keys if len(key.relations) > 1), key=lambda key: len(key.relations), default=None)


def sampled(query: Query, stretches: Mapping[str, Stretch], rows: Mapping[str, RelationBatch]) -> FixedStatistics:
    """Returns statistics from counts of the streams' rows, and from the rows that passed the filters, by relation."""
    graph = query.graph
    passing = {
        relation.name: max(stretch.passing, 0.5 / stretch.rows)
        for relation in graph.relations
        if relation.filter is not None and (stretch := stretches.get(relation.name)) and stretch.rows
    }
    sizes = {
        name: batch.payload.nbytes / len(batch)
        for name, batch in rows.items()
        if len(batch) and batch.payload.num_columns
    }
    selectivities: dict[str, float] = {}
    functions: dict[str, float] = {}
    known = [name for name in graph.names if len(rows.get(name, ()))]
    for position, left in enumerate(known):
        for right in known[position + 1 :]:
            pairs = _pairs(query, left, right, rows)
            if pairs is None:
                continue
            if pairs.is_telling:
                selectivities[f"{left} {right}"] = pairs.selectivity
            thetas = graph.thetas_between([left], [right])
            if (band := _looked_up_band(graph, left, right)) is not None:
                with contextlib.suppress(ExpressionError):
                    selectivities[str(band)], pairs = _within(band, pairs, rows)
                    thetas = tuple(theta for theta in thetas if theta is not band)
            if pairs.tried:
                for theta in thetas:
                    # Evaluated alone, it may fail on rows that another predicate would reject first.
                    with contextlib.suppress(ExpressionError):
                        selectivities[str(theta)] = _share(theta, pairs, rows)
                        functions |= _function_costs(theta, pairs, rows)
    return FixedStatistics(
        rates={name: stretch.rows / stretch.seconds for name, stretch in stretches.items() if stretch.seconds > 0},
        filters=passing,
        selectivities=selectivities,
        bytes=sizes,
        groups=_groups(query, rows),
        functions=functions,
        rows={
            relation.name: stretches[relation.name].rows
            for relation in graph.relations
            if relation.is_table and relation.name in stretches
        },
        provenance="sampled",
    )


def _groups(query: Query, rows: Mapping[str, RelationBatch]) -> dict[str, float]:
    """Returns the estimated number of groups of each relation of a grouped query, if its rows were merged."""
    found: dict[str, float] = {}
    if query.merging is None or len(query.graph.names) < 2:
        return found
    for name, batch in rows.items():
        agreed = agreement(query.graph, query.merging, [name])
        if len(batch) < FEWEST_ROWS or any(is_nested(value.type) for value in agreed.values):
            continue
        found[name] = groups_behind(float(len(batch)), float(_different(batch, agreed)))
    return found


def _different(batch: RelationBatch, agreed: Agreement) -> int:
    """Returns the number of rows that differ in the values on which merged rows must agree."""

    def read(column: Column) -> pa.Array:
        return batch.payload.column(column.name)

    columns = {code: pa.array(batch.codes[code]) for code in agreed.codes}
    columns |= {f"value{i}": evaluate(value, read, len(batch)) for i, value in enumerate(agreed.values)}
    return pa.table(columns).group_by(list(columns)).aggregate([]).num_rows if columns else 1


@dataclass(frozen=True)
class _Pairs:
    """Pairs of two relations' rows inside the windows: their number, the number with equal keys, and some of these."""

    left: str
    right: str
    inside: int
    agreeing: int
    is_telling: bool
    left_rows: Integers
    right_rows: Integers
    first: Integers
    """For each row of the left relation, the first row of the right relation inside the windows."""
    last: Integers
    """For each row of the left relation, the row after the last one inside the windows."""

    @property
    def selectivity(self) -> float:
        return max(self.agreeing, 0.5) / self.inside

    @property
    def tried(self) -> int:
        return len(self.left_rows)


def _pairs(query: Query, left: str, right: str, rows: Mapping[str, RelationBatch]) -> _Pairs | None:
    graph, between = query.graph, query.pairwise.between
    keys = graph.keys_between([left], [right])
    if not keys and all(len(theta.relations) == 1 for theta in graph.thetas_between([left], [right])):
        return None
    one, other = rows[left], rows[right]
    start = min(int(one.times[0]), int(other.times[0]))
    span = max(int(one.times[-1]), int(other.times[-1])) - start + 1
    reach = [span if (r := between(*pair)) >= FOREVER else r for pair in ((left, right), (right, left))]
    # Time in coarser units than microseconds if a long span would leave no bits for the key.
    tick = 1 + (span >> 44)
    mine, times, ticks = (one.times - start) // tick, (other.times - start) // tick, span // tick + 1
    # The rows of the right relation that are neither too old nor too new for a row of the left.
    low, high = np.clip(mine - reach[1] // tick, 0, ticks), np.clip(mine + reach[0] // tick, 0, ticks)
    oldest, newest = np.searchsorted(times, low, "left"), np.searchsorted(times, high, "right")
    inside = int((newest - oldest).sum())
    if inside < FEWEST_PAIRS:
        return None
    codes = [_codes(batch, [key.name for key in keys]) for batch in (one, other)]
    ranks = np.unique(np.concatenate(codes), return_inverse=True)[1] * (ticks + 1)
    mine, theirs = ranks[: len(one)], ranks[len(one) :]
    order = np.argsort(theirs + times, kind="stable")
    ordered = (theirs + times)[order]
    first, last = np.searchsorted(ordered, mine + low, "left"), np.searchsorted(ordered, mine + high, "right")
    counts = last - first
    repeating = max(len(np.unique(code)) / len(code) for code in codes) <= MOSTLY_DISTINCT
    tried = np.flatnonzero(counts)[:TRIED_PAIRS]
    # The match in the middle of the range, so that it is neither always the oldest nor always the newest.
    partners = order[(first + counts // 2)[tried]]
    is_telling = bool(keys) and (repeating or span >= max(reach))
    return _Pairs(left, right, inside, int(counts.sum()), is_telling, tried, partners, oldest, newest)


def _codes(batch: RelationBatch, keys: list[str]) -> Integers:
    match keys:
        case []:
            return np.zeros(len(batch), np.int64)
        case [only]:
            return batch.codes[only]
        case several:
            return combine_codes([batch.codes[name] for name in several])


def _share(theta: Theta, pairs: _Pairs, rows: Mapping[str, RelationBatch]) -> float:
    """Returns the fraction of the pairs with equal keys that pass a predicate."""
    passing = float(evaluate_mask(theta.predicate, _reader(pairs, rows), pairs.tried).sum())
    return max(passing, 0.5) / pairs.tried


def _looked_up_band(graph: JoinGraph, left: str, right: str) -> Theta | None:
    """Returns the band by which a join looks up pairs of two relations without a common key; None if there is none."""
    if graph.keys_between([left], [right]):
        return None
    return next((theta for theta in graph.thetas_between([left], [right]) if theta.band is not None), None)


def _within(theta: Theta, pairs: _Pairs, rows: Mapping[str, RelationBatch]) -> tuple[float, _Pairs]:
    """Returns the fraction of the pairs that lie within a band, and some of these pairs.

    A band passes about one pair in thousands, so all pairs of some rows are compared with it. Other predicates are then
    evaluated on the pairs that pass: BETWEEN is two predicates, and each alone passes half of all pairs.
    """
    band = theta.band
    assert band is not None
    sides = {band.left_relation: band.left, band.right_relation: band.right}
    one, other = (_numbers(sides[name], rows[name]) for name in (pairs.left, pairs.right))
    signs = (1.0, -1.0) if band.left_relation == pairs.left else (-1.0, 1.0)
    some = np.unique(np.linspace(0, len(one) - 1, BANDED_ROWS).astype(np.int64))
    tried, mine, partners = 0, [], []
    for row in some:
        low, high = int(pairs.first[row]), int(pairs.last[row])
        distance = signs[0] * one[row] + signs[1] * other[low:high]
        inside = np.flatnonzero((distance >= band.low) & (distance <= band.high))
        tried += high - low
        mine.append(np.full(len(inside), row, np.int64))
        partners.append(inside + low)
    left, right = np.concatenate(mine), np.concatenate(partners)
    share = max(len(left), 0.5) / max(tried, 1)
    return share, replace(pairs, left_rows=left[:TRIED_PAIRS], right_rows=right[:TRIED_PAIRS])


def _numbers(value: Expr, batch: RelationBatch) -> Doubles:
    """Returns the values of one side of a band: times in microseconds, and NaN for NULL, which is within no band."""
    found = evaluate(value, lambda column: batch.payload.column(column.name), len(batch))
    if pa.types.is_temporal(found.type):
        found = found.cast(pa.int64())
    numbers: Doubles = found.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return numbers


def _function_costs(theta: Theta, pairs: _Pairs, rows: Mapping[str, RelationBatch]) -> dict[str, float]:
    """Returns the seconds per row of the user functions in a predicate, on the pairs with equal keys."""
    costs = {}
    for node in walk(theta.predicate):
        if isinstance(node, Call) and node.own is not None:
            started = thread_time()
            evaluate(node, _reader(pairs, rows), pairs.tried)
            costs[node.own.name] = (thread_time() - started) / pairs.tried
    return costs


def _reader(pairs: _Pairs, rows: Mapping[str, RelationBatch]) -> Callable[[Column], pa.Array]:
    """Returns a function that reads columns of the pairs with equal keys."""
    numbers = {pairs.left: pairs.left_rows, pairs.right: pairs.right_rows}
    return lambda column: rows[column.relation].payload.column(column.name).take(pa.array(numbers[column.relation]))
