"""Class columns: stream columns that the query does not carry, discretized into a few classes of one byte each.

A classifier may test any column of a stream. It needs no exact values: a class column records between which thresholds
a number lies, or which of the listed strings a text equals. The class of a row is computed where the row is read, by a
tree whose leaves are classes (`tree`): as a CASE expression in Spark, and as array operations in slots that read files
and in the in-process host. The engine receives a representative value for the class (`values`), so a classifier tests
carried columns and classes in the same way.

Invariant: a class decides the route of a new row and nothing else. It is neither kept in a checkpoint nor part of a
query's identity. A row without a class has class `UNKNOWN` and is routed like a NULL.

Limit: `MOST_CLASSES` classes. A classifier over a class column is exact for thresholds that are bounds of the column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import pyarrow as pa

from anabranch.errors import PlanError
from anabranch.lang.schema import is_text
from anabranch.plan.classifier import Assign, CategoryTest, Classifier, NumberTest, column_of

UNKNOWN = 0
"""The class of a row without information, and of NULL and NaN."""
MOST_CLASSES = 62
"""Maximum bounds or texts of a class column; with the rest and UNKNOWN they fit a byte, and are categories of a search.
"""
MOST_CODES = 127
"""The largest class that fits a byte."""
REST = "\uffff"
"""Stands for every text that is not listed."""

T = TypeVar("T")


@dataclass(frozen=True)
class ClassColumn:
    """An attribute in classes: numbers by bounds, each the largest value of its class; or texts, each a class."""

    attribute: str
    type: pa.DataType
    """The type of the attribute's values."""
    bounds: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", tuple(sorted(set(self.bounds))))
        object.__setattr__(self, "texts", tuple(sorted({*self.texts} - {REST})))
        if len(self.values) > MOST_CODES:
            raise PlanError(
                f"attribute '{self.attribute}' is tested by {len(self.values) - 1} values",
                detail=f"the query does not carry it, and a class column distinguishes at most {MOST_CODES - 1} apart",
                hint="test fewer values, or select the column",
            )

    @property
    def column(self) -> str:
        """The stream column that the attribute is computed from."""
        return column_of(self.attribute)

    @property
    def is_text(self) -> bool:
        return is_text(self.type)

    @cached_property
    def values(self) -> tuple[float, ...] | tuple[str, ...]:
        """The representative value of each class, from class 1 on."""
        if self.is_text:
            return (*self.texts, REST)
        last = self.bounds[-1] if self.bounds else 0.0
        return (*self.bounds, last + max(1.0, abs(last)))

    @cached_property
    def tree(self) -> Classifier:
        """The tree that assigns a row its class."""
        if self.is_text:
            return CategoryTest(self.attribute, (), Assign(UNKNOWN), self._text_tree(self.texts, True), True)
        classes = self._number_tree(1, len(self.bounds) + 1)
        return NumberTest(self.attribute, float("-inf"), Assign(UNKNOWN), classes, True)

    def _number_tree(self, first: int, last: int) -> Classifier:
        if first == last:
            return Assign(first)
        middle = (first + last) // 2
        bound = self.bounds[middle - 1]
        return NumberTest(self.attribute, bound, self._number_tree(first, middle), self._number_tree(middle + 1, last))

    def _text_tree(self, texts: Sequence[str], with_rest: bool) -> Classifier:
        if not texts:
            return Assign(len(self.texts) + 1)
        if len(texts) == 1 and not with_rest:
            return Assign(self.texts.index(texts[0]) + 1)
        half = (len(texts) + 1) // 2
        first, second = texts[:half], texts[half:]
        return CategoryTest(
            self.attribute, tuple(first), self._text_tree(first, False), self._text_tree(second, with_rest)
        )

    @cached_property
    def digest(self) -> str:
        """A short digest of the meaning of the classes; states with other classes have a different digest."""
        text = f"{self.attribute} {self.type} {self.bounds} {self.texts}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.attribute} in {len(self.values)} classes"


def merged(one: ClassColumn, other: ClassColumn, most: int = MOST_CLASSES) -> ClassColumn:
    """Merges the classes of two columns of one attribute: all of the first, and of the second as many as fit in `most`.

    Up to `most` bounds or texts, the result distinguishes every row that either column distinguishes. Beyond that, the
    second column loses bounds, and its classifiers send some rows to a neighbouring route.
    """
    return replace(one, bounds=_some(one.bounds, other.bounds, most), texts=_some(one.texts, other.texts, most))


def _some(first: tuple[T, ...], more: Collection[T], most: int) -> tuple[T, ...]:
    others = [each for each in more if each not in first]
    room = max(0, most - len(first))
    # Evenly spaced, so that the dropped bounds are not all at one end.
    chosen = others if len(others) <= room else [others[at * len(others) // room] for at in range(room)]
    return (*first, *chosen)
