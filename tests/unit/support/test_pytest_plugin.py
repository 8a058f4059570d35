"""The pytest plugin: the tests on its page run as they are written, and mistakes in a test are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from anabranch.errors import BatchError, SpecError
from anabranch.pytest import ContinuousQueryFactory, Stream
from anabranch.pytest_plugin import continuous_query

__all__ = ["continuous_query"]  # installed, the plugin brings it

ROOT = Path(__file__).parents[3]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/testing.md").read_text(), re.DOTALL)
PAGE: dict[str, object] = {}
exec("\n".join(BLOCKS), PAGE)
TESTS = [name for name in PAGE if name.startswith("test_")]


@pytest.mark.parametrize("name", TESTS)
def test_the_page(name: str, continuous_query: ContinuousQueryFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    PAGE[name](continuous_query)  # type: ignore[operator]


def test_batches_plans_and_groups(continuous_query: ContinuousQueryFactory) -> None:
    text = (
        "SELECT a.k AS k, COUNT(*) AS n FROM a [TUMBLE 10 SECONDS], b [TUMBLE 10 SECONDS] WHERE a.k = b.k GROUP BY a.k"
    )
    columns = Stream("ts timestamp, k bigint, d date, x decimal(5,2)")
    for plan in (None, "(b a)"):
        query = continuous_query(text, plan=plan, a=columns, b=columns)
        assert query.batch(a=[{"ts": "1970-01-01 00:00:01", "k": 1, "d": "2026-01-01", "x": "1.50"}]) == []
        assert query.batch(b=[{"ts": "1970-01-01T00:00:02+00:00", "k": 1}] * 2) == []
        assert query.batch(a=[{"ts": "1970-01-01 00:00:21"}], b=[{"ts": "1970-01-01 00:00:22"}]) == [{"k": 1, "n": 2}]
        assert query.end() == []


def test_mistakes_are_named(continuous_query: ContinuousQueryFactory, tmp_path: Path) -> None:
    query = continuous_query("SELECT a.k AS k FROM a [NOW]", a=Stream("ts timestamp, k bigint"))
    with pytest.raises(BatchError, match="the test has no stream 'b'"):
        query.batch(b=[])
    with pytest.raises(BatchError, match="a row of 'a' has 1 values"):
        query.batch(a=[("1970-01-01",)])
    with pytest.raises(BatchError, match="a row of 'a' has a column 'j'"):
        query.batch(a=[{"j": 1}])
    with pytest.raises(SpecError, match="has no query 'nobody'"):
        continuous_query.from_spec(ROOT / "examples/orders.yaml", "nobody")
