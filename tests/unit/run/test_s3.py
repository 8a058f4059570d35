"""A checkpoint on a real S3 server, which runs on loopback: restarts go on, refusals hold, nothing is half written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pyarrow.fs as pafs
import pytest
from moto.server import ThreadedMotoServer

from anabranch.cli import main as cli
from anabranch.errors import CheckpointInUse, ForeignCheckpoint
from anabranch.plan.physical import mjoin
from anabranch.plan.query import Query
from anabranch.plan.query_set import alone
from anabranch.run.lease import Lease
from anabranch.run.local import LocalHost
from anabranch.run.store import Store
from tests.support.scripted import answer_lines, read_rows
from tests.unit.run.test_lease import held_by
from tests.unit.run.test_store import CATALOG, QUERY, query

BATCHES = [["a 0 1 x", "a 1 2 y", "b 1 1 z"], ["b 2 2 w"], ["a 3 1 v", "b 3 2 u"], ["a 30 1 v", "b 31 1 u"]]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield f"127.0.0.1:{server.get_host_and_port()[1]}"
    server.stop()


@pytest.fixture
def location(server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server}")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    options = {"endpoint_override": server, "scheme": "http", "region": "us-east-1"}
    pafs.S3FileSystem(allow_bucket_creation=True, **options).create_dir("bucket")
    return f"s3://bucket/{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}"


def started(location: str, of: Query = QUERY) -> LocalHost:
    return LocalHost(of, mjoin(("a", "b")), slots=2, checkpoint=location)


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_query_restarted_after_every_batch_gives_the_same_answers(location: str, scheme: str) -> None:
    whole = started(location)
    there = scheme + location.removeprefix("s3") + "-again"
    for batch in BATCHES:
        rows = read_rows(CATALOG, batch)
        assert answer_lines(started(there).step(rows)) == answer_lines(whole.step(rows))


def test_another_query_and_another_driver_are_refused(location: str) -> None:
    started(location).step(read_rows(CATALOG, BATCHES[0]))
    with pytest.raises(ForeignCheckpoint):
        started(location, query(5))
    store = Store(location)
    held_by(store)
    with pytest.raises(CheckpointInUse):
        Lease(store)


def test_a_write_that_fails_leaves_no_object(location: str) -> None:
    store = Store(location)
    store.open(alone(QUERY))
    before = objects(store)
    with pytest.raises(TypeError):
        store.keep_lease({"set": {1}})
    assert objects(store) == before


def objects(store: Store) -> dict[str, int | None]:
    return {info.path: info.size for info in store.files.get_file_info(pafs.FileSelector(store.root, recursive=True))}


def test_a_checkpoint_is_verified_and_copied_to_a_disk(
    location: str, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    running = started(location)
    for batch in BATCHES[:2]:
        running.step(read_rows(CATALOG, batch))
    target = str(tmp_path_factory.mktemp("copies") / "copy")
    assert cli.main(["checkpoint", "verify", location]) == 0
    assert cli.main(["checkpoint", "copy", location, target]) == 0
    assert "the checkpoint is whole" in capsys.readouterr().out
    rows = read_rows(CATALOG, BATCHES[2])
    assert answer_lines(started(target).step(rows)) == answer_lines(running.step(rows))
