"""Training sets: sampled rows of one relation as columns, condensed to a few rows.

A sample of a thousand rows has too many partitions to search (Bell numbers), so it is condensed to a small set of
generated rows with frequencies. Instead of the published condensing algorithms, the cells of a regression tree on the
operators' statistics are used: rows of a cell behave alike, and cells are boxes in the attributes, so a decision tree
can separate the subsets of every partition of cells. Every sampled row keeps the number of its cell.

Numbers are doubles with NaN for NULL (a NaN counts as NULL), texts are positions in a list of categories. In a column
with many texts only the frequent ones are categories; all others form one category, the rest. Trees are grown over
ranks of values. (Nehme et al. 2012, sections 4.2 and 4.3.)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from anabranch.lang.arrays import Doubles, Integers
from anabranch.lang.schema import is_text
from anabranch.mesh.kernels import regression_cells
from anabranch.plan.classes import REST
from anabranch.plan.classifier import hour_of, is_classifiable
from anabranch.plan.classify import as_doubles
from anabranch.stats.mesh.operators import OperatorMatrix

MOST_CATEGORIES = 64
"""In a text column with more distinct values in the sample, at most this many frequent ones are categories."""
FREQUENT, FEWEST = 0.01, 5
"""The minimum fraction and the minimum number of rows for a text of such a column to be a category."""
MISSING = -1
LEAST_HOURS = 20
"""Distinct hours of the day, most of a day, that rows must cover for the hour to be an attribute."""


@dataclass(frozen=True, eq=False)
class Attribute:
    """One column: numbers, or positions in `categories`; NaN for NULL."""

    name: str
    values: Doubles
    categories: tuple[str, ...] | None = None
    """The last one is REST if only frequent texts are categories."""

    @cached_property
    def rest(self) -> int | None:
        """The position of the category for all other texts; None if every text is a category."""
        return len(self.categories) - 1 if self.categories and self.categories[-1] == REST else None

    @cached_property
    def levels(self) -> Doubles:
        """The distinct values, ascending."""
        return np.unique(self.values[~np.isnan(self.values)])

    @cached_property
    def ranks(self) -> Integers:
        """The position of each value among the levels; MISSING for NULL."""
        found = np.searchsorted(self.levels, self.values).astype(np.int64)
        return np.where(np.isnan(self.values), MISSING, found)

    @property
    def column(self) -> pa.Array:
        missing = np.isnan(self.values)
        if self.categories is None:
            return pa.array(self.values, mask=missing)
        places = pa.array(np.where(missing, 0, self.values).astype(np.int32), mask=missing)
        return pa.DictionaryArray.from_arrays(places, pa.array(self.categories, pa.string())).dictionary_decode()

    def take(self, rows: Integers) -> Attribute:
        return replace(self, values=self.values[rows])


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Rows of one relation with the weight (frequency) of each."""

    relation: str
    attributes: tuple[Attribute, ...]
    weights: Doubles

    @property
    def rows(self) -> int:
        return int(self.weights.size)

    @cached_property
    def shares(self) -> Doubles:
        """Weights that sum to one."""
        shares: Doubles = self.weights / self.weights.sum()
        return shares

    @cached_property
    def columns(self) -> dict[str, pa.Array]:
        """The attributes as columns for evaluating a classifier."""
        return {attribute.name: attribute.column for attribute in self.attributes}

    def take(self, rows: Integers) -> TrainingSet:
        return TrainingSet(self.relation, tuple(a.take(rows) for a in self.attributes), self.weights[rows])


def training_set(
    relation: str,
    table: pa.Table,
    weights: Doubles | None = None,
    also: Collection[str] = (),
) -> TrainingSet:
    """Returns the rows of a table as a training set over all suitable columns and `also`, which a mesh tests already.

    Timestamps are unsuitable: they only grow, so no threshold would fit later rows. So are hours of the day if the rows
    cover only a few hours. A table without columns has no row count; the weights provide it.
    """
    chosen = [field.name for field in table.schema if field.name in also or _serves(field.name, table[field.name])]
    ones = np.ones(table.num_rows) if weights is None else np.asarray(weights, dtype=np.float64)
    return TrainingSet(relation, tuple(_attribute(name, table[name], name in also) for name in chosen), ones)


