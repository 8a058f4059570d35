"""Content-based routing: learns while running which attribute best predicts whether an operator lets a row through.

For every operator the profile counts, per bucket of each attribute, rows in, rows out and rows that found anything. At
intervals each operator takes as its classifier attribute the one of greatest gain ratio (or none), and the estimate of
its selectivity is then read per bucket of that attribute. Counts fade, so the profile follows changing data. (Bizarro,
Babu, DeWitt, Widom 2005; the baseline of Nehme et al. 2012, section 6.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from anabranch.engine.evaluate.codes import key_codes
from anabranch.engine.kernels import Int64Array
from anabranch.lang.arrays import Doubles
from anabranch.lang.schema import is_text
from anabranch.plan.classify import as_doubles

BUCKETS = 16
LEAST_GAIN_RATIO = 0.05
"""An attribute that tells less than this about an operator is not used."""
MOST_CLASSES = 1 << 12
FADING = 0.8


@dataclass(frozen=True)
class Buckets:
    """A few buckets for the values of one attribute: by value if there are few values, else by quantile."""

    edges: Doubles

    def of(self, column: pa.Array) -> Int64Array:
        if is_text(column.type):
            hashed: Int64Array = np.mod(key_codes(column.fill_null(""), pa.string()), BUCKETS)
            return hashed
        return np.searchsorted(self.edges, np.nan_to_num(as_doubles(column)), side="left").astype(np.int64)


def make_buckets(column: pa.Array) -> Buckets:
    """Buckets for an attribute, from a first sight of its values."""
    if is_text(column.type):
        return Buckets(np.empty(0))
    seen = np.unique(np.nan_to_num(as_doubles(column)))
    if len(seen) <= BUCKETS:
        return Buckets(seen[:-1])
    cuts = np.unique(np.quantile(seen, np.arange(1, BUCKETS) / BUCKETS))
    return Buckets(cuts)


class Profile:
    """Counts of operators on the rows of one relation, per bucket of each of its attributes."""

    def __init__(self, operators: int, attributes: int) -> None:
        shape = (operators, attributes, BUCKETS)
        self._rows_in, self._rows_out, self._passed = (np.zeros(shape) for _ in range(3))

    def note(self, operator: int, buckets: Int64Array, origins_in: Int64Array, origins_out: Int64Array) -> None:
        """One visit; origins are the positions of the relation's own rows among the new ones, of each combination."""
        found_any = np.zeros(buckets.shape[1], dtype=np.bool_)
        found_any[origins_out] = True
        for attribute, codes in enumerate(buckets):
            entered = codes[origins_in]
            self._rows_in[operator, attribute] += np.bincount(entered, minlength=BUCKETS)
            self._passed[operator, attribute] += np.bincount(entered, found_any[origins_in], minlength=BUCKETS)
            self._rows_out[operator, attribute] += np.bincount(codes[origins_out], minlength=BUCKETS)

    def learn(self) -> SelectivityEstimates:
        """The classifier attribute of each operator and its selectivities by bucket; older counts fade afterwards."""
        ratios = _gain_ratios(self._rows_in, self._passed)
        chosen = np.where(ratios.max(axis=1) >= LEAST_GAIN_RATIO, ratios.argmax(axis=1), -1)
        overall_in, overall_out = (table[:, 0].sum(axis=1) for table in (self._rows_in, self._rows_out))
        overall = (overall_out + 1) / (overall_in + 1)
        by_bucket = np.repeat(overall[:, None], BUCKETS, axis=1)
        for operator, attribute in enumerate(chosen):
            if attribute >= 0:
                # Each bucket counts as if it had been seen to do as the whole, ten times.
                rows_in = self._rows_in[operator, attribute]
                rows_out = self._rows_out[operator, attribute]
                by_bucket[operator] = (rows_out + 10 * overall[operator]) / (rows_in + 10)
        for table in (self._rows_in, self._rows_out, self._passed):
            table *= FADING
        return SelectivityEstimates(chosen, by_bucket)


class SelectivityEstimates:
    """Selectivities by class, where a class is a combination of buckets of the attributes that some operator uses."""

    def __init__(self, chosen: Int64Array, by_bucket: Doubles) -> None:
        self.attributes = sorted({int(attribute) for attribute in chosen if attribute >= 0})
        while BUCKETS ** len(self.attributes) > MOST_CLASSES:
            self.attributes.pop()
        self.classes = BUCKETS ** len(self.attributes)
        codes = np.arange(self.classes)
        self.by_class = np.empty((len(chosen), self.classes))
        for operator, attribute in enumerate(chosen):
            if attribute in self.attributes:
                place = self.attributes.index(int(attribute))
                self.by_class[operator] = by_bucket[operator][codes // BUCKETS**place % BUCKETS]
            else:
                self.by_class[operator] = by_bucket[operator].mean()

    def classify(self, buckets: Mapping[int, Int64Array], rows: int) -> Int64Array:
        """The class of each row, from its buckets by attribute."""
        codes = np.zeros(rows, dtype=np.int64)
        for place, attribute in enumerate(self.attributes):
            codes += buckets[attribute] * BUCKETS**place
        return codes


def _gain_ratios(seen: Doubles, passed: Doubles) -> Doubles:
    """Operators x attributes: information gained about passing, over the information in the attribute itself."""
    total = seen.sum(axis=2, keepdims=True)
    share = np.divide(seen, total, out=np.zeros_like(seen), where=total > 0)
    within = np.divide(passed, seen, out=np.zeros_like(seen), where=seen > 0)
    overall = np.divide(passed.sum(axis=2), total[..., 0], out=np.zeros(total.shape[:2]), where=total[..., 0] > 0)
    gain = _entropy(overall) - (share * _entropy(within)).sum(axis=2)
    split = -(share * np.log2(share, out=np.zeros_like(share), where=share > 0)).sum(axis=2)
    ratios: Doubles = np.divide(gain, split, out=np.zeros_like(gain), where=split > 1e-9)
    return ratios


def _entropy(share: Doubles) -> Doubles:
    both = np.stack([share, 1 - share])
    out: Doubles = -(both * np.log2(both, out=np.zeros_like(both), where=both > 0)).sum(axis=0)
    return out
