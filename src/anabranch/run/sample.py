"""Estimates rates, selectivities and row sizes from a sample of each stream, before a query has run.

Pairs are counted as a join would see them: those inside each other's (pairwise) windows, and of these the ones with
equal keys. A sample that is shorter than the windows cannot estimate keys that hardly repeat: the partner of an order
may come later or never. Such a selectivity stays unknown, and the optimizer then treats the equality as a foreign key.

Of a large stream, rows are drawn one by one for the statistics: a frequent key then spoils nothing. But rows that were
drawn so have lost most of their partners. For meshes, which ask what becomes of a row, values of the key that most
relations share are drawn instead, with all their rows (`Kin`).
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
"""With fewer pairs inside the windows, a selectivity stays unknown."""
MOSTLY_DISTINCT = 0.8
"""The share of distinct values from which on a key counts as hardly repeating."""
FEWEST_ROWS = 100
"""With fewer rows, the number of their groups stays unknown."""
SAMPLED_CLASSES = 24
"""Classes into which the sampled numbers of a column are cut."""
RISING = 0.9
"""The share of neighbours in event time that do not fall, from which on a column counts as growing."""
TRIED_PAIRS = 5_000
"""Pairs on which a predicate is tried."""
BANDED_ROWS = 200
"""Rows of which all pairs are counted that lie within a band."""


@dataclass(frozen=True)
class Stretch:
    """The rows of a relation that were looked at: how many, over which event time, and the share its filter passes."""

    rows: float
    seconds: float
    """0 where the rows are too few to know, and for a table."""
    passing: float


@dataclass(frozen=True, eq=False)
class Kin:
    """Rows that have some values of one key, by relation: all rows of those values."""

    key: KeyClass
    share: float
    """Of all values of the key."""
    rows: Mapping[str, RelationBatch]


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows of the streams that passed the filters, by relation and in time order, and the statistics from them."""

    statistics: FixedStatistics = NOTHING_KNOWN
    rows: Mapping[str, RelationBatch] = field(default_factory=dict)
    kin: Kin | None = None
    """None where the rows are whole, or no relations share a key."""
    wide: Mapping[str, RelationBatch] = field(default_factory=dict)
    """The same rows with columns of their streams that the query does not carry; kin has them too."""


def narrowed(query: Query, rows: Mapping[str, RelationBatch]) -> dict[str, RelationBatch]:
    """The rows with the columns that a query carries."""
    carried = {each.name: each.schema.names for each in query.graph.relations}
    return {name: replace(batch, payload=batch.payload.select(list(carried[name]))) for name, batch in rows.items()}


def telling(query: Query, rows: Mapping[str, RelationBatch]) -> Query:
    """The query as if it carried all columns of wide rows by which a classifier could tell rows to come.

    Columns that grow with event time, such as the numbers of orders, are left out: no threshold on them serves rows to
    come. A column that the query carries stays.
    """

    def tells(relation: Relation, field: Field) -> bool:
        payload = rows[relation.name].payload if relation.name in rows else None
        if payload is None or field.name not in payload.schema.names:
            return False
        # Of a timestamp only the hour of day is asked.
        return field.type == TIMESTAMP or not _grows(payload.column(field.name))

    return widened(query, tells)


def sampled_classes(samples: Mapping[str, Sample]) -> Finer:
    """Gives class columns the classes of the samples of queries, by name."""
    return lambda query, relation, column: with_sampled_classes(samples[query].wide, relation, column)


def with_sampled_classes(rows: Mapping[str, RelationBatch], relation: str, column: ClassColumn) -> ClassColumn:
    """A class column with more classes: as many numbers in each, or every text that is frequent in the rows."""
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
    """Whether a column, in order of event time, hardly ever falls, and has many values."""
    if is_text(values.type) or len(values) < FEWEST_ROWS:
        return False
    numbers = as_doubles(values.drop_null())
    rises = np.diff(numbers)
    return bool(len(rises) and (rises >= 0).mean() > RISING and (rises > 0).mean() > 1 - RISING)


