"""What a query decides by itself follows from the rows that a test draws, not from a clock."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

from anabranch.engine.tracks import spread
from tests.support.loads import given_loads, per_row


@pytest.fixture(autouse=True, scope="module")
def _files_are_in_memory(own_hot_folder: None) -> Iterator[None]:
    """Every example writes some files and throws them away, which costs a disk's journal more than the example."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", tempfile.mkdtemp(dir=os.environ["ANABRANCH_HOT_FOLDER"]))
        yield


@pytest.fixture(autouse=True, scope="module")
def _rows_cost_the_same() -> Iterator[None]:
    with given_loads(per_row(0.001)):
        yield


@pytest.fixture(autouse=True, scope="module")
def _states_fill_slowly() -> Iterator[None]:
    """A few rows with every step, so that the few rows of a test are not caught up with at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spread, "allowance", lambda brought: 3)
        patch.setattr(spread, "SLICE", 2)
        yield
