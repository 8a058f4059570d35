"""The checkpoint on disk: committed or not, one's own or refused by name, and never overwritten when it is not."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from anabranch.adapt.records import Refusal
from anabranch.cql import compile_query
from anabranch.errors import CheckpointError, CorruptCheckpoint, ForeignCheckpoint, StorageFull
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.plan.partitioning import choose_partitioning
from anabranch.plan.physical import mjoin
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, alone, together
from anabranch.run.clock import Clocks, StreamClock
from anabranch.run.local import LocalHost
from anabranch.run.manifest import Manifest, RowFile
from anabranch.run.store import Store, rows_name
from anabranch.stats.intake import Intake
from anabranch.stats.report import SlotReport
from tests.support.scripted import answer_lines, read_rows

CATALOG = Catalog()
for _name in ("a", "b"):
    CATALOG.register(StreamDeclaration(_name, parse_schema("ts timestamp, k bigint, v string"), "ts"))


def query(seconds: int = 10) -> Query:
    text = f"SELECT a.v AS x, b.v AS y FROM a [RANGE {seconds} SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k"
    return compile_query(text, CATALOG)


QUERY = query()
PARTITIONING = choose_partitioning(QUERY.graph, 2)
TABLE = pa.table({"_relation": pa.array([0], pa.int8()), "_time": [5]})
REPORT = SlotReport(intake=Intake(late={"a": 2}, newest={"a": 5}))


def name_of(batch: int) -> str:
    return rows_name(batch, 0, "attempt")


def manifest(batch: int, *written_in: int) -> Manifest:
    """A manifest that lists the rows that some batches left."""
    files = tuple(RowFile(name_of(number), number, 0, 1, {"a": 5}, 0) for number in written_in)
    clocks = Clocks({"a": StreamClock(5, 5, 1), "b": StreamClock()})
    return Manifest(batch, "attempt", clocks, files, (PARTITIONING,), {ALONE: "(a b)"})


def opened(folder: Path) -> Store:
    store = Store(str(folder))
    store.open(alone(QUERY))
    return store


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def host(folder: Path, of: Query = QUERY, slots: int = 1) -> LocalHost:
    return LocalHost(of, mjoin(("a", "b")), slots=slots, checkpoint=str(folder))


def test_a_checkpoint_keeps_its_identity(tmp_path: Path) -> None:
    identity = Store(str(tmp_path)).open(alone(QUERY))
    assert Store(str(tmp_path)).open(alone(QUERY)) == identity
    assert Store(str(tmp_path / "other")).open(alone(QUERY)) != identity


@pytest.mark.parametrize("name", ["plain", "with blank", "a%20b", "é:1#?[x]"])
def test_a_folder_is_the_same_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Spark decodes nothing in a path; `file:/…`, which it prints itself, once led to a folder below this one."""
    identity = Store(str(tmp_path / name)).open(alone(QUERY))
    monkeypatch.chdir(tmp_path)
    for location in (name, f"./{name}", f"file:{tmp_path}/{name}", f"file://{tmp_path}/{name}"):
        store = Store(location)
        assert (store.open(alone(QUERY)), store.location) == (identity, str(tmp_path / name))
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.latest() is None
    kept = manifest(3, 2, 3)
    for batch in (2, 3):
        store.write_rows(name_of(batch), TABLE, SlotReport())
    store.commit(kept)
    assert store.latest() == kept
    assert Store(str(tmp_path)).manifest(3) == kept
    assert store.manifest(4) is None