def shared_key(graph: JoinGraph) -> KeyClass | None:
    """The key that most relations share; None if none do."""
    return max((key for key in graph.keys if len(key.relations) > 1), key=lambda key: len(key.relations), default=None)


def sampled(query: Query, stretches: Mapping[str, Stretch], rows: Mapping[str, RelationBatch]) -> FixedStatistics:
    """Statistics from stretches of the streams, and from rows of them that passed the filters, by relation."""
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
                    # It is tried alone: what another predicate keeps from failing is not known.
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
    """For each relation of a grouped query, into how many groups its rows would fall if they were merged."""
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
    """How many rows there are that differ in what merged rows must agree on."""

    def read(column: Column) -> pa.Array:
        return batch.payload.column(column.name)

    columns = {code: pa.array(batch.codes[code]) for code in agreed.codes}
    columns |= {f"value{i}": evaluate(value, read, len(batch)) for i, value in enumerate(agreed.values)}
    return pa.table(columns).group_by(list(columns)).aggregate([]).num_rows if columns else 1


@dataclass(frozen=True)
class _Pairs:
    """Pairs of two relations' rows inside the windows: how many there are, how many agree, and some of them."""

    left: str
    right: str
    inside: int
    agreeing: int
    is_telling: bool
    left_rows: Integers
    right_rows: Integers
    first: Integers
    """For each row of the left, the first row of the right inside the windows."""
    last: Integers
    """And the one after the last."""

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
    # Ticks instead of microseconds where a long time would leave no room for the key beside it.
    tick = 1 + (span >> 44)
    mine, times, ticks = (one.times - start) // tick, (other.times - start) // tick, span // tick + 1
    # A row of the left meets those of the right that are not too old for it and not too new.
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
    # The partner in the middle of the range: neither always the oldest nor always the newest.
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
    """The share of the agreeing pairs that pass a predicate."""
    passing = float(evaluate_mask(theta.predicate, _reader(pairs, rows), pairs.tried).sum())
    return max(passing, 0.5) / pairs.tried


def _looked_up_band(graph: JoinGraph, left: str, right: str) -> Theta | None:
    """The band by which rows of two relations that share no key find each other."""
    if graph.keys_between([left], [right]):
        return None
    return next((theta for theta in graph.thetas_between([left], [right]) if theta.band is not None), None)


def _within(theta: Theta, pairs: _Pairs, rows: Mapping[str, RelationBatch]) -> tuple[float, _Pairs]:
    """The share of the pairs that lie within a band, and some of those that do.

    A band keeps one pair in thousands, so it is counted on all pairs of some rows. Other predicates of the pair are
    then tried on what it keeps: the halves of BETWEEN are two predicates, and each alone passes half of all pairs.
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
    """The values of one side of a band; times count in microseconds, and NULL is within no band."""
    found = evaluate(value, lambda column: batch.payload.column(column.name), len(batch))
    if pa.types.is_temporal(found.type):
        found = found.cast(pa.int64())
    numbers: Doubles = found.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return numbers


def _function_costs(theta: Theta, pairs: _Pairs, rows: Mapping[str, RelationBatch]) -> dict[str, float]:
    """The seconds per row that the user's own functions in a predicate take on the agreeing pairs."""
    costs = {}
    for node in walk(theta.predicate):
        if isinstance(node, Call) and node.own is not None:
            started = thread_time()
            evaluate(node, _reader(pairs, rows), pairs.tried)
            costs[node.own.name] = (thread_time() - started) / pairs.tried
    return costs


def _reader(pairs: _Pairs, rows: Mapping[str, RelationBatch]) -> Callable[[Column], pa.Array]:
    """Reads columns of the agreeing pairs."""
    numbers = {pairs.left: pairs.left_rows, pairs.right: pairs.right_rows}
    return lambda column: rows[column.relation].payload.column(column.name).take(pa.array(numbers[column.relation]))
