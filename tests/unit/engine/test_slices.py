"""The floors between two slices of a batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anabranch.engine.batch import RelationBatch
from anabranch.engine.slices import Slice, floors_after


@pytest.mark.parametrize(("read", "expected"), [(1, 30), (3, 40)])
def test_rows_of_a_derived_relation_raise_no_floor(read: int, expected: int) -> None:
    """The rows of a stream say which times may still come; for those of another operator only its ticks do."""
    graph: Any = SimpleNamespace(relation=lambda name: SimpleNamespace(is_derived=name == "r", disorder=0))
    batch = RelationBatch(np.array([20, 30, 40]), {}, pa.RecordBatch.from_pydict({"k": [1, 2, 3]}))
    found = floors_after(Slice({}, {"a": read, "r": read}, False), {"a": batch, "r": batch}, {"a": 10, "r": 10}, graph)
    assert found == {"a": expected, "r": 10}
