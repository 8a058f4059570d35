"""Hot state: found when it is exactly what is needed, rebuilt in every other case, and never a reason to fail."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.errors import HostError, UnsafeFolder
from anabranch.plan.partitioning import choose_partitioning
from anabranch.plan.query_set import ALONE, alone
from anabranch.plan.slots import SlotPlan
from anabranch.plan.text import parse
from anabranch.run.clock import Clocks
from anabranch.run.commit import next_manifest
from anabranch.run.floors import relation_floors
from anabranch.run.hot import claim, forget, hot_folder, hot_root, keep_engine, open_engine
from anabranch.run.manifest import Manifest
from anabranch.run.rows import relation_batch
from anabranch.run.slot import SlotTask, advance, drain
from anabranch.run.store import Store
from anabranch.run.wire import wire_layout
from tests.support.scripted import answer_lines, read_rows, read_script

SCRIPT = read_script("stream a (k bigint, v string)\nstream b (k bigint, v string)")
QUERY = compile_query(
    "SELECT a.v AS x, b.v AS y FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k", SCRIPT.catalog
)
PARTITIONING = choose_partitioning(QUERY.graph, 1)
CLOCKS = Clocks.at_start(["a", "b"], 0)
STAMP = "slot-0.json"


@pytest.fixture(autouse=True)
def hot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANABRANCH_HOT_FOLDER", str(tmp_path / "hot"))
    return hot_root()


class Worker:
    """What a worker process does with the one slot of a query, step by step."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(str(folder))
        self.identity = self.store.open(alone(QUERY))
        claim(self.identity, str(folder))
        self.manifest: Manifest | None = None
        self.task = SlotTask(
            queries=alone(QUERY),
            plans={ALONE: (SlotPlan(parse("(a b)")),)},
            partitioning=PARTITIONING,
            batch=-1,
            attempt="none",
            after=None,
            floors=relation_floors(alone(QUERY), CLOCKS),
        )

    def step(self, *lines: str, plan: str = "(a b)", keep: bool = True) -> tuple[tuple[str, ...], bool]:
        """The answer, and whether the state was found hot."""
        after, files, partitionings = None, self.task.files, self.task.partitionings
        if self.manifest is not None:
            after, files, partitionings = self.manifest.attempt, self.manifest.files, self.manifest.partitionings
        batch = self.task.batch + 1
        self.task = replace(
            self.task,
            plans={ALONE: (SlotPlan(parse(plan)),)},
            batch=batch,
            attempt=f"attempt{batch}",
            after=after,
            files=files,
            partitionings=partitionings,
        )
        layout = wire_layout(alone(QUERY), PARTITIONING)
        rows = read_rows(SCRIPT.catalog, lines)
        arrived = {name: relation_batch(QUERY.graph.relation(name), layout, table) for name, table in rows.items()}
        opened = open_engine(self.task, 0, self.identity, self.store)
        results, report = drain(advance(opened.engine, self.task, 0, arrived, self.store))
        if keep:
            keep_engine(opened, self.task, 0, self.identity)
        self.manifest = next_manifest(self.task, {0: report}, CLOCKS)
        return answer_lines(
            pa.Table.from_batches([batch for _, batch in results], QUERY.schema.to_arrow())
        ), opened.was_hot

    @property
    def stamp(self) -> Path:
        return hot_folder(self.identity) / STAMP


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANABRANCH_HOT_FOLDER", str(tmp_path / "file"))
    with pytest.raises(HostError, match="hot state cannot be kept"):
        claim("identity", str(tmp_path))


