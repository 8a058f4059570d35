"""Sessions of partitions whose code is their value: no row is lost or counted with those of another partition."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.engine.operators.open_sessions import _NULL
from anabranch.errors import HostError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.plan.physical import Leaf
from anabranch.run.local import LocalHost

SECOND = 1_000_000


def answer(kind: pa.DataType, keys: list[object], *, nullable: bool) -> list[tuple[object, int, int]]:
    """Runs a query over one row a second in batches of three; returns key, length in seconds and rows of sessions."""
    schema = Schema((Field("ts", TIMESTAMP, False), Field("k", kind, nullable)))
    catalog = Catalog()
    catalog.register(StreamDeclaration("s", schema, "ts"))
    query = compile_query(
        "SELECT k, WINDOW_START() AS a, WINDOW_END() AS b, COUNT(*) AS n FROM s [SESSION 2 SECONDS] GROUP BY k", catalog
    )
    host = LocalHost(query, Leaf("s"))
    times = pa.array([n * SECOND for n in range(len(keys))], pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
    rows = pa.table({"ts": times, "k": pa.array(keys, kind)})
    found = []
    for start in range(0, len(keys), 3):
        found += host.step({"s": rows.slice(start, 3)}).to_pylist()
    return sorted(((row["k"], (row["b"] - row["a"]).seconds, row["n"]) for row in found), key=str)


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize("kind", [pa.int64(), pa.int16(), pa.float64(), pa.string()])
def test_sessions_of_any_type_of_key(kind: pa.DataType, nullable: bool) -> None:
    one, two, three = pa.array([1, 2, 3]).cast(kind).to_pylist()
    found = answer(kind, [one, one, two, one, *[three] * 6], nullable=nullable)
    assert found == [(one, 5, 3), (two, 2, 1)]


def test_null_is_a_partition_of_its_own() -> None:
    found = answer(pa.int64(), [None, 0, None, 0, *[7] * 6], nullable=True)
    assert found == [(0, 4, 2), (None, 4, 2)]


def test_a_value_with_the_code_of_null_is_refused() -> None:
    assert answer(pa.int64(), [_NULL, _NULL, *[7] * 6], nullable=True) == [(_NULL, 3, 2)]
    with pytest.raises(HostError, match="have the same code"):
        answer(pa.int64(), [_NULL, None, *[7] * 6], nullable=True)
