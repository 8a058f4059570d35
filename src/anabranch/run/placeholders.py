"""Placeholder values for columns that old checkpoint rows lack after a change of queries.

A filter that all queries share is tested on arrival, and its columns need not be kept. When a query without the filter
is added, the others test it themselves from then on, and the older rows have no value for its columns. These rows have
passed the filter, so they get values that pass it again.

Invariant: a result depends on a placeholder only through a test that its row has passed. A query that reads the column
in another way answers only from the time at which such rows can no longer take part (`run/changing`).

Limit: values are searched among the constants of the tests and their neighbours. If none is found, or if a test
compares a missing column with an existing one, there is no placeholder, and the change is refused.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from anabranch.engine.evaluate.expression import evaluate_mask
from anabranch.errors import AnabranchError
from anabranch.lang.expr import Column, Expr, Literal, columns, walk
from anabranch.lang.schema import Field

MOST_TRIES = 5_000


def placeholders_for(lacking: Sequence[Field], tests: Iterable[Expr]) -> Mapping[str, pa.Scalar] | None:
    """Returns a value of each column such that all tests pass; None if none is found."""
    names = {field.name for field in lacking}
    asked = [test for test in tests if any(column.name in names for column in columns(test))]
    if any(column.name not in names for test in asked for column in columns(test)):
        return None
    found: dict[str, pa.Scalar] = {}
    for several, of_them in _apart(lacking, asked):
        values = _passing(several, of_them)
        if values is None:
            return None
        found |= values
    return found


def _apart(lacking: Sequence[Field], tests: Sequence[Expr]) -> list[tuple[list[Field], list[Expr]]]:
    """Partitions the columns into groups that share no test, each with its tests."""
    groups: list[tuple[set[str], list[Expr]]] = [({field.name}, []) for field in lacking]
    for test in tests:
        read = {column.name for column in columns(test)}
        met = [group for group in groups if group[0] & read]
        groups = [group for group in groups if not group[0] & read]
        together = set().union(*(names for names, _ in met)) if met else set()
        groups.append((together, [*(each for _, several in met for each in several), test]))
    return [([field for field in lacking if field.name in names], several) for names, several in groups if names]


def _passing(several: Sequence[Field], tests: Sequence[Expr]) -> dict[str, pa.Scalar] | None:
    candidates = [_candidates(field, tests) for field in several]
    for values in itertools.islice(itertools.product(*candidates), MOST_TRIES):
        chosen = dict(zip((field.name for field in several), values, strict=True))
        if all(_passes(test, chosen) for test in tests):
            return chosen
    return None


def _passes(test: Expr, values: Mapping[str, pa.Scalar]) -> bool:
    def read(column: Column) -> pa.Array:
        scalar = values[column.name]
        return pa.array([scalar.as_py()], scalar.type)

    try:
        return bool(evaluate_mask(test, read, 1)[0])
    except (AnabranchError, pa.ArrowException):
        return False


def _candidates(field: Field, tests: Sequence[Expr]) -> list[pa.Scalar]:
    """Returns values of a type to try: NULL, a default, and the neighbours of the constants of the tests."""
    tried: list[Any] = [None, 0, 1, "", "a", False, True, b"", datetime.datetime(2000, 1, 1), decimal.Decimal(0)]
    for constant in (node.value for test in tests for node in walk(test) if isinstance(node, Literal)):
        match constant:
            case bool() | None:
                pass
            case str():
                plain = constant.replace("%", "").replace("_", "a")
                tried += [constant, plain, f"{plain}a", f"a{plain}", f"a{plain}a"]
            case int() | float() | decimal.Decimal():
                tried += [constant, constant + 1, constant - 1, -constant]
            case datetime.datetime():
                tried += [constant, *(constant + datetime.timedelta(days=days) for days in (1, -1))]
            case _:
                tried.append(constant)
    found: dict[str, pa.Scalar] = {}
    for value in tried:
        try:
            scalar = pa.scalar(value, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
        found.setdefault(repr(scalar), scalar)
    return list(found.values())
