"""The control channel: changes that another process requests of a running driver, through their shared checkpoint.

The client writes a request and waits for the answer. The driver removes a request before it executes it, and then
answers. The two files of a request have the same name.

Invariant: a request is executed at most once. The client withdraws a request that was not taken, and the next driver
drops stale requests when it begins to listen. A client never waits longer than the driver lives.

Limit: if a driver dies between a change and its answer, the client gets no answer; the history shows the outcome.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anabranch import errors
from anabranch.errors import AnabranchError, CqlError, HostError, SpecError
from anabranch.run.lease import Holder
from anabranch.run.store import Store

_LISTENER = "listener.json"
_REQUEST, _ANSWER = "-request.json", "-answer.json"
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Request:
    """A requested change: its kind, and its content as JSON."""

    id: str
    kind: str
    content: Mapping[str, Any]


def listen(store: Store) -> None:
    """Announces that this driver, which has the lease, accepts requests; drops earlier ones."""
    for name in store.messages():
        store.drop_message(name)
    store.write_message(_LISTENER, {"owner": (store.lease() or {}).get("owner")})


def take(store: Store) -> Request | None:
    """Takes the next request, exclusively; None if there is none."""
    for name in store.messages():
        if name.endswith(_REQUEST) and (value := store.read_message(name)) is not None:
            store.drop_message(name)
            return Request(name.removesuffix(_REQUEST), str(value.get("kind")), value.get("content") or {})
    return None


def answer(store: Store, request: Request, result: Mapping[str, Any] | AnabranchError) -> None:
    """Sends the outcome to the client."""
    result_json = {"refused": _error_to_json(result)} if isinstance(result, AnabranchError) else {"done": dict(result)}
    store.write_message(f"{request.id}{_ANSWER}", result_json)


def _error_to_json(error: AnabranchError) -> dict[str, str]:
    if isinstance(error, CqlError):
        # A CqlError shows a position in a text that only this process has.
        return {"kind": SpecError.__name__, "message": str(error), "detail": "", "hint": ""}
    return {"kind": type(error).__name__, "message": error.message, "detail": error.detail, "hint": error.hint}


def request(
    store: Store,
    kind: str,
    content: Mapping[str, Any],
    *,
    pause: Callable[[], None] = lambda: time.sleep(_LOOK_SECONDS),
) -> Mapping[str, Any]:
    """Requests a change from the driver of a checkpoint and waits for its answer; raises the error in the answer."""
    _require_listener(store)
    name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
    store.write_message(f"{name}{_REQUEST}", {"kind": kind, "content": dict(content)})
    try:
        while (found := store.read_message(f"{name}{_ANSWER}")) is None:
            _require_driver(store, "the driver ended before it answered; its history says whether the change was made")
            pause()
    finally:
        store.drop_message(f"{name}{_REQUEST}")
        store.drop_message(f"{name}{_ANSWER}")
    if (refused := found.get("refused")) is not None:
        known = getattr(errors, refused["kind"], HostError)
        raise known(refused["message"], detail=refused["detail"], hint=refused["hint"])
    done: Mapping[str, Any] = found["done"]
    return done


def _require_driver(store: Store, detail: str) -> Holder:
    lease = store.lease()
    holder = None if lease is None else Holder.from_json(lease)
    if holder is None or not holder.is_alive_now():
        raise HostError(
            f"no queries run with checkpoint '{store.location}'",
            detail=detail,
            hint="start them with `anabranch run`, from a spec that has the queries you want",
        )
    return holder


def _require_listener(store: Store) -> None:
    holder = _require_driver(store, "a running driver keeps a lease there; there is none, or its process is gone")
    listener = store.read_message(_LISTENER)
    if listener is None or listener.get("owner") != holder.owner:
        raise HostError(
            f"the driver of checkpoint '{store.location}' takes no requests",
            detail=f"{holder} has it; only `anabranch run` takes them",
            hint="in the program that runs the queries, call handle.add and handle.remove",
        )
