"""The tests that share a Spark session stay in one process where several run side by side (`make test`)."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("one process")
def test_groups_of_tests_are_kept_together(request: pytest.FixtureRequest) -> None:
    """With pytest 9.2 and xdist 3.8 they were not, silently: each process started a Spark of its own."""
    if not hasattr(request.config, "workerinput") or request.config.getoption("loadgroup", False) is False:
        pytest.skip("one process runs all tests")
    assert request.node.nodeid.endswith("@one process")
