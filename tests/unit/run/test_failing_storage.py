"""Whatever write fails, and whatever is damaged: a named error, nothing lost, and the batch answer after a restart."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import AnabranchError, CheckpointError, StorageFull
from anabranch.plan.mesh import parse_plan
from anabranch.run.local import LocalHost
from tests.support.contracts import Workload, workloads
from tests.support.failing_files import Death, FailingFiles, Fault, Kind, on_failing_files
from tests.support.oracle import describe_difference, rows_as_multiset

CHAIN = next(each for each in workloads() if each.name == "a chain on two keys")
GROUPS = next(each for each in workloads() if each.name == "groups")
MANY = 1000
"""More operations than a run has."""
NOTHING = type(None)
ERRORS: dict[Kind, tuple[type, ...]] = {
    Kind.DIES_BEFORE: (Death,),
    Kind.DIES_AFTER: (Death,),
    # What is for people only, such as the history, may be lost.
    Kind.FULL: (StorageFull, NOTHING),
    Kind.BROKEN: (CheckpointError, NOTHING),
}


def _start(workload: Workload, folder: Path) -> LocalHost:
    plan = parse_plan("((a b) c)" if workload is CHAIN else "(a b)")
    return LocalHost(workload.query, plan, slots=2, checkpoint=str(folder))


def _run(workload: Workload, folder: Path, files: FailingFiles, sink: dict[int, pa.Table]) -> None:
    """Takes all batches that are left, a move in between."""
    batches = workload.batches(8)
    with on_failing_files(files):
        host = _start(workload, folder)
    while host.batch < len(batches):
        if host.batch == 1:
            host.move(range(20), to=1)
        host.step(batches[host.batch], deliver=lambda task, answer: sink.__setitem__(task.batch, answer))


def _check(workload: Workload, sink: dict[int, pa.Table]) -> None:
    found = rows_as_multiset(pa.concat_tables(sink.values()))
    assert not describe_difference(workload.answer, found)


@pytest.mark.parametrize("kind", Kind)
def test_the_disk_may_fail_at_every_write(kind: Kind, tmp_path: Path) -> None:
    """Every third write in this test, each kind beginning at another one; all of them in the one below."""
    _fail_at(range([*Kind].index(kind) % 3, MANY, 3), CHAIN, kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("workload", [CHAIN, GROUPS], ids=["join", "groups"])
def test_the_disk_may_fail_at_every_single_write(workload: Workload, kind: Kind, tmp_path: Path) -> None:
    _fail_at(range(MANY), workload, kind, tmp_path)


def _fail_at(operations: range, workload: Workload, kind: Kind, tmp_path: Path) -> None:
    whole = FailingFiles()
    _run(workload, tmp_path / "whole", whole, {})
    named, failed = 0, 0
    assert len(whole.operations) < MANY
    chosen = [operation for operation in operations if operation < len(whole.operations)]
    for operation in chosen:
        folder, sink = tmp_path / f"at{operation}", dict[int, pa.Table]()
        failure: BaseException | None
        files = FailingFiles(Fault(operation, kind))
        try:
            _run(workload, folder, files, sink)
        except (Death, AnabranchError) as error:
            failure = error
            named += 1
        else:
            failure = None
        if not files.has_failed:
            # Slots step side by side and may find that another has cleaned up already, so the last operations vary.
            assert failure is None
            _check(workload, sink)
            continue
        failed += 1
        assert isinstance(failure, ERRORS[kind]), f"{files.operations[operation]}: {failure!r}"
        assert not isinstance(failure, AnabranchError) or failure.hint
        _run(workload, folder, FailingFiles(), sink)
        _check(workload, sink)
    assert failed > 0.9 * len(chosen)
    if kind in (Kind.FULL, Kind.BROKEN):
        assert named > len(chosen) // 2, "hardly a failed write was told"


# --- damaged files ---------------------------------------------------------------------------------------------------

Damage = Callable[[Path], None]


def _rewritten(change: Callable[[bytes], bytes]) -> Damage:
    def damage(path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return damage


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


class _Bomb:
    """Would run code if it were unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (os._exit, (77,))


DAMAGES: dict[str, Damage] = {
    "empty": _rewritten(lambda content: b""),
    "half": _rewritten(lambda content: content[: len(content) // 2]),
    "last byte": _rewritten(lambda content: content[:-1]),
    "without its head": _rewritten(lambda content: content[7:]),
    "twice": _rewritten(lambda content: content + content),
    "zeros": _rewritten(lambda content: bytes(len(content))),
    "text": _rewritten(lambda content: b"hello"),
    "list": _rewritten(lambda content: b"[]"),
    "object": _rewritten(lambda content: b"{}"),
    "null": _rewritten(lambda content: b"null"),
    "deep": _rewritten(lambda content: b"[" * 100_000),
    "pickle": _rewritten(lambda content: pickle.dumps(_Bomb())),
    "folder": _as_folder,
    "gone": Path.unlink,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint after a few batches, with a history."""
    folder = tmp_path_factory.mktemp("kept") / "checkpoint"
    host = _start(CHAIN, folder)
    for batch in CHAIN.batches(5)[:3]:
        host.step(batch)
    (folder / "anabranch" / "lease.json").write_text("{}")
    (folder / "anabranch" / "history.jsonl").write_text('{"kind": "warning", "batch": 0, "message": "x"}\n')
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_or_not_needed(damage: str, checkpoint: Path, tmp_path: Path) -> None:
    names = sorted(path.relative_to(checkpoint) for path in checkpoint.rglob("*") if path.is_file())
    for number, name in enumerate(names):
        copy = tmp_path / str(number)
        shutil.copytree(checkpoint, copy)
        DAMAGES[damage](copy / name)
        _use(copy, f"{name}: {damage}")


@settings(max_examples=60)
@given(data=st.data())
def test_a_manifest_with_any_entry_replaced_is_named_or_does_no_harm(
    data: st.DataObject, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = tmp_path_factory.mktemp("fuzzed") / "checkpoint"
    shutil.copytree(checkpoint, copy)
    path = max((copy / "anabranch" / "manifests").glob("*.json"))
    value = json.loads(path.read_text())
    node, key = value, data.draw(st.sampled_from(sorted(value)), "entry")
    while isinstance(node[key], dict | list) and node[key] and data.draw(st.booleans(), "deeper"):
        node = node[key]
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))), "key")
    odd = [None, True, -1, 0, 10**30, 1.5, "", "x", "../../etc/passwd", [], {}, [None], {"x": 1}]
    node[key] = data.draw(st.sampled_from(odd), "value")
    path.write_text(json.dumps(value))
    _use(copy, "a fuzzed manifest")


def _use(folder: Path, what: str) -> None:
    """Starts from a checkpoint and goes on: that works, or fails by a named error."""
    failure: Exception | None = None
    try:
        host = _start(CHAIN, folder)
        for batch in CHAIN.batches(5)[host.batch :]:
            host.step(batch)
    except Exception as error:
        failure = error
    if failure is not None and not isinstance(failure, AnabranchError):
        raise AssertionError(f"{what}: not a named error, but {type(failure).__name__}: {failure}") from failure
    assert failure is None or failure.hint, f"{what}: {failure}"
