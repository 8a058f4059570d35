"""Checkpoints from a shell: what one holds, faults that a restart would meet, and copies that a restart can use."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from anabranch.checkpoint.copying import copy
from anabranch.cli import main as cli
from anabranch.run.lease import Holder
from anabranch.run.local import LocalHost
from anabranch.run.manifest import Manifest
from anabranch.run.store import Store
from anabranch.settings.commands import USER_ERROR
from tests.support.scripted import read_rows
from tests.unit.run.test_store import CATALOG, files_in, host

ROWS = [["a 0 1 x", "a 1 2 y", "b 1 1 z"], ["b 2 2 w"]]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    running = host(folder, slots=2)
    for batch in ROWS:
        step(running, batch)
    return folder


def step(running: LocalHost, batch: list[str]) -> int:
    return int(running.step(read_rows(CATALOG, batch)).num_rows)


def test_inspect_shows_the_content_and_changes_nothing(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_in(checkpoint)
    assert cli.main(["checkpoint", "inspect", str(checkpoint), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["batch"], found["rows"], found["plans"]) == (1, 4, {"": "(a b)"})
    assert sum(found["slots"].values()) >= 64
    assert cli.main(["checkpoint", "inspect", str(checkpoint)]) == 0
    shown = capsys.readouterr().out
    assert "last batch   1" in shown
    assert "stream a     newest 1970-01-01T00:0" in shown
    assert "in use by    nobody" in shown
    assert files_in(checkpoint) == before


def test_a_process_that_was_killed_does_not_use_the_checkpoint(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = Holder.me(0)
    Store(str(checkpoint)).keep_lease(asdict(mine))
    assert cli.main(["checkpoint", "inspect", str(checkpoint)]) == 0
    assert f"in use by    process {mine.process}" in capsys.readouterr().out
    Store(str(checkpoint)).keep_lease(asdict(replace(mine, began="long ago")))
    assert cli.main(["checkpoint", "inspect", str(checkpoint)]) == 0
    assert "in use by    nobody" in capsys.readouterr().out


def test_a_whole_checkpoint_is_found_whole(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["checkpoint", "verify", str(checkpoint)]) == 0
    assert "the checkpoint is whole" in capsys.readouterr().out


def test_a_row_file_that_was_cut_short_is_named(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = max((checkpoint / "anabranch" / "rows").iterdir(), key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-20])
    assert cli.main(["checkpoint", "verify", str(checkpoint)]) == 1
    assert file.name in capsys.readouterr().out


def test_a_missing_row_file_and_a_damaged_manifest_are_named(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    next((checkpoint / "anabranch" / "rows").iterdir()).unlink()
    assert cli.main(["checkpoint", "verify", str(checkpoint)]) == 1
    assert "missing or damaged" in capsys.readouterr().out
    (checkpoint / "anabranch" / "manifests" / "000000001.json").write_text("{")
    assert cli.main(["checkpoint", "verify", str(checkpoint)]) == 1
    assert "not valid JSON" in capsys.readouterr().out


def test_parts_of_different_copies_are_reported(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoint / "spark" / "commits").mkdir(parents=True)
    (checkpoint / "spark" / "commits" / "7").write_text("v1\n{}")
    assert cli.main(["checkpoint", "verify", str(checkpoint)]) == 1
    assert "Spark's part has committed batch 7, ours batch 1" in capsys.readouterr().out


def test_a_copy_continues_after_the_last_batch_of_its_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copy"
    assert cli.main(["checkpoint", "copy", str(checkpoint), str(copied)]) == 0
    more = ["a 3 1 v", "b 3 2 u"]
    assert step(host(copied, slots=2), more) == step(host(checkpoint, slots=2), more) > 0


def test_a_copy_overwrites_nothing(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").write_text("mine")
    assert cli.main(["checkpoint", "copy", str(checkpoint), str(tmp_path / "copy")]) == USER_ERROR
    assert "is not empty" in capsys.readouterr().err
    assert files_in(tmp_path / "copy") == {"mine": b"mine"}


def test_a_checkpoint_in_use_is_copied_with_a_batch_that_it_has(checkpoint: Path, tmp_path: Path) -> None:
    """Spark may have planned and committed later batches before its logs are copied."""
    Store(str(checkpoint)).keep_lease(asdict(replace(Holder.me(0), owner="another")))
    for log, last in (("offsets", 5), ("commits", 4)):
        (checkpoint / "spark" / log).mkdir(parents=True)
        for batch in range(last):
            (checkpoint / "spark" / log / str(batch)).write_text("v1")
    assert cli.main(["checkpoint", "copy", str(checkpoint), str(tmp_path / "copy")]) == 0
    found = {
        log: sorted(path.name for path in (tmp_path / "copy/spark" / log).iterdir()) for log in ("offsets", "commits")
    }
    assert found == {"offsets": ["0", "1", "2"], "commits": ["0", "1"]}
    assert not (tmp_path / "copy/anabranch/lease.json").exists()


def test_a_copy_begins_again_if_the_query_removes_a_file(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest, read = Store.latest, []

    def older_first(store: Store, *, is_used: bool = True) -> Manifest | None:
        manifest = latest(store, is_used=is_used)
        read.append(manifest)
        if len(read) > 1 or manifest is None:
            return manifest
        return replace(manifest, files=(*manifest.files, replace(manifest.files[0], name="000000000-gone.arrow")))

    monkeypatch.setattr(Store, "latest", older_first)
    assert copy(str(checkpoint), str(tmp_path / "copy")) == len(list((tmp_path / "copy").rglob("*.*")))
    assert len(read) == 2


def test_another_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["inspect"], ["verify"]):
        assert cli.main(["checkpoint", *words, str(tmp_path)]) == USER_ERROR
        assert "is not a checkpoint of Anabranch" in capsys.readouterr().err


def test_a_repair_report_leads_back_to_the_batch_before(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The steps of the report, done as it says, give a checkpoint that repeats the lost batch."""
    commits = checkpoint / "spark" / "commits"
    commits.mkdir(parents=True)
    for batch in (0, 1):
        (commits / str(batch)).write_text("v1\n{}")
    (checkpoint / "anabranch" / "manifests" / "000000001.json").write_text("{")
    before = files_in(checkpoint)
    assert cli.main(["checkpoint", "repair-report", str(checkpoint)]) == 1
    report = capsys.readouterr().out
    assert files_in(checkpoint) == before
    assert "whole batches: 0" in report
    assert "Spark repeats batch 1" in report
    for line in report.splitlines():
        if " delete " in line:
            Path(line.split(" delete ")[1]).unlink()
    assert cli.main(["checkpoint", "verify", str(checkpoint)]) == 0
    assert not (commits / "1").exists()
    again = host(checkpoint, slots=2)
    assert again.batch == 1
    assert step(again, ROWS[1]) == 1


def test_a_repair_report_may_have_no_remedy(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (checkpoint / "anabranch" / "rows").iterdir():
        file.write_bytes(b"")
    assert cli.main(["checkpoint", "repair-report", str(checkpoint), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["whole"] == []
    assert any("no committed batch has all its files" in step for step in found["steps"])


def test_a_repair_report_of_an_intact_checkpoint_has_no_steps(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint / "anabranch" / "rows" / "000000009-0000-ab.arrow.0f.partial").write_bytes(b"half")
    assert cli.main(["checkpoint", "repair-report", str(checkpoint)]) == 0
    report = capsys.readouterr().out
    assert "no repair is needed" in report
    assert "1 unfinished files" in report
