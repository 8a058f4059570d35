"""Manifests and compaction: dead files go, many small ones become one, and restarts are exact throughout."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.plan.partitioning import choose_partitioning
from anabranch.plan.physical import mjoin
from anabranch.plan.query import Query
from anabranch.plan.query_set import alone
from anabranch.run import commit
from anabranch.run.commit import COMPACT_FILES, intake_of, is_alive, slots_to_compact
from anabranch.run.floors import newest_by_stream
from anabranch.run.local import LocalHost
from anabranch.run.manifest import RowFile
from anabranch.run.store import Store
from anabranch.stats.intake import Intake
from anabranch.stats.report import SlotReport
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.scripted import read_rows, read_script

CATALOG = read_script("stream a (k bigint, v bigint)\nstream b (k bigint, v bigint)").catalog


def query(seconds: int, *, keyed: bool = True) -> Query:
    where = "a.k = b.k" if keyed else "a.v < b.v AND a.k <> b.k"
    text = f"SELECT a.v AS x, b.v AS y FROM a [RANGE {seconds} SECONDS], b [RANGE {seconds} SECONDS] WHERE {where}"
    return compile_query(text, CATALOG)


def row_files(folder: Path) -> list[Path]:
    return list((folder / "anabranch" / "rows").iterdir())


def run(of: Query, folder: Path, batches: int, slots: tuple[int, ...]) -> tuple[int, str]:
    """The most row files there ever were, and how the answer differs from the batch answer, restarted now and then."""
    host = LocalHost(of, mjoin(("a", "b")), slots=slots[0], checkpoint=str(folder))
    results, given, most = [], [], 0
    for i in range(batches):
        if i % 70 == 69:
            host = LocalHost(of, mjoin(("b", "a")), slots=slots[i // 70 % len(slots)], checkpoint=str(folder))
        rows = read_rows(CATALOG, [f"a {i} {i % 5} {i}", f"b {i} {i % 4} {i}"])
        given.append(rows)
        results.append(host.step(rows))
        most = max(most, len(row_files(folder)))
    whole = {name: pa.concat_tables([rows[name] for rows in given]) for name in ("a", "b")}
    return most, describe_difference(batch_answer(of, whole), rows_as_multiset(pa.concat_tables(results)))


def test_hundreds_of_tiny_batches_leave_few_files(tmp_path: Path) -> None:
    most, difference = run(query(1000), tmp_path, 220, (1,))
    assert not difference
    # Two manifests' worth, of a slot that is compacted before its younger files outgrow the oldest.
    assert most <= 4 * COMPACT_FILES


@pytest.mark.parametrize("keyed", [True, False])
def test_files_whose_rows_have_all_left_go(tmp_path: Path, keyed: bool) -> None:
    most, difference = run(query(6, keyed=keyed), tmp_path, 75, (2, 3, 1))
    assert not difference
    assert most <= 3 * 12


def test_tables_are_kept_as_long_as_files_from_before_them(tmp_path: Path) -> None:
    def slots_of_tables() -> list[int]:
        manifest = Store(str(tmp_path)).latest()
        assert manifest is not None
        assert all(0 <= file.partitioning < len(manifest.partitionings) for file in manifest.files)
        return [partitioning.slots for partitioning in manifest.partitionings]

    of = query(10)
    rows = [f"a 1 {key} 1" for key in range(20)]
    LocalHost(of, mjoin(("a", "b")), slots=4, checkpoint=str(tmp_path)).step(read_rows(CATALOG, rows))
    host = LocalHost(of, mjoin(("a", "b")), slots=3, checkpoint=str(tmp_path))
    host.step(read_rows(CATALOG, ["b 5 0 0"]))
    assert slots_of_tables() == [4, 3]
    host.step(read_rows(CATALOG, ["a 12 0 0", "b 12 0 0"]))
    host.step(read_rows(CATALOG, ["a 30 0 0", "b 30 0 0"]))
    host.step({})
    assert slots_of_tables() == [3]


def test_a_slot_that_is_given_up_leaves_no_files(tmp_path: Path) -> None:
    host = LocalHost(query(100), mjoin(("a", "b")), slots=2, checkpoint=str(tmp_path))
    host.step(read_rows(CATALOG, [f"a 1 {key} 1" for key in range(20)]))
    host.spread(host.partitioning.moved(range(host.partitioning.groups), 0))
    host.step({})
    manifest = Store(str(tmp_path)).latest()
    assert manifest is not None
    assert {file.slot for file in manifest.files} == {0}
    assert sum(file.rows for file in manifest.files) == 20


def test_a_slot_is_compacted_when_its_younger_files_weigh_half_of_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "COMPACT_FILES", 3)
    monkeypatch.setattr(commit, "COMPACT_FILES_ALWAYS", 6)
    of = query(10_000)
    host = LocalHost(of, mjoin(("a", "b")), checkpoint=str(tmp_path))
    host.step(read_rows(CATALOG, [f"a 0 0 {i}" for i in range(100)]))
    counts = []
    for i in range(8):
        host.step(read_rows(CATALOG, [f"a {i + 1} 0 0"]))
        manifest = Store(str(tmp_path)).latest()
        assert manifest is not None
        counts.append(len(manifest.files))
    # One heavy file and five light ones; the sixth file is too many whatever the weight, and the next batch compacts.
    assert counts == [2, 3, 4, 5, 6, 1, 2, 3]


def test_nothing_is_compacted_before_there_is_anything() -> None:
    assert slots_to_compact(None, choose_partitioning(query(1).graph, 2)) == frozenset()


def test_a_file_lives_as_long_as_its_newest_row() -> None:
    of = alone(query(10))
    file = RowFile("f", 0, 0, 2, {"a": 5_000_000}, 0)
    assert is_alive(of, file, {"a": 15_000_000, "b": 0})
    assert not is_alive(of, file, {"a": 15_000_001, "b": 0})
    assert not is_alive(of, RowFile("f", 0, 0, 0, {}, 0), {"a": 0, "b": 0})


def test_the_newest_time_of_a_stream_is_that_of_all_its_relations_and_slots() -> None:
    text = "SELECT x.v AS v FROM a [NOW] AS x, a [NOW] AS y, b [NOW] AS z WHERE x.k = y.k AND y.k = z.k"
    reports = {
        0: SlotReport(intake=Intake(newest={"x": 4})),
        1: SlotReport(intake=Intake(newest={"y": 9, "z": 3})),
        2: SlotReport(intake=Intake(newest={"z": 4})),
    }
    assert newest_by_stream(alone(compile_query(text, CATALOG)), intake_of(reports)) == {"a": 9, "b": 4}
