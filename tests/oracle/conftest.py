"""What a query decides by itself follows from the rows that a test draws, not from a clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.testing.loads import given_loads, per_row


@pytest.fixture(autouse=True, scope="module")
def _rows_cost_the_same() -> Iterator[None]:
    with given_loads(per_row(0.001)):
        yield
