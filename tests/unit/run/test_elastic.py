"""A query whose number of slots follows its load, in process: the loads are given, so no clock decides."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from anabranch.adapt.balancing import Balance
from anabranch.adapt.facts import Interval
from anabranch.cql import compile_query
from anabranch.plan.heavy import HeavyKey
from anabranch.plan.slots import SlotRange
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from anabranch.run.store import Store
from tests.support.loads import given_loads, per_row
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.scripted import read_rows, read_script

CATALOG = read_script("\n".join(f"stream {name} (k bigint, v string)" for name in "ab")).catalog
QUERY = compile_query(
    "SELECT a.v AS x, b.v AS y FROM a [RANGE 3 SECONDS], b [RANGE 3 SECONDS] WHERE a.k = b.k", CATALOG
)
QUICK = Balance("auto", ratio=1e9, remember=2, cool_down=Interval(batches=1))
"""Nothing but the load of all slots together makes it move."""


class Run:
    """A host that is fed, and the rows and results so far."""

    def __init__(self, **settings: Any) -> None:
        self._settings = {"slots": SlotRange(1, 4), "balance": QUICK, **settings}
        self.rows: dict[str, list[pa.Table]] = {"a": [], "b": []}
        self.results: list[pa.Table] = []
        self.restart()

    def restart(self) -> None:
        self.host = LocalHost(QUERY, parse("(a b)"), **self._settings)

    def feed(self, rows: int, batches: int = 9) -> int:
        """Batches of a second with so many rows of each stream; returns how many slots are in use after them."""
        for _ in range(batches):
            second = len(self.results) + 1
            batch = read_rows(CATALOG, [f"{stream} {second} {key} {second}" for stream in "ab" for key in range(rows)])
            for stream, table in batch.items():
                self.rows[stream].append(table)
            self.results.append(self.host.step(batch))
        return len(self.host.steering.table.now.working)

    def check(self) -> None:
        rows = {stream: pa.concat_tables(tables) for stream, tables in self.rows.items()}
        assert not describe_difference(batch_answer(QUERY, rows), rows_as_multiset(pa.concat_tables(self.results)))


def test_slots_follow_the_load_up_and_down_and_the_answer_is_exact(tmp_path: Path) -> None:
    with given_loads(per_row(0.01)):
        run = Run(checkpoint=str(tmp_path))
        assert run.feed(20) == 1  # 0.4 of a core
        assert run.feed(110) == 4  # 2.2 cores
        # A restart goes on with the slots that it finds.
        run.restart()
        assert len(run.host.steering.table.now.working) == 4
        assert run.feed(50) == 4  # one core: with three slots each would be busy for a third of the time
        assert run.feed(8) == 1
    run.check()
    history = Store(str(tmp_path)).history()
    decided = [record for record in history if record["kind"] == "balance"]
    triggers = [record["trigger"].split(" busy for ")[0] for record in decided]
    assert [trigger for trigger, _ in groupby(triggers)] == ["an average slot is", "with one slot less, each would be"]
    assert {record["by"] for record in history if record["kind"] == "move"} == {"balance"}


def test_tasks_that_can_run_at_once_limit_the_slots() -> None:
    with given_loads(per_row(0.01), cores=2):
        run = Run()
        assert run.feed(110) == 2
    run.check()


def test_a_query_scales_by_itself_in_parts(tmp_path: Path) -> None:
    with given_loads(per_row(0.01)):
        run = Run(checkpoint=str(tmp_path), balance=replace(QUICK, rows=60))
        assert run.feed(110, batches=20) == 4
    run.check()
    moved = [record["rows"] for record in run.host.history if record["kind"] == "move"]
    assert len(moved) > 3
    # The rows are counted before the first part; while a batch is added and one leaves, groups grow a little.
    assert max(moved) <= 60 * 1.5


def test_rows_of_a_batch_that_is_counted_go_by_the_table_that_it_has(tmp_path: Path) -> None:
    """Found by drawn schedules: a batch whose groups were counted, before keys became heavy in parts, was cut by the
    cells of the table to come; rows of those keys went to no slot."""
    run = Run(slots=2, balance=Balance("manual"), checkpoint=str(tmp_path))
    run.feed(6, batches=2)
    grid = run.host.partitioning
    heavy = tuple(HeavyKey("k0", key, (("a", 1), ("b", 1)), 0.0) for key in range(6))
    run.host.spread(replace(grid, heavy=heavy, table=(*grid.table, 0, 1, 0, 1, 0, 1)), most_rows=1)
    run.feed(6, batches=1)
    assert not run.host.steering.table.now.heavy, "rows are counted first"
    run.feed(6, batches=2)
    assert run.host.steering.table.now.heavy == heavy
    run.check()