def _serves(name: str, column: pa.ChunkedArray) -> bool:
    if not is_classifiable(column.type) or pa.types.is_timestamp(column.type):
        return False
    if hour_of(name) is not None and len(column.unique()) < LEAST_HOURS:
        return False
    return not is_text(column.type) or len(column.unique()) <= MOST_CATEGORIES or bool(_frequent(column))


def _frequent(column: pa.ChunkedArray) -> tuple[str, ...]:
    """Returns the texts, other than NULL, that enough rows have; the most frequent ones if there are too many."""
    counted = column.drop_null().value_counts()
    counts, words = np.asarray(counted.field("counts")), counted.field("values").to_pylist()
    order = np.argsort(-counts, kind="stable")[:MOST_CATEGORIES]
    return tuple(words[place] for place in order if counts[place] >= max(FEWEST, FREQUENT * len(column)))


def _attribute(name: str, column: pa.ChunkedArray, is_tested: bool) -> Attribute:
    """Returns a column as an attribute; in a column that a mesh tests already, every text is a category."""
    if not is_text(column.type):
        return Attribute(name, as_doubles(column))
    encoded = column.combine_chunks().dictionary_encode()
    words = encoded.dictionary.to_pylist()
    are_all = is_tested or len(words) <= MOST_CATEGORIES
    known = sorted(words if are_all else set(_frequent(column)) - {REST})
    listed = known if are_all else [*known, REST]
    positions = {word: place for place, word in enumerate(known)}
    place = np.array([*(positions.get(word, len(known)) for word in words), np.nan], dtype=np.float64)
    values: Doubles = place[np.asarray(encoded.indices.fill_null(len(words)))]
    return Attribute(name, values, tuple(listed))


# --- rows held out ---------------------------------------------------------------------------------------------------


def folds(rows: int, count: int, rng: np.random.Generator) -> list[tuple[Integers, Integers]]:
    """Returns pairs of (rows to learn from, held-out rows); each row is held out once."""
    order = rng.permutation(rows)
    parts = [np.sort(part) for part in np.array_split(order, count)]
    return [(np.setdiff1d(order, held), held) for held in parts]


BINS = 8
"""The number of parts of a number's range that are compared with each other."""
TELLING, CHANCES = 0.02, 4.0
"""An attribute is informative if it explains this fraction of the variance, and this multiple of the part by chance."""


# --- condensing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Condensed:
    """A sample, and the few condensed rows that represent it."""

    sample: TrainingSet
    cells: Integers
    """The condensed row of each sampled row."""
    rows: TrainingSet
    matrix: OperatorMatrix
    """Means over the sampled rows of each condensed row."""


