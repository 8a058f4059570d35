"""Count windows in a host: what they keep, what they refuse, and which model they run in."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.engine.counting import Parts
from anabranch.engine.engine import Engine
from anabranch.engine.state import base, counts
from anabranch.errors import HostError, InvariantBroken, PlanError
from anabranch.lang.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.plan.execution import ROWS, SEMI, TOTAL, ExecutionModel
from anabranch.plan.physical import Leaf, mjoin
from anabranch.run import tables as host_tables
from anabranch.run.local import LocalHost
from tests.support.hosts import engines_of

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.string()), ("v", pa.int64())])


def catalog() -> Catalog:
    found = Catalog()
    for name in "ab":
        found.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts"))
    found.register_table(TableDeclaration("t", Schema.from_arrow(pa.schema([("v", pa.int64()), ("w", pa.int64())]))))
    return found


def rows(*given: tuple[int, str, int]) -> pa.Table:
    seconds = pa.array([second * 1_000_000 for second, _, _ in given], pa.int64())
    times = seconds.cast(pa.timestamp("us")).cast(TIMESTAMP)
    return pa.table([times, pa.array([k for _, k, _ in given]), pa.array([v for _, _, v in given])], schema=COLUMNS)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_rows_of_a_rare_part_do_not_keep_those_of_a_busy_one(checkpointed: bool, tmp_path: Path) -> None:
    window = "[PARTITION BY k ROWS 2 SLIDE 10 SECONDS]"
    text = f"SELECT WINDOW_END() AS at, a.k AS k, SUM(a.v) AS v FROM a {window} GROUP BY a.k"
    query = compile_query(text, catalog())
    with patch.object(base, "WASTE", 8):
        host = LocalHost(query, Leaf("a"), checkpoint=str(tmp_path) if checkpointed else None)
        answers = []
        for step in range(30):
            busy = [(10 * step + second, "busy", second) for second in range(10)]
            answers += host.step({"a": rows(*([(0, "rare", 7)] if not step else []), *busy)}).to_pylist()
            assert engines_of(host)[0].bases["a"].ring.live < 60
    assert [row["v"] for row in answers if row["k"] == "rare"] == [7] * len({row["at"] for row in answers})
    assert {row["v"] for row in answers[2:] if row["k"] == "busy"} == {9}


def test_two_keys_with_one_code_end_the_query() -> None:
    query = compile_query("SELECT a.v AS v FROM a [PARTITION BY k ROWS 1]", catalog())
    host = LocalHost(query, Leaf("a"))
    with patch.object(counts, "parts_of", lambda window, schema, rows: _one_part(rows)):
        host.step({"a": rows((0, "x", 1), (9, "x", 1))})
        with pytest.raises(HostError, match="two different values of 'k' of 'a' have the same code"):
            host.step({"a": rows((11, "y", 2), (19, "y", 1))})


def _one_part(rows: pa.RecordBatch) -> Parts:
    return Parts(np.zeros(rows.num_rows, dtype=np.int64), np.arange(rows.num_rows))


@pytest.mark.parametrize(("asked", "runs"), [(ROWS, ROWS), (SEMI, TOTAL), (TOTAL, TOTAL)], ids=str)
def test_rows_wait_for_the_watermark_in_whatever_model(asked: ExecutionModel, runs: ExecutionModel) -> None:
    query = compile_query("SELECT a.v AS v, b.v AS w FROM a [ROWS 2], b [NOW] WHERE a.k = b.k", catalog())
    host = LocalHost(query, mjoin(query.graph.names), execution=asked)
    assert engines_of(host)[0].execution == runs
    with pytest.raises(InvariantBroken, match="buffers rows until the watermark"):
        Engine.alone(query, mjoin(query.graph.names))


def test_moves_on_parallel_tracks_are_refused() -> None:
    query = compile_query("SELECT a.v AS v, b.v AS w FROM a [ROWS 2], b [NOW] WHERE a.k = b.k", catalog())
    host = LocalHost(query, mjoin(query.graph.names), slots=2)
    with pytest.raises(PlanError, match="may stay in its count window forever"):
        host.move([0], 1, "parallel-track")


@pytest.mark.parametrize("sizes", [(2, 10), (10, 2)], ids=["became small", "became large"])
def test_a_table_may_cross_the_limit_before_a_restart_with_other_slots(sizes: tuple[int, int], tmp_path: Path) -> None:
    """Rows that were spread by a key are then spread by themselves, or the other way round."""
    query = compile_query(
        "SELECT a.k AS k, b.k AS l, t.w AS w FROM a [RANGE 50 SECONDS], b [RANGE 50 SECONDS], t "
        "WHERE a.v = t.v AND b.v > a.v",
        catalog(),
    )
    table = pa.table({"v": pa.array(range(5)), "w": pa.array(range(5))})
    found = []
    for slots, small, second in ((2, sizes[0], 0), (3, sizes[1], 10)):
        with patch.object(host_tables, "SMALL", small):
            host = LocalHost(
                query, mjoin(query.graph.names), slots=slots, checkpoint=str(tmp_path), tables={"t": table}
            )
        news = [(second + v, f"{second}", v) for v in range(5)]
        found += host.step({"a": rows(*news), "b": rows(*news)}).to_pylist()
    assert len(found) == 4 * 10
