"""Operator profiles: sampled rows of one relation with their operator matrix, sent from an engine to a mesh search.

Invariant: `from_json(to_json())` is the same profile. Limit: a profile has all its sampled rows, so it is sent only on
request.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.stats.mesh.operators import OperatorMatrix

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(frozen=True, eq=False)
class OperatorProfile:
    """The columns that a classifier may test, and the operators' statistics, by row."""

    relation: str
    columns: pa.Table
    matrix: OperatorMatrix
    batch_rows: int = 0
    """Rows of the relation in the engine's last step; 0 if unknown."""
    call: float = 0.0
    """The fixed seconds that all operators together take for the rows of one route."""

    def to_json(self) -> dict[str, Any]:
        """Returns the profile as a JSON mapping; the rows are compressed."""
        statistics = [*self.matrix.selectivity.T, *self.matrix.cost.T]
        arrays = [*self.columns.itercolumns(), *(pa.chunked_array([pa.array(column)]) for column in statistics)]
        table = pa.table(arrays, names=[str(number) for number in range(len(arrays))])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=_COMPRESSED) as writer:
            writer.write_table(table)
        return {
            "relation": self.relation,
            "columns": self.columns.column_names,
            "operators": list(self.matrix.operators),
            "batchRows": self.batch_rows,
            "call": self.call,
            "rows": b64encode(sink.getvalue()).decode(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> OperatorProfile:
        names, operators = value["columns"], tuple(value["operators"])
        table = pa.ipc.open_stream(b64decode(value["rows"])).read_all()
        start, size = len(names), len(operators)
        numbers = [column.to_numpy() for column in table.columns[start:]]
        halves = [np.array(each).reshape(size, table.num_rows).T for each in (numbers[:size], numbers[size:])]
        columns = pa.table(table.columns[:start], names=names)
        return cls(value["relation"], columns, OperatorMatrix(operators, *halves), value["batchRows"], value["call"])