def condense(sample: TrainingSet, matrix: OperatorMatrix, size: int) -> Condensed:
    """Returns at most `size` generated rows: means of numbers, the most frequent category, and summed weights.

    Rows that agree in all attributes are in one cell, because no classifier could separate them.
    """
    if not sample.attributes or size < 2:
        cells = np.zeros(sample.rows, np.int64)
    else:
        behaviour = _behaviour(matrix)
        columns = np.stack([_ordered(a, behaviour, sample.weights) for a in sample.attributes], axis=1)
        # Comparing all rows is slow, and one attribute with many values proves that many rows differ.
        are_many = any(attribute.levels.size > size for attribute in sample.attributes)
        cells = _by_first_row(columns) if not are_many else np.zeros(0, np.int64)
        if are_many or cells.max(initial=0) >= size:
            least = max(1, sample.rows // (4 * size))
            cells = _by_first_row(regression_cells(columns, behaviour, sample.weights, size, least))
    count = int(cells.max(initial=-1)) + 1
    weights: Doubles = np.bincount(cells, sample.weights, count).astype(np.float64)
    rows = TrainingSet(
        sample.relation, tuple(_representative(a, cells, sample.weights, count) for a in sample.attributes), weights
    )
    return Condensed(sample, cells, rows, matrix.averaged(cells, sample.weights, count))


def differ(sample: TrainingSet, matrix: OperatorMatrix) -> bool:
    """Returns True if some attribute alone separates rows by the effect of operators, more than chance would.

    This is a cheap check without training. A classifier tests one attribute at a time, so it would not find a
    difference that no attribute shows alone.
    """
    behaviour = _behaviour(matrix)
    apart = behaviour - behaviour.mean(axis=0)
    total = (apart**2).sum(axis=0)
    for attribute in sample.attributes:
        ranks, levels = attribute.ranks.astype(np.int64), attribute.levels.size
        if levels > BINS and attribute.categories is None:
            # Equal numbers of rows in each bin, rows of one value together.
            ranks = np.where(ranks < 0, -1, np.searchsorted(np.sort(ranks), ranks) * BINS // max(1, sample.rows))
        bins = ranks + 1
        counts = np.bincount(bins)
        sums = np.zeros((counts.size, apart.shape[1]))
        np.add.at(sums, bins, apart)
        between = (sums**2 / np.maximum(counts, 1)[:, None]).sum(axis=0)
        share = np.divide(between, total, out=np.zeros_like(total), where=total > 1e-9 * sample.rows)
        if share.max(initial=0.0) > TELLING + CHANCES * np.count_nonzero(counts) / max(1, sample.rows):
            return True
    return False


def _behaviour(matrix: OperatorMatrix) -> Doubles:
    """Returns the effect of operators on each row, scaled to 0 to 1, so that a large fan-out does not dominate."""
    usual = matrix.cost.mean(axis=0)
    cost = np.divide(matrix.cost, matrix.cost + usual, out=np.zeros_like(matrix.cost), where=usual > 0)
    return np.hstack([matrix.selectivity / (1 + matrix.selectivity), cost])


def _ordered(attribute: Attribute, behaviour: Doubles, weights: Doubles) -> Integers:
    """Returns ranks, MISSING for NULL; categories are ordered by the effect of operators on their rows."""
    ranks, count = attribute.ranks, attribute.levels.size
    if attribute.categories is None or count < 3:
        return ranks
    known = ranks >= 0
    total = np.bincount(ranks[known], weights[known], count)
    means = np.zeros((count, behaviour.shape[1]))
    np.add.at(means, ranks[known], weights[known, None] * behaviour[known])
    means /= total[:, None]
    centred = (means - np.average(means, axis=0, weights=total)) * np.sqrt(total)[:, None]
    leading = np.linalg.svd(centred, full_matrices=False)[2][0]
    places = np.empty(count, np.int64)
    places[np.argsort(means @ leading, kind="stable")] = np.arange(count)
    return np.where(known, places[ranks], MISSING)


def _by_first_row(groups: Integers) -> Integers:
    """Numbers distinct rows in order of first appearance."""
    _, first, inverse = np.unique(groups, axis=0, return_index=True, return_inverse=True)
    places = np.empty(first.size, np.int64)
    places[np.argsort(first, kind="stable")] = np.arange(first.size)
    return places[inverse.reshape(-1)]


def _representative(attribute: Attribute, cells: Integers, weights: Doubles, count: int) -> Attribute:
    known = ~np.isnan(attribute.values)
    present = np.bincount(cells[known], weights[known], count)
    if attribute.categories is None:
        total = np.bincount(cells[known], weights[known] * attribute.values[known], count)
        values = np.divide(total, present, out=np.full(count, np.nan), where=present > 0)
    else:
        table = np.zeros((count, len(attribute.categories)))
        np.add.at(table, (cells[known], attribute.values[known].astype(np.int64)), weights[known])
        values = table.argmax(axis=1).astype(np.float64) if attribute.categories else np.full(count, np.nan)
    absent = np.bincount(cells[~known], weights[~known], count)
    values[absent > present] = np.nan
    return replace(attribute, values=values)
