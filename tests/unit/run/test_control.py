"""Changes are asked of a driver through its checkpoint: done at most once, answered, and refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch.cql import compile_query
from anabranch.errors import AnabranchError, BundleError, HostError, SpecError
from anabranch.run import control
from anabranch.run.lease import Lease
from anabranch.run.store import Store
from tests.unit.run.test_store import CATALOG


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path / "checkpoint"))
    store.files.create_dir(store.root, recursive=True)
    return store


def served(store: Store, serve: Callable[[control.Request], dict[str, Any]]) -> Callable[[], None]:
    """What a driver does while somebody waits."""

    def once() -> None:
        request = control.take(store)
        assert request is not None
        assert control.take(store) is None
        try:
            control.answer(store, request, serve(request))
        except AnabranchError as error:
            control.answer(store, request, error)

    return once


def test_a_request_is_done_once_and_answered(store: Store) -> None:
    lease = Lease(store)
    control.listen(store)
    seen = []

    def serve(request: control.Request) -> dict[str, Any]:
        seen.append((request.kind, dict(request.content)))
        return {"joined": {"audits": 7}}

    done = control.request(store, "add", {"names": ["audits"]}, pause=served(store, serve))
    assert seen == [("add", {"names": ["audits"]})]
    assert done == {"joined": {"audits": 7}}
    assert store.messages() == ["listener.json"]
    lease.close()


def test_a_refusal_comes_back_as_the_error_that_it_was(store: Store) -> None:
    lease = Lease(store)
    control.listen(store)

    def refuse(request: control.Request) -> dict[str, Any]:
        raise BundleError("query 'a' is read by 'b'", detail="found", hint="remove those first")

    with pytest.raises(BundleError) as caught:
        control.request(store, "remove", {"names": ["a"]}, pause=served(store, refuse))
    assert str(caught.value) == "query 'a' is read by 'b'\nfound\nhint: remove those first"

    def misread(request: control.Request) -> dict[str, Any]:
        compile_query("SELECT a.q FROM a [NOW]", CATALOG)
        return {}

    with pytest.raises(SpecError, match=r"line 1, column 8(.|\n)*SELECT a\.q FROM a"):
        control.request(store, "add", {}, pause=served(store, misread))
    lease.close()


def test_without_a_running_driver_no_request_is_written(store: Store) -> None:
    with pytest.raises(HostError, match="no queries run with checkpoint"):
        control.request(store, "remove", {"names": ["a"]})
    lease = Lease(store)
    with pytest.raises(HostError, match="takes no requests") as caught:
        control.request(store, "remove", {"names": ["a"]})
    assert "handle.add" in caught.value.hint
    control.listen(store)
    # The driver ends while somebody waits.
    with pytest.raises(HostError, match="no queries run with checkpoint"):
        control.request(store, "remove", {"names": ["a"]}, pause=lease.close)
    assert store.messages() == ["listener.json"]


def test_requests_to_an_earlier_driver_are_dropped(store: Store) -> None:
    lease = Lease(store)
    control.listen(store)
    with pytest.raises(KeyboardInterrupt):
        control.request(store, "add", {}, pause=lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert control.take(store) is None
    store.write_message("00-x-request.json", {"kind": "remove", "content": {}})
    control.listen(store)
    assert control.take(store) is None
    lease.close()
