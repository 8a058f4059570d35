"""What other users of the machine can read or change: folders of ours, and those that were there before."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.checkpoint.copying import copy
from anabranch.cql import compile_query
from anabranch.errors import CorruptCheckpoint, SpecError, UnsafeFolder
from anabranch.plan.query_set import alone
from anabranch.run.hot import claim, hot_folder, hot_root
from anabranch.run.links.redis import client
from anabranch.run.private import make_private, own_folder
from anabranch.run.store import Store
from anabranch.sites.root import Root
from anabranch.spark import archive
from tests.support.scripted import read_script

QUERY = compile_query("SELECT a.v AS x FROM a [RANGE 1 SECOND]", read_script("stream a (v string)").catalog)
ME = os.geteuid()


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    """A user whose umask hides nothing."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def owned_by_somebody_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if ME == 0:
        os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: ME + 1)


def test_a_folder_of_our_own_is_closed_to_others(tmp_path: Path) -> None:
    assert mode(own_folder(tmp_path / "new" / "folder")) == 0o700
    (tmp_path / "open").mkdir(0o755)
    assert mode(own_folder(tmp_path / "open")) == 0o700


def test_a_folder_that_somebody_else_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir(0o777)
    owned_by_somebody_else(tmp_path / "theirs", monkeypatch)
    with pytest.raises(UnsafeFolder, match="is not safe from other users") as refused:
        own_folder(tmp_path / "theirs")
    assert "it belongs to user" in refused.value.detail
    assert "ANABRANCH_HOT_FOLDER" in refused.value.hint


def test_a_link_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeFolder) as refused:
        own_folder(tmp_path / "link")
    assert refused.value.detail == f"it is a link to '{tmp_path / 'elsewhere'}'"
    (tmp_path / "file").write_text("")
    with pytest.raises(UnsafeFolder) as refused:
        own_folder(tmp_path / "file")
    assert refused.value.detail == "it is not a folder"


def test_permissions_that_cannot_be_restricted_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open").mkdir(0o755)

    def fchmod(*_: object) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "fchmod", fchmod)
    with pytest.raises(UnsafeFolder) as refused:
        own_folder(tmp_path / "open")
    assert refused.value.detail == "other users have access to it: not here"


def test_hot_state_is_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_HOT_FOLDER", str(tmp_path))
    claim("one", "/gone")
    assert mode(hot_root()) == mode(hot_folder("one")) == 0o700


def test_hot_state_under_our_name_that_is_not_ours_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_HOT_FOLDER", str(tmp_path))
    hot_root().symlink_to(tmp_path)
    with pytest.raises(UnsafeFolder):
        claim("one", "/gone")


def test_executors_of_another_user_have_hot_state_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_HOT_FOLDER", str(tmp_path))
    drivers = hot_root()
    # The variables that name a user may be the driver's; the user that the process runs as is what counts.
    monkeypatch.setattr(os, "geteuid", lambda: ME + 1)
    assert hot_root() != drivers


def test_a_new_checkpoint_is_closed_to_others_and_an_old_one_stays_as_it_is(tmp_path: Path) -> None:
    Store(str(tmp_path / "a" / "new")).open(alone(QUERY))
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "new")) == (0o777, 0o700)
    (tmp_path / "shared").mkdir(0o770)
    Store(f"file://{tmp_path}/shared").open(alone(QUERY))
    assert mode(tmp_path / "shared") == 0o770
    copy(str(tmp_path / "shared"), str(tmp_path / "copied"))
    assert mode(tmp_path / "copied") == 0o700


def test_only_local_folders_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_private("redis://host:6379")
    make_private("hdfs://host/checkpoint")
    (tmp_path / "file").write_text("")
    make_private(str(tmp_path / "file" / "below"))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("identity", ["../../home", "a/b", "..", ""])
def test_an_identity_that_would_lead_out_of_the_hot_folder_is_refused(tmp_path: Path, identity: str) -> None:
    """A query that ends removes the hot state of its identity."""
    Store(str(tmp_path)).open(alone(QUERY))
    file = tmp_path / "anabranch" / "metadata.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "identity": identity}))
    with pytest.raises(CorruptCheckpoint, match="damaged metadata"):
        Store(str(tmp_path)).open(alone(QUERY))


def test_the_root_of_a_deployment_is_closed_to_others(tmp_path: Path) -> None:
    Root(str(tmp_path / "root")).write("requests/x.json", {})
    assert mode(tmp_path / "root") == 0o700
    (tmp_path / "shared").mkdir(0o770)
    Root(str(tmp_path / "shared")).write("x.json", {})
    assert mode(tmp_path / "shared") == 0o770


def test_the_password_of_links_may_be_a_variable_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "redis://:${LINKS_PASSWORD}@localhost:6379"
    monkeypatch.delenv("LINKS_PASSWORD", raising=False)
    client.cache_clear()
    with pytest.raises(SpecError, match="needs the environment variable 'LINKS_PASSWORD'"):
        client(place)
    monkeypatch.setenv("LINKS_PASSWORD", "hunter2")
    assert client(place).connection_pool.connection_kwargs["password"] == "hunter2"
    client.cache_clear()


def test_classes_that_another_user_may_have_written_are_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "spark.jsa"
    file.write_bytes(b"")
    monkeypatch.setattr(archive, "archive_file", lambda: file)
    monkeypatch.delenv(archive.OFF, raising=False)
    file.chmod(0o444)
    assert archive.mapping_options()
    for open_to in (0o464, 0o446):
        file.chmod(open_to)
        assert archive.mapping_options() == ()
    file.chmod(0o444)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: ME + 1)
    assert archive.mapping_options()  # the owner of the environment can change everything in it
    if ME == 0:
        os.chown(file, 12345, 12345)
        assert archive.mapping_options() == ()
