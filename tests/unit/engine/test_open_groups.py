"""Combinations that groups will still count, found again in another process."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from anabranch.engine import kernels
from anabranch.engine.batch import Combinations
from anabranch.engine.operators.open_groups import OpenCombinations
from anabranch.engine.state.arena import MappedArena
from anabranch.plan.query import Grouping


def test_combinations_of_count_windows_are_settled_after_they_were_found_again(tmp_path: Path) -> None:
    """Files are read-only memory, which compiled code does not take: the first look at a deadline failed."""
    deadlines = np.array([30, 40, 12], dtype=np.int64)
    base: Any = SimpleNamespace(deadlines=lambda rows: kernels.gather(deadlines, rows))
    grouping = Grouping((), (), None, slide=10)

    def open_ones() -> OpenCombinations:
        return OpenCombinations(MappedArena(tmp_path), grouping, {"a": base}, ["a"])

    before, again = open_ones(), open_ones()
    newest = np.array([5, 6, 7], dtype=np.int64)
    before.enter(Combinations({"a": np.arange(3)}, newest, np.full(3, 35, dtype=np.int64)))
    again.reopen(json.loads(json.dumps(before.layout())))
    (found,) = again.settle(25)
    assert found.newest.tolist() == [5, 6, 7]
    assert found.deadline.tolist() == [24, 24, 12]
    assert len(again) == 2
