"""Every query of the recipes page runs, and gives what the page says, whatever the plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from anabranch.pytest import Row, Stream, Table, factory

PAGE = (Path(__file__).parents[2] / "docs/recipes.md").read_text()
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
SOURCES: Mapping[str, Stream | Table] = {
    "impressions": Stream("ts timestamp, id bigint, ad string"),
    "clicks": Stream("ts timestamp, id bigint, campaign string"),
    "prices": Stream("ts timestamp, symbol string, price double"),
    "ads": Table("ad string, owner string", rows=[("car", "Ada")]),
}
ROWS: Mapping[str, list[Row]] = {
    "impressions": [(f"2026-01-01 12:00:{at}", number, ad) for at, number, ad in (("05", 1, "car"), ("50", 2, "tea"))],
    "clicks": [(f"2026-01-01 12:00:{at}", 1, campaign) for at, campaign in (("10", "x"), ("12", "x"), ("15", "w"))],
    "prices": [
        (f"2026-01-01 12:00:{at}", symbol, price)
        for at, symbol, price in (("01", "car", 2.0), ("03", "car", 3.0), ("30", "car", 1.0), ("51", "tea", 9.0))
    ],
}
EXPECTED = [
    [("car", 3)],
    [("car", 1, 3), ("tea", 1, 0)],
    [(1, "w"), (1, "x")],
    [(1, "10", "x")],
    [(1, "car", "Ada"), (2, "tea", None)],
    [(1, 3.0), (2, None)],
    [(1, "tea", 9.0), (2, "car", 3.0)],
    [("car", 3.0, "03"), ("tea", 9.0, "51")],
    [("w", 1), ("x", 2)],
    [(2, "tea")],
]


def plain(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of a row without its window; a time as its seconds."""
    values = [value for name, value in row.items() if name not in ("minute", "at")]
    return tuple(f"{value:%S}" if hasattr(value, "strftime") else value for value in values)


@pytest.mark.parametrize("number", range(len(QUERIES)))
def test_a_recipe(number: int) -> None:
    text = QUERIES[number]
    sources = {name: each for name, each in SOURCES.items() if name in text}
    query = factory()(text, plan=None, **sources)
    found = query.batch(**{name: rows for name, rows in ROWS.items() if name in sources})
    found += query.end()
    assert sorted(map(plain, found), key=repr) == EXPECTED[number]


def test_every_recipe_has_an_answer() -> None:
    assert len(QUERIES) == len(EXPECTED)
