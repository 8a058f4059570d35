"""Rows of one relation and what operators did to each: how a running engine tells the search for a mesh what it saw."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from anabranch.stats.operators import OperatorMatrix


@dataclass(frozen=True, eq=False)
class OperatorProfile:
    """The columns that a classifier may test, and the operators' statistics, row by row."""

    relation: str
    columns: pa.Table
    matrix: OperatorMatrix