def test_a_batch_is_committed_only_under_its_final_name(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.commit(manifest(1))
    folder = tmp_path / "anabranch" / "manifests"
    (folder / "000000002.json.0123.partial").write_text((folder / "000000001.json").read_text())
    latest = store.latest()
    assert latest is not None
    assert latest.batch == 1


def test_a_manifest_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    store.commit(manifest(1))
    before = files_in(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    class NoSpace:
        open_output_stream = staticmethod(full)

    monkeypatch.setattr(store, "files", NoSpace())
    with pytest.raises(StorageFull, match="no space left") as caught:
        store.commit(manifest(2))
    assert "will be replayed" in caught.value.detail
    with pytest.raises(StorageFull):
        store.write_rows(name_of(2), TABLE, SlotReport())
    assert files_in(tmp_path) == before


def test_rows_carry_their_report(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write_rows(name_of(7), TABLE, REPORT)
    assert store.read_rows(name_of(7)).replace_schema_metadata(None).equals(TABLE)
    assert store.read_report(name_of(7)) == REPORT
    store.write_rows(name_of(7), TABLE.slice(0, 0), SlotReport())
    assert store.read_rows(name_of(7)).num_rows == 0


def test_collecting_keeps_what_two_manifests_need(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for batch in range(4):
        store.write_rows(name_of(batch), TABLE, SlotReport())
    store.write_rows(name_of(9), TABLE, SlotReport())
    rows, manifests = tmp_path / "anabranch" / "rows", tmp_path / "anabranch" / "manifests"
    (rows / f"{name_of(2)}.0123.partial").write_text("half a file")
    (manifests / "000000003.json.0123.partial").write_text("half a manifest")
    (rows / "notes.txt").write_text("not ours")
    (manifests / "notes.json").write_text("{}")
    before, after = manifest(2, 0, 2), manifest(3, 2, 3)
    for one in (manifest(1, 1), before, after):
        store.commit(one)
    store.collect((before, after))
    assert {p.name for p in rows.iterdir()} == {*(name_of(batch) for batch in (0, 2, 3, 9)), "notes.txt"}
    assert {p.name for p in manifests.iterdir()} == {"000000002.json", "000000003.json", "notes.json"}
    assert store.latest() == after


KILLED = """
import os, sys
import pyarrow as pa
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.cql import compile_query
from anabranch.lang.ddl import parse_schema
from anabranch.run.clock import Clocks
from anabranch.run.manifest import Manifest
from anabranch.run.store import Store, rows_name
from anabranch.plan.query_set import alone
from anabranch.stats.report import SlotReport
from tests.support.faults import MortalFiles, die_at

os.setsid()
location, text, moment = sys.argv[1:]
catalog = Catalog()
for name in ("a", "b"):
    catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint, v string"), "ts"))
query = compile_query(text, catalog)
store = Store(location)

def die_at_the_next_rename():
    store.files = MortalFiles()
    die_at(store.files, "move", after=False)

if moment == "metadata":
    die_at_the_next_rename()
store.open(alone(query))
if moment == "rows":
    die_at_the_next_rename()
store.write_rows(rows_name(0, 0, "attempt"), pa.table({"_time": [5]}), SlotReport())
die_at_the_next_rename()
store.commit(Manifest(0, "attempt", Clocks.at_start(["a", "b"], 0), (), ()))
"""
"""A driver that is killed before what it wrote has its name: the metadata, the rows of a slot, or a manifest."""


def test_a_history_keeps_its_newest_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.run.store.MOST_HISTORY", 2_000)
    store = Store(str(tmp_path))
    store.open(alone(QUERY))
    sizes, kept = [], []
    for batch in range(300):
        store.note(Refusal(batch, "no room"))
        sizes.append((tmp_path / "anabranch" / "history.jsonl").stat().st_size)
        kept = [record["batch"] for record in store.history()]
        assert kept == list(range(kept[0], batch + 1))
    assert min(sizes[100:]) > 500
    assert max(sizes) <= 2_000
    assert [path.name for path in (tmp_path / "anabranch").iterdir() if path.name.endswith(".partial")] == []


def test_unfinished_files_of_a_killed_driver_are_removed_at_the_next_start(tmp_path: Path) -> None:
    for moment, left in (("metadata", ""), ("rows", "rows"), ("manifest", "manifests")):
        done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), QUERY.text, moment], check=False)
        assert done.returncode == -signal.SIGKILL
        (half,) = (tmp_path / "anabranch" / left).glob("*.partial")
        kept = half.with_name("notes.partial")
        kept.write_text("not ours")
        opened(tmp_path)
        assert not half.exists()
        assert kept.exists()
        kept.unlink()
    assert opened(tmp_path).latest() is None


# --- refusals --------------------------------------------------------------------------------------------------------


def metadata_of(folder: Path) -> Path:
    return folder / "anabranch" / "metadata.json"


def test_a_checkpoint_of_another_query_is_refused_and_left_alone(tmp_path: Path) -> None:
    host(tmp_path).step(read_rows(CATALOG, ["a 1 1 x"]))
    before = files_in(tmp_path)
    with pytest.raises(ForeignCheckpoint, match="belongs to another query") as caught:
        host(tmp_path, query(11))
    assert QUERY.text in caught.value.detail
    assert "folder of its own" in caught.value.hint
    assert files_in(tmp_path) == before


def test_a_checkpoint_of_sparks_own_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1")
    before = files_in(tmp_path)
    with pytest.raises(ForeignCheckpoint, match="belongs to a query of Spark's own"):
        host(tmp_path)
    assert files_in(tmp_path) == before


def test_a_checkpoint_keeps_to_its_late_filters(tmp_path: Path) -> None:
    text = f"{QUERY.text} AND a.k < 7"
    late = compile_query(text, CATALOG, late_filters=["a"])
    host(tmp_path, late).step(read_rows(CATALOG, ["a 1 1 x"]))
    before = files_in(tmp_path)
    with pytest.raises(ForeignCheckpoint, match=r"the deferred filters .*, not with no deferred filters") as caught:
        host(tmp_path, compile_query(text, CATALOG))
    assert "late_filters: ['a.k < 7']" in caught.value.hint
    assert files_in(tmp_path) == before
    host(tmp_path, late)


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    found = json.loads(metadata_of(tmp_path).read_text())
    metadata_of(tmp_path).write_text(json.dumps({**found, "version": 999}))
    with pytest.raises(ForeignCheckpoint, match="format version 999"):
        opened(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"version": 1}', "\x00\xff"])
def test_damaged_metadata_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    opened(tmp_path)
    metadata_of(tmp_path).write_text(content)
    with pytest.raises(CorruptCheckpoint) as caught:
        opened(tmp_path)
    assert "restore it from a copy" in caught.value.hint
    assert metadata_of(tmp_path).read_text() == content


def test_state_without_metadata_is_refused(tmp_path: Path) -> None:
    host(tmp_path).step(read_rows(CATALOG, ["a 1 1 x"]))
    metadata_of(tmp_path).unlink()
    with pytest.raises(CorruptCheckpoint, match="state but no metadata"):
        host(tmp_path)
    assert not metadata_of(tmp_path).exists()


DAMAGES: dict[str, Any] = {
    "no clocks": lambda value: value.pop("clocks"),
    "no files": lambda value: value.pop("files"),
    "clocks are a list": lambda value: value.update(clocks=[]),
    "a clock is a number": lambda value: value["clocks"].update(a=3),
    "a file has an unknown entry": lambda value: value["files"][0].update(colour="red"),
    "files are a number": lambda value: value.update(files=3),
    "the slot map is short": lambda value: value["partitionings"][0].update(table=[0]),
    "no partitioning": lambda value: value.update(partitionings=None),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_manifest_is_refused(tmp_path: Path, damage: str) -> None:
    host(tmp_path).step(read_rows(CATALOG, ["a 1 1 x"]))
    (path,) = (tmp_path / "anabranch" / "manifests").iterdir()
    value = json.loads(path.read_text())
    DAMAGES[damage](value)
    path.write_text(json.dumps(value))
    with pytest.raises(CorruptCheckpoint, match="manifest of batch 0") as caught:
        host(tmp_path)
    assert caught.value.hint


def test_a_manifest_cut_short_is_refused(tmp_path: Path) -> None:
    host(tmp_path).step(read_rows(CATALOG, ["a 1 1 x"]))
    (path,) = (tmp_path / "anabranch" / "manifests").iterdir()
    path.write_text(path.read_text()[:20])
    with pytest.raises(CorruptCheckpoint, match="not valid JSON"):
        host(tmp_path)


@pytest.mark.parametrize("kept", [0, 10, 200])
def test_a_row_file_cut_short_is_refused(tmp_path: Path, kept: int) -> None:
    host(tmp_path).step(read_rows(CATALOG, ["a 1 1 x"]))
    (path,) = (tmp_path / "anabranch" / "rows").iterdir()
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CorruptCheckpoint, match=f"rows '{path.name}'") as caught:
        host(tmp_path)
    assert "restore the file" in caught.value.hint


def test_a_missing_row_file_is_refused(tmp_path: Path) -> None:
    host(tmp_path).step(read_rows(CATALOG, ["a 1 1 x"]))
    next((tmp_path / "anabranch" / "rows").iterdir()).unlink()
    with pytest.raises(CorruptCheckpoint, match="missing or damaged"):
        host(tmp_path)


def test_a_location_that_is_none_is_refused() -> None:
    with pytest.raises(CheckpointError, match="nowhere://x") as caught:
        Store("nowhere://x")
    assert "absolute path" in caught.value.hint


@pytest.mark.parametrize("below", ["", "inside"])
def test_a_location_that_is_a_file_is_refused_and_left_alone(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("of somebody")
    with pytest.raises(CheckpointError, match="cannot write") as caught:
        host(file / below)
    assert "Not a directory" in caught.value.detail
    assert "permissions" in caught.value.hint
    assert file.read_text() == "of somebody"


def test_a_location_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Store, "read_json", refuse)
    with pytest.raises(CheckpointError, match="cannot") as caught:
        host(tmp_path)
    assert "Permission denied" in caught.value.detail


# --- commit and replay -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 3])
def test_a_batch_that_was_not_committed_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    first = host(tmp_path)
    first.step(read_rows(CATALOG, ["a 1 1 x", "b 1 1 p"]))
    batch = read_rows(CATALOG, ["a 2 1 y", "b 3 1 q"])

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "commit", crash)
        with pytest.raises(KeyboardInterrupt):
            first.step(batch)
    again = host(tmp_path, slots=slots)
    assert again.batch == 1
    assert answer_lines(again.step(batch)) == ("x q", "y p", "y q")
    assert again.batch == 2


def test_a_crash_after_the_commit_does_not_do_the_batch_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = host(tmp_path)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "collect", crash)
        with pytest.raises(KeyboardInterrupt):
            first.step(read_rows(CATALOG, ["a 1 1 x"]))
    again = host(tmp_path)
    assert again.batch == 1
    assert answer_lines(again.step(read_rows(CATALOG, ["b 1 1 p"]))) == ("x p",)


def test_a_checkpoint_of_a_set_from_before_its_late_filters_were_written_down_is_opened(tmp_path: Path) -> None:
    text = f"{QUERY.text} AND a.k < 7"
    queries = together({"q": compile_query(text, CATALOG, late_filters=["a"])})
    assert queries.late_filters == ("q: a.k < 7",)
    Store(str(tmp_path)).open(queries)
    found = json.loads(metadata_of(tmp_path).read_text())
    assert found["late_filters"] == ["q: a.k < 7"]
    metadata_of(tmp_path).write_text(json.dumps({**found, "late_filters": []}))
    Store(str(tmp_path)).open(queries)
    with pytest.raises(ForeignCheckpoint, match="another query"):
        Store(str(tmp_path)).open(together({"q": compile_query(text, CATALOG)}))
