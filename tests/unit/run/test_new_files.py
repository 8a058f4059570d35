"""Folders are watched: each new file is offered until it is taken, in the order of arrival."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anabranch.errors import CatalogError, CorruptCheckpoint
from anabranch.run.new_files import WatchedFolder
from anabranch.run.store import Store


def put(folder: Path, name: str, second: int = 0) -> str:
    path = folder / name
    path.write_text(name)
    os.utime(path, (second, second))
    return str(path)


def test_a_file_is_offered_until_it_is_taken(tmp_path: Path) -> None:
    folder = WatchedFolder(str(tmp_path))
    assert folder.poll() == []
    later, sooner = put(tmp_path, "a", 2), put(tmp_path, "b", 1)
    assert folder.poll() == [sooner, later] == folder.poll()
    folder.took([sooner])
    assert folder.poll() == [later]
    folder.took([later])
    assert folder.poll() == []
    # A file that comes back is known.
    os.unlink(later)
    assert folder.poll() == []
    put(tmp_path, "a", 3)
    assert folder.poll() == []


def test_a_listing_that_misses_a_file_does_not_put_a_newer_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is renamed while the folder is listed may be missed under both names."""
    first, second, third = (put(tmp_path, name, number) for number, name in enumerate("abc"))
    listings = [["b"], ["c", "b", "a"], ["a", "c", "b"]]
    monkeypatch.setattr(os, "listdir", lambda _: listings.pop(0))
    folder = WatchedFolder(str(tmp_path))
    assert folder.poll() == [first, second]  # the second listing may have missed what is older than the third file
    monkeypatch.undo()
    folder.took([first, second])
    assert folder.poll() == [third]


def test_a_folder_that_has_not_changed_is_not_listed_again(tmp_path: Path) -> None:
    folder = WatchedFolder(str(tmp_path))
    os.utime(tmp_path, (1, 1))
    assert folder.poll() == []
    first = put(tmp_path, "a")
    os.utime(tmp_path, (1, 1))
    assert folder.poll() == [], "the folder was listed, though its time is that of the last listing"
    assert folder.poll(is_thorough=True) == [first]


def test_a_folder_that_changed_just_now_is_listed_again(tmp_path: Path) -> None:
    folder = WatchedFolder(str(tmp_path))
    status = os.stat(tmp_path)
    assert folder.poll() == []
    first = put(tmp_path, "a")
    # The same time, as two changes within a tick of the file system's clock have.
    os.utime(tmp_path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert folder._listed is None or folder.poll() == [first]


def test_hidden_files_and_those_of_other_names_are_left_out(tmp_path: Path) -> None:
    for name in (".a.parquet", "_b.parquet", "c.parquet._COPYING_", "d.csv"):
        put(tmp_path, name)
    wanted = put(tmp_path, "e.parquet")
    assert WatchedFolder(str(tmp_path), "*.parquet").poll() == [wanted]


def test_a_batch_has_no_more_files_than_allowed(tmp_path: Path) -> None:
    paths = [put(tmp_path, str(number), number) for number in range(5)]
    assert WatchedFolder(str(tmp_path), most=2).poll() == paths[:2]
    assert WatchedFolder(str(tmp_path), most=2, latest_first=True).poll() == paths[:2:-1]


def test_a_folder_in_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    with pytest.raises(CatalogError, match="has folder 'day=1' in it"):
        WatchedFolder(str(tmp_path)).poll()


def test_a_folder_that_is_gone_is_an_error_with_a_name(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="cannot be listed"):
        WatchedFolder(str(tmp_path / "gone")).poll()


def test_the_list_of_read_files_survives_a_line_that_was_cut_short(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    Path(store.root).mkdir()
    with pytest.raises(CorruptCheckpoint, match="has no list of the files"):
        store.read_files()
    store.note_read(0, {"a": ("x", "y")})
    store.note_read(1, {"b": ("z",)})
    path = Path(store.root) / "read.jsonl"
    path.write_bytes(path.read_bytes()[:-4])
    assert store.read_files() == [(0, {"a": ["x", "y"]})]
    store.keep_read([(-1, {"a": ("x",)}), (1, {"b": ("z",)})])
    assert store.read_files() == [(-1, {"a": ["x"]}), (1, {"b": ["z"]})]
