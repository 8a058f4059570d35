"""A band says where to look, never what matches: whatever rounding does to a comparison, its partners are found."""

from __future__ import annotations

import pytest

from anabranch.cql import compile_query
from anabranch.host.local import LocalHost
from anabranch.plan.text import parse
from anabranch.testing.oracle import batch_answer, describe_difference, rows_as_multiset
from anabranch.testing.scripted import read_rows, read_script

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
    ],
)
def test_rounding_hides_no_partner(condition: str) -> None:
    windows = "a [RANGE 9 SECONDS], b [RANGE 9 SECONDS]"
    query = compile_query(f"SELECT a.i AS x, a.f AS y, b.i AS z, b.f AS w FROM {windows} WHERE {condition}", CATALOG)
    values = zip(INTEGERS, FLOATS, strict=True)
    rows = read_rows(CATALOG, [f"{name} 0 {i} {f}" for i, f in values for name in "ab"])
    expected = batch_answer(query, rows)
    assert expected
    for plan in ("(a b)", "(b a)"):
        assert not describe_difference(expected, rows_as_multiset(LocalHost(query, parse(plan)).step(rows)))
