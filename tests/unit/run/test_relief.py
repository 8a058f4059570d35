"""A slot that gives partition groups away is relieved of their memory and work at once, with either strategy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.scripted import read_script
from tests.support.workers import WorkerHost

WINDOW = 20
ROWS = 60
KEYS = 400
CATALOG = read_script(
    "\n".join(f"stream {name} (k bigint, v string, u string, w array<bigint>)" for name in "abc")
).catalog
QUERY = compile_query(
    f"SELECT a.v, b.v AS x, b.u, c.w FROM a [RANGE {WINDOW} SECONDS], b [RANGE {WINDOW} SECONDS], "
    f"c [RANGE {WINDOW} SECONDS] WHERE a.k = b.k AND b.k = c.k",
    CATALOG,
)


def second(number: int) -> dict[str, pa.Table]:
    """The rows of all streams in one second; texts and lists are NULL now and then."""
    drawn, tables = np.random.default_rng(number), {}
    for name in CATALOG.streams:
        keys = drawn.integers(0, KEYS, ROWS)
        tables[name] = pa.table(
            {
                "ts": pa.array(
                    np.sort(drawn.integers(0, 1_000_000, ROWS)) + number * 1_000_000, pa.timestamp("us", "UTC")
                ),
                "k": keys,
                "v": [None if key % 7 == 0 else f"{name}{key}" * (key % 4) for key in keys],
                "u": [f"{key}" for key in keys],
                "w": [None if key % 5 == 0 else [int(key)] * (key % 3) for key in keys],
            }
        )
    return tables


def held(host: LocalHost) -> list[int]:
    return [host.reports[slot].statistics.state_bytes for slot in range(2)]


@pytest.mark.parametrize("strategy", ["moving-state", "parallel-track"])
@pytest.mark.parametrize("plan", ["((a b) c)"])
def test_the_sender_gives_back_what_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str, strategy: str
) -> None:
    monkeypatch.setenv("ANABRANCH_HOT_FOLDER", str(tmp_path / "hot"))
    host = WorkerHost(QUERY, parse(plan), slots=2, checkpoint=str(tmp_path / "kept"))
    groups = host.partitioning.groups
    host.move(range(groups * 8 // 10), 0)
    host.step({})
    fed: list[dict[str, pa.Table]] = []
    results: list[pa.Table] = []

    def run(batches: int) -> None:
        for _ in range(batches):
            fed.append(second(len(fed)))
            results.append(host.step(fed[-1]))

    run(WINDOW + 5)
    before = held(host)
    host.move(range(groups * 5 // 10, groups * 8 // 10), 1, strategy)
    run(1 if strategy == "moving-state" else WINDOW + 3)
    assert host.steering.table.now.mark is None
    run(2)
    after = held(host)
    assert after[0] <= 0.75 * before[0]
    assert sum(after) <= 1.1 * sum(before)
    assert not host.engines[0].has_leftovers
    assert all(report.was_hot for report in host.reports.values())
    run(5)
    rows = {name: pa.concat_tables([each[name] for each in fed]) for name in CATALOG.streams}
    assert not describe_difference(batch_answer(QUERY, rows), rows_as_multiset(pa.concat_tables(results)))
