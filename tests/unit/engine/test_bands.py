"""A band says where to look, never what matches: whatever rounding does to a comparison, its partners are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given, settings

from anabranch.cql import compile_query
from anabranch.engine.evaluate.codes import Codes, band_codes
from anabranch.engine.evaluate.expression import evaluate
from anabranch.errors import AnabranchError, ExpressionError
from anabranch.lang.catalog import Catalog
from anabranch.plan.join_graph import Band
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from tests.support.comparisons import Comparison, bands
from tests.support.interpreter import column_values, interpret
from tests.support.oracle import Answer, batch_answer, describe_difference, rows_as_multiset
from tests.support.scripted import read_rows, read_script

CATALOG = read_script("stream a (i bigint, f double)\nstream b (i bigint, f double)").catalog
FLOATS = ("0", "-0.0", "0.5", "-5000", "1e16", "1e308", "1.7976931348623157e308", "inf", "-inf", "nan", "-")
INTEGERS = (0, 1, 2, 3, -1, 5000, 2**53, 2**53 + 1, -(2**62), "-", "-")


@pytest.mark.parametrize(
    "condition",
    [
        # Wider than the largest double by half: buckets were not numbers, and nothing was found.
        "a.f BETWEEN b.f - 0.5 AND b.f + 1.7976931348623157e308",
        "a.f >= b.f AND a.f <= b.f + 1e300",
        # Wider than any double: the query could not be compiled.
        "a.f >= b.f AND a.f <= b.f + 1e308 + 1e308",
        # Doubles near 1e20 are thousands apart, so all of these sums are equal, whatever the terms.
        "a.f + 1e20 <= b.f + 1e20 AND a.f + 1e20 >= b.f + 1e20",
        "a.f <= b.f + 1e20 - 1e20 AND a.f >= b.f - 10",
        "a.i - b.i + 1e20 <= 1e20 AND a.i - b.i + 1e20 >= 1e20",
        # As doubles 16.4 - 14.4 is less than 2, and yet 2 + 14.4 is 16.4.
        "a.i - b.i + 14.4 <= 16.4 AND a.i >= b.i",
        "ABS(a.i - b.i + 14.4) <= 16.4",
        # NaN is greater than every number, so a lower bound of a difference lets it pass.
        "a.f - b.f >= -1 AND a.f <= b.f + 1",
        "a.f - b.f >= -1 AND b.f - a.f >= -1",
        "b.f + 1 >= a.f AND 1 >= b.f - a.f",
    ],
)
def test_rounding_loses_no_match(condition: str) -> None:
    query = _joined(condition, CATALOG, "a.i AS x, a.f AS y, b.i AS z, b.f AS w")
    values = zip(INTEGERS, FLOATS, strict=True)
    rows = read_rows(CATALOG, [f"{name} 0 {i} {f}" for i, f in values for name in "ab"])
    assert _check(query, rows)


@pytest.mark.parametrize(
    "condition",
    [
        "a.x + {by} <= b.x AND b.x <= a.x + {by}",
        "ABS(a.x - b.x + {by}) <= 0",
        "a.x - b.x BETWEEN -{by} AND -{by}",
        "b.x - a.x BETWEEN {by} AND {by}",
        "b.x - {by} >= a.x AND a.x >= b.x - {by}",
    ],
)
@pytest.mark.parametrize("offset", ["10000000", "1000000000", "1000000000000000"])
@pytest.mark.parametrize("kind", ["double", "float", "decimal(18, 2)", "decimal(30, 4)", "bigint"])
def test_an_offset_loses_no_match_of_a_band_without_width(kind: str, offset: str, condition: str) -> None:
    catalog = read_script(f"stream a (x {kind})\nstream b (x {kind})").catalog
    random = Random(offset)
    numbers = [random.randrange(10**6) * step for _ in range(6) for step in (1, 25)]
    scale = {"bigint": 1, "decimal(30, 4)": 10**4}.get(kind, 100)
    given_rows = [f"a 0 {Decimal(number) / scale}" for number in numbers]
    given_rows += [f"b 0 {Decimal(number) / scale + int(offset)}" for number in numbers]
    written = offset if kind not in ("double", "float") else f"{offset}e0"
    query = _joined(condition.format(by=written), catalog, "a.x AS x, b.x AS y")
    assert any(theta.band is not None for theta in query.graph.thetas)
    answer = _check(query, read_rows(catalog, given_rows))
    assert answer or kind == "float"  # sums of which are no floats of 32 bits


@pytest.mark.parametrize(
    ("condition", "pairs"),
    [
        ("ABS(4611686018427387904 - (a.x - b.x)) <= 4611686018427387904", [(0, 0), (2**62, 0), (2**62, 1 - 2**62)]),
        ("a.x BETWEEN b.x - 9223372036854775807 AND b.x + 9223372036854775807", [(0, 0), (-1, 0), (0, -1)]),
        ("a.x + 4611686018427387904 >= b.x - 4611686018427387904 AND a.x <= b.x", [(0, 0), (-(2**62), 2**62)]),
        # As doubles a difference of 10**17 + 1 is 10**17.
        ("a.x - b.x BETWEEN -1e17 AND -1e17", [(0, 10**17), (0, 10**17 + 1), (1, 10**17 - 4)]),
        ("CAST(a.x - b.x + 134217728 AS FLOAT) BETWEEN 134217728 AND 134217728", [(0, 0), (0, 3), (7, 0)]),
    ],
)
def test_a_band_of_whole_numbers_may_be_as_wide_as_they_are(condition: str, pairs: list[tuple[int, int]]) -> None:
    catalog = read_script("stream a (x bigint)\nstream b (x bigint)").catalog
    for left, right in pairs:
        query = _joined(condition, catalog, "a.x AS x, b.x AS y")
        assert _check(query, read_rows(catalog, [f"a 0 {left}", f"b 0 {right}"])), (left, right)


EXTREME = (2**63 - 1, 2**63 - 2, 2**62, 1, 0, -1, -(2**62), -(2**63) + 1, -(2**63))
EXACT: Mapping[str, Callable[[int, int], bool]] = {
    "ABS(a.x - b.x) <= 1": lambda a, b: abs(a - b) <= 1,
    "a.x <= b.x + 1": lambda a, b: a <= b + 1,
    "a.x BETWEEN b.x - 1 AND b.x + 1": lambda a, b: b - 1 <= a <= b + 1,
    "a.x >= b.x - 1 AND a.x <= b.x + 1": lambda a, b: b - 1 <= a <= b + 1,
    "a.x - b.x < 2": lambda a, b: a - b < 2,
    "ABS(a.x - b.x) <= 1.5": lambda a, b: abs(a - b) <= 1,
    "a.x - b.x + 0.5 < 2.5": lambda a, b: a - b < 2,
    "-a.x <> b.x + 1": lambda a, b: -a != b + 1,
    "ABS(a.x) > ABS(b.x)": lambda a, b: abs(a) > abs(b),
    "a.k = b.k AND ABS(a.x - b.x) <= 1": lambda a, b: abs(a - b) <= 1,
}


@pytest.mark.parametrize("condition", EXACT)
def test_sums_that_streams_are_compared_by_do_not_overflow(condition: str) -> None:
    """A plan that looks partners up by buckets never computed them for pairs far apart, and another one failed."""
    catalog = read_script("stream a (x bigint, k bigint)\nstream b (x bigint, k bigint)").catalog
    rows = read_rows(catalog, [f"{name} 0 {value} 7" for name in "ab" for value in EXTREME])
    expected = Answer((one, other) for one in EXTREME for other in EXTREME if EXACT[condition](one, other))
    query = _joined(condition, catalog, "a.x AS x, b.x AS y")
    assert batch_answer(query, rows) == expected
    assert _check(query, rows) == expected.total()


@pytest.mark.parametrize(
    "condition", ["a.x * b.x > 5", "a.x + 1 > 5 AND a.k < b.k", "a.x = b.x + 1", "CAST(a.x + b.x AS int) < 5"]
)
def test_other_overflows_are_still_errors(condition: str) -> None:
    catalog = read_script("stream a (x bigint, k bigint)\nstream b (x bigint, k bigint)").catalog
    rows = read_rows(catalog, [f"{name} 0 {value} 7" for name in "ab" for value in EXTREME])
    query = _joined(condition, catalog, "a.x AS x, b.x AS y")
    with pytest.raises(ExpressionError):
        LocalHost(query, parse("(a b)")).step(rows)


def test_times_that_streams_are_compared_by_do_not_overflow() -> None:
    catalog = read_script("stream a (x timestamp)\nstream b (x timestamp)").catalog
    last = pa.array([2**63 - 1], pa.int64()).cast(pa.timestamp("us", "UTC"))
    first = pa.array([0], pa.int64()).cast(pa.timestamp("us", "UTC"))
    rows = {name: pa.table({"ts": first, "x": last}) for name in "ab"}
    for condition in ("a.x <= b.x + INTERVAL 1 DAY", "a.x BETWEEN b.x - INTERVAL 1 DAY AND b.x + INTERVAL 1 DAY"):
        assert _check(_joined(condition, catalog, "a.x AS x, b.x AS y"), rows) == 1


@settings(max_examples=3 * settings().max_examples)
@given(bands())
def test_rows_that_pass_the_predicates_are_neighbours(drawn: Comparison) -> None:
    try:
        query = compile_query(drawn.cql, drawn.catalog)
    except AnabranchError as error:
        event(f"refused: {type(error).__name__}")
        return
    found = [theta.band for theta in query.graph.thetas if theta.band is not None]
    tables = drawn.rows
    rows = {name: _interpreted(table) for name, table in tables.items()}
    passing = [(i, j) for i in rows["a"] for j in rows["b"] if _passes(query, {"a": i, "b": j})]
    event(f"bands: {len(found)}, pairs: {min(len(passing), 5)}")
    for band in found:
        left = _codes(band, tables[band.left_relation], is_left=True)
        right = _codes(band, tables[band.right_relation], is_left=False)
        for one, other in passing:
            numbers = {"a": one["p"], "b": other["p"]}
            difference = int(left[numbers[band.left_relation]]) - int(right[numbers[band.right_relation]])
            assert difference % 2**64 in (0, 1), (one, other)


def _codes(band: Band, table: pa.Table, *, is_left: bool) -> Codes:
    side = band.left if is_left else band.right
    values = evaluate(side, lambda column: table[column.name].combine_chunks(), table.num_rows)
    return band_codes(values, band.low, band.high, is_left=is_left)


def _interpreted(table: pa.Table) -> list[dict[str, Any]]:
    columns = {name: column_values(table[name]) for name in table.column_names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _passes(query: Query, rows: Mapping[str, Mapping[str, Any]]) -> bool:
    try:
        return all(
            interpret(theta.predicate, lambda column: rows[column.relation][column.name]) is True
            for theta in query.graph.thetas
        )
    except ExpressionError:
        return False


def _joined(condition: str, catalog: Catalog, outputs: str) -> Query:
    windows = "a [RANGE 9 SECONDS], b [RANGE 9 SECONDS]"
    return compile_query(f"SELECT {outputs} FROM {windows} WHERE {condition}", catalog)


def _check(query: Query, rows: Mapping[str, pa.Table]) -> int:
    """Compares the answers of both plans with the batch answer and returns its size."""
    expected = batch_answer(query, rows)
    for plan in ("(a b)", "(b a)"):
        assert not describe_difference(expected, rows_as_multiset(LocalHost(query, parse(plan)).step(rows)))
    return expected.total()
