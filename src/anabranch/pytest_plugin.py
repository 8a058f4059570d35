"""The entry point of the pytest plugin; it loads the engine only for tests that use its fixture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from anabranch.pytest import ContinuousQueryFactory


@pytest.fixture
def continuous_query() -> ContinuousQueryFactory:
    """Starts continuous queries in this process, without Spark: rows in, rows out (`anabranch.pytest`)."""
    # Imported here because pytest loads this module for every test run of the environment.
    from anabranch.pytest import factory

    return factory()