def test_the_state_is_found_again(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    assert worker.step("a 1 1 x") == ((), False)
    assert worker.step("b 2 1 p") == (("x p",), True)
    assert worker.step("a 3 1 y") == (("y p",), True)


def test_a_step_that_died_leaves_nothing_to_find(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.step("a 1 1 x")
    worker.step("b 2 1 p", keep=False)
    assert not worker.stamp.exists()
    assert worker.step("a 3 1 y") == (("y p",), False)


def test_another_plan_is_migrated_in_place(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.step("a 1 1 x")
    assert worker.step("b 2 1 p", plan="(b a)") == (("x p",), True)
    assert worker.step("b 3 1 q", plan="(b a)") == (("x q",), True)


def test_another_attempts_state_is_not_taken(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.step("a 1 1 x")
    stamp = json.loads(worker.stamp.read_text())
    stamp["after"] = "an attempt that lost"
    worker.stamp.write_text(json.dumps(stamp))
    assert worker.step("b 2 1 p") == (("x p",), False)


@pytest.mark.parametrize("content", ["", "{", '{"after": [', "[]", "{}", "3", '{"after": null}'])
def test_a_damaged_stamp_is_no_stamp(tmp_path: Path, content: str) -> None:
    worker = Worker(tmp_path)
    worker.step("a 1 1 x")
    worker.stamp.write_text(content)
    assert worker.step("b 2 1 p") == (("x p",), False)


@pytest.mark.parametrize("damage", ["gone", "short", "layout"])
def test_damaged_arrays_are_rebuilt(tmp_path: Path, damage: str) -> None:
    worker = Worker(tmp_path)
    worker.step("a 1 1 x")
    stamp = json.loads(worker.stamp.read_text())
    arrays = sorted((worker.stamp.parent / stamp["arrays"]).iterdir())
    match damage:
        case "gone":
            arrays[0].unlink()
        case "short":
            for array in arrays:
                array.write_bytes(array.read_bytes()[:64])
        case "layout":
            del stamp["layout"]["bases"]["a"]
            worker.stamp.write_text(json.dumps(stamp))
    assert worker.step("b 2 1 p") == (("x p",), False)


def test_the_first_slot_to_build_state_removes_old_state_of_its_machine(tmp_path: Path, hot: Path) -> None:
    gone, unused, used, other = (Worker(tmp_path / name) for name in ("gone", "unused", "used", "other"))
    for worker in (gone, unused, used):
        worker.step("a 1 1 x")
    (hot / "nobody's").mkdir()
    (tmp_path / "gone" / "anabranch" / "metadata.json").unlink()
    for folder in (unused.stamp.parent, hot / "nobody's"):
        os.utime(folder, (0, 0))
    forget(other.identity)  # as on a machine that the driver has not been on
    other.step("a 1 1 x")
    assert {folder.name for folder in hot.iterdir()} == {used.identity, other.identity}
    assert used.step("b 2 1 p") == (("x p",), True)
    assert unused.step("b 2 1 p") == (("x p",), False)


def test_a_slot_that_is_built_again_does_not_sweep_again(tmp_path: Path, hot: Path) -> None:
    worker = Worker(tmp_path / "rebuilt")
    worker.step("a 1 1 x", keep=False)
    (hot / "left").mkdir()
    os.utime(hot / "left", (0, 0))
    forget(worker.identity)
    assert worker.step("b 2 1 p") == (("x p",), False)
    assert {folder.name for folder in hot.iterdir()} == {worker.identity, "left"}
    # A query that starts sweeps whatever was done before.
    Worker(tmp_path / "rebuilt")
    assert {folder.name for folder in hot.iterdir()} == {worker.identity}


def test_state_that_is_swept_away_during_a_step_is_built_again(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.step("a 1 1 x")
    opened = open_engine(worker.task, 0, worker.identity, worker.store)
    forget(worker.identity)
    keep_engine(opened, worker.task, 0, worker.identity)
    assert worker.step("b 2 1 p") == (("x p",), False)


def test_nothing_is_read_from_a_folder_that_is_not_ours(tmp_path: Path, hot: Path) -> None:
    worker = Worker(tmp_path / "checkpoint")
    worker.step("a 1 1 x")
    hot.rename(tmp_path / "theirs")
    hot.symlink_to(tmp_path / "theirs")
    with pytest.raises(UnsafeFolder):
        worker.step("b 2 1 p")


def test_hot_state_of_checkpoints_that_are_gone_is_removed(tmp_path: Path, hot: Path) -> None:
    gone, kept = Worker(tmp_path / "gone"), Worker(tmp_path / "kept")
    gone.step("a 1 1 x")
    (tmp_path / "gone" / "anabranch" / "metadata.json").unlink()
    (hot / "damaged").mkdir()
    (hot / "damaged" / "owner.json").write_text("{")
    claim(kept.identity, str(tmp_path / "kept"))
    assert {folder.name for folder in hot.iterdir()} == {kept.identity, "damaged"}
    forget(kept.identity)
    assert {folder.name for folder in hot.iterdir()} == {"damaged"}


def test_hot_state_without_an_owner_is_removed(tmp_path: Path, hot: Path) -> None:
    """A worker that outlived its query filled the folder while it was being removed; that lay there for a day."""
    kept = Worker(tmp_path / "kept")
    for name, age in {"left": 3600, "new": 0, f"{kept.identity}.x.gone": 0}.items():
        (hot / name).mkdir()
        now = hot_folder(kept.identity).stat().st_mtime
        os.utime(hot / name, (now - age, now - age))
    claim(kept.identity, str(tmp_path / "kept"))
    assert {folder.name for folder in hot.iterdir()} == {kept.identity, "new"}


def test_hot_state_under_removal_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(tmp_path)
    worker.step("a 1 1 x")
    real, seen = shutil.rmtree, []

    def rmtree(folder: Path, ignore_errors: bool) -> None:
        seen.append(hot_folder(worker.identity).exists())
        real(folder, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    forget(worker.identity)
    assert seen == [False]
    assert not list(hot_root().iterdir())
