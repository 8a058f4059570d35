"""Classifiers: decision trees over the attributes of a row that assign the row its route, as immutable values.

`mesh` learns a tree, the plan carries it, and `classify` evaluates it. Every row gets a route: each test names the
branch for NULL (NaN counts as NULL), and a category that no test lists takes the second branch. The route of a row
changes the cost of its results, never the results.

    0                                            every row takes route 0
    (price <= 3.5 ? 0 : 1)                       rows up to 3.5 take route 0; the others, and NULLs, route 1
    (sector in {'food', 'it'} or null ? 2 : 0)   listed categories and NULLs take route 2
    (hour(at) <= 11.5 ? 0 : 1)                   rows of the first half of the day, in UTC, take route 0

The grammar, which `parse_classifier` reads:

    tree := route | '(' test ['or' 'null'] '?' tree ':' tree ')'
    test := number_of '<=' number | name 'in' '{' [string (',' string)*] '}'
    number_of := name | 'hour' '(' name ')'

A name that is not a plain word is in backquotes, a string in quotes; both are doubled inside. Booleans are 0 and 1,
dates are days and timestamps are microseconds since the epoch. (Nehme et al. 2012, section 4.4.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeAlias

import pyarrow as pa

from anabranch.errors import PlanError, UnknownAttribute
from anabranch.lang.schema import Schema, is_float, is_integer, is_text
from anabranch.plan.reader import TextReader

HOUR, DAY = 3_600_000_000, 86_400_000_000
"""In microseconds."""
MOST_ROUTES = 2**15 - 1
"""Route numbers fit 16 bits, so that rows are grouped by route with a radix sort."""


@dataclass(frozen=True)
class Assign:
    """A leaf: its rows take the route with this number."""

    route: int

    def __post_init__(self) -> None:
        if not 0 <= self.route <= MOST_ROUTES:
            raise PlanError(f"'{self.route}' is not a route number", hint=f"routes are numbered 0 to {MOST_ROUTES}")

    def __str__(self) -> str:
        return str(self.route)


@dataclass(frozen=True)
class NumberTest:
    """Rows with attribute <= threshold go to `first`, others to `second`, NULL and NaN by `null_first`."""

    attribute: str
    threshold: float
    first: Classifier
    second: Classifier
    null_first: bool = False

    def __post_init__(self) -> None:
        if math.isnan(self.threshold):
            raise PlanError(f"the threshold for attribute '{self.attribute}' is not a number")

    def __str__(self) -> str:
        return _test_text(f"{_name_text(self.attribute)} <= {self.threshold!r}", self)


@dataclass(frozen=True)
class CategoryTest:
    """Rows whose attribute is listed go to `first`, others to `second`, NULL by `null_first`.

    An empty list is the test for NULL alone.
    """

    attribute: str
    values: tuple[str, ...]
    first: Classifier
    second: Classifier
    null_first: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(sorted(set(self.values))))

    def __str__(self) -> str:
        listed = ", ".join("'" + value.replace("'", "''") + "'" for value in self.values)
        return _test_text(f"{_name_text(self.attribute)} in {{{listed}}}", self)


Test: TypeAlias = NumberTest | CategoryTest
Classifier: TypeAlias = Assign | Test

ONE_ROUTE = Assign(0)


_HOUR = re.compile(r"hour\((.+)\)", re.S)


def hour_attribute(column: str) -> str:
    """Returns the attribute that is the UTC hour of day of a timestamp column."""
    return f"hour({column})"


def hour_of(attribute: str) -> str | None:
    """Returns the column whose hour of day an attribute is; None for any other attribute."""
    found = _HOUR.fullmatch(attribute)
    return None if found is None else found[1]


def column_of(attribute: str) -> str:
    """Returns the column that an attribute is computed from."""
    return hour_of(attribute) or attribute


def walk(classifier: Classifier) -> Iterator[Classifier]:
    """Yields the tree and all its nodes, tests before their branches."""
    yield classifier
    if not isinstance(classifier, Assign):
        yield from walk(classifier.first)
        yield from walk(classifier.second)


def attributes(classifier: Classifier) -> tuple[str, ...]:
    """Returns the tested attributes, each once, in order of first appearance."""
    return tuple(dict.fromkeys(node.attribute for node in walk(classifier) if not isinstance(node, Assign)))


def routes(classifier: Classifier) -> tuple[int, ...]:
    """Returns the routes that a row can get, ascending."""
    return tuple(sorted({node.route for node in walk(classifier) if isinstance(node, Assign)}))


def depth(classifier: Classifier) -> int:
    """Returns the number of tests on the longest path to a leaf."""
    if isinstance(classifier, Assign):
        return 0
    return 1 + max(depth(classifier.first), depth(classifier.second))


def leaves(classifier: Classifier) -> tuple[tuple[int, int], ...]:
    """Returns the leaves in order: the route of each, and the number of tests on the path to it."""
    if isinstance(classifier, Assign):
        return ((classifier.route, 0),)
    below = (*leaves(classifier.first), *leaves(classifier.second))
    return tuple((route, tests + 1) for route, tests in below)


def map_leaves(classifier: Classifier, change: Callable[[Assign], Classifier]) -> Classifier:
    """Applies a function to every leaf, in order."""
    if isinstance(classifier, Assign):
        return change(classifier)
    return replace(classifier, first=map_leaves(classifier.first, change), second=map_leaves(classifier.second, change))


def by_leaf(classifier: Classifier) -> Classifier:
    """Numbers the leaves from 0: the tree then assigns a row its leaf instead of its route."""
    numbers = count()
    return map_leaves(classifier, lambda _: Assign(next(numbers)))


def check_attributes(classifier: Classifier, schema: Schema, relation: str) -> None:
    """Raises if a tree tests a column that the relation lacks or whose type does not fit the test."""
    types = {field.name: field.type for field in schema}
    for node in walk(classifier):
        if isinstance(node, Assign):
            continue
        if node.attribute not in types:
            raise UnknownAttribute(
                f"attribute '{node.attribute}' is not a column of relation '{relation}'",
                detail=f"it has {', '.join(schema.names)}",
                hint="test columns that the query carries; to test another column of the stream, give the mesh as "
                "'plan' and restart the query",
            )
        require_kind(node, types[node.attribute])


def require_kind(test: Test, kind: pa.DataType) -> None:
    """Raises for a number test on a type that is not a number, or a category test on a type that is not text."""
    fits = is_classifiable(kind) and is_text(kind) == isinstance(test, CategoryTest)
    if not fits:
        wanted = "text" if isinstance(test, CategoryTest) else "a number, boolean, date or timestamp"
        raise PlanError(f"attribute '{test.attribute}' is of type {kind}, and its test needs {wanted}")


def is_classifiable(kind: pa.DataType) -> bool:
    """True for types that a test can read: text, and types that are (nearly) exact as a double."""
    return bool(
        is_integer(kind)
        or is_float(kind)
        or is_text(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
    )


# --- as Spark SQL ----------------------------------------------------------------------------------------------------


# --- as text ---------------------------------------------------------------------------------------------------------

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_RESERVED = frozenset({"in", "or", "null", "inf"})


def parse_classifier(text: str) -> Classifier:
    """Parses a classifier; raises PlanError with the position of a mistake."""
    reader = _Reader(text)
    tree, at = reader.tree(0)
    reader.end(at)
    return tree


class _Reader(TextReader):
    token = re.compile(
        r"\s*((?:`(?:[^`]|``)*`)|(?:'(?:[^']|'')*')|<=|[A-Za-z_][A-Za-z_0-9]*|-?[0-9][0-9.eE+-]*|\S)", re.S
    )
    kind = "classifier"
    hint = "classifiers look like 0, (price <= 3.5 ? 0 : 1) or (sector in {'it'} or null ? 0 : 1)"

    def tree(self, at: int) -> tuple[Classifier, int]:
        token = self.peek(at)
        if token.isdecimal() and token.isascii():
            return Assign(int(token)), at + 1
        at = self.expect(at, "(", "a route number or '('")
        attribute, at = self.name(at)
        test = self.peek(at)
        threshold: float = 0.0
        values: list[str] = []
        if test == "<=":
            threshold, at = self.number(at + 1)
        elif test == "in":
            values, at = self.strings(at + 1)
        else:
            raise self.unexpected(at, "'<=' or 'in'")
        null_first = self.peek(at) == "or"
        if null_first:
            at = self.expect(at + 1, "null")
        first, at = self.tree(self.expect(at, "?"))
        second, at = self.tree(self.expect(at, ":"))
        at = self.expect(at, ")")
        if test == "<=":
            return NumberTest(attribute, threshold, first, second, null_first), at
        return CategoryTest(attribute, tuple(values), first, second, null_first), at

    def name(self, at: int) -> tuple[str, int]:
        token = self.peek(at)
        if len(token) > 1 and token[0] == "`":
            return token[1:-1].replace("``", "`"), at + 1
        if token == "hour" and self.peek(at + 1) == "(":
            column, at = self.name(at + 2)
            return hour_attribute(column), self.expect(at, ")")
        if _PLAIN.fullmatch(token) and token not in _RESERVED:
            return token, at + 1
        raise self.unexpected(at, "an attribute")

    def number(self, at: int) -> tuple[float, int]:
        sign = self.peek(at) == "-"
        try:
            value = float(self.peek(at + sign))
        except ValueError:
            raise self.unexpected(at, "a number") from None
        return (-value if sign else value), at + 1 + sign

    def strings(self, at: int) -> tuple[list[str], int]:
        at = self.expect(at, "{")
        values: list[str] = []
        while self.peek(at) != "}":
            at = self.expect(at, ",") if values else at
            token = self.peek(at)
            if len(token) < 2 or token[0] != "'":
                raise self.unexpected(at, "a string in quotes")
            values.append(token[1:-1].replace("''", "'"))
            at += 1
        return values, at + 1


def _name_text(name: str) -> str:
    if (column := hour_of(name)) is not None:
        return hour_attribute(_name_text(column))
    plain = _PLAIN.fullmatch(name) and name not in _RESERVED
    return name if plain else "`" + name.replace("`", "``") + "`"


def _test_text(condition: str, test: Test) -> str:
    return f"({condition}{' or null' if test.null_first else ''} ? {test.first} : {test.second})"
