"""Changes that another process asks of a running driver, by way of the checkpoint that both can reach.

Whoever asks writes a request and waits for its answer. The driver that listens takes a request away before it does what
is asked, and answers. The two files of a request bear one name.

Law: a request is done at most once. One that nobody took is withdrawn by the one who asked, and one that was left
behind is dropped when the next driver begins to listen. Whoever waits does not wait longer than the driver lives.

Limit: a driver that dies between a change and its answer leaves the one who asked without one; the history tells.
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
    """A change that was asked for: its kind, and what it is about, as JSON."""

    id: str
    kind: str
    content: Mapping[str, Any]


def listen(store: Store) -> None:
    """Says that this driver, which has the lease, takes requests; drops those of the time before."""
    for name in store.letters():
        store.drop_letter(name)
    store.write_letter(_LISTENER, {"owner": (store.lease() or {}).get("owner")})


def take(store: Store) -> Request | None:
    """The next request, which nobody else can take any more; None if there is none."""
    for name in store.letters():
        if name.endswith(_REQUEST) and (value := store.read_letter(name)) is not None:
            store.drop_letter(name)
            return Request(name.removesuffix(_REQUEST), str(value.get("kind")), value.get("content") or {})
    return None


def answer(store: Store, request: Request, result: Mapping[str, Any] | AnabranchError) -> None:
    """Tells the one who asked what came of it."""
    told = {"refused": _told(result)} if isinstance(result, AnabranchError) else {"done": dict(result)}
    store.write_letter(f"{request.id}{_ANSWER}", told)


def _told(error: AnabranchError) -> dict[str, str]:
    if isinstance(error, CqlError):
        # It shows the place in a text that only this process has.
        return {"kind": SpecError.__name__, "message": str(error), "detail": "", "hint": ""}
    return {"kind": type(error).__name__, "message": error.message, "detail": error.detail, "hint": error.hint}


def ask(
    store: Store,
    kind: str,
    content: Mapping[str, Any],
    *,
    pause: Callable[[], None] = lambda: time.sleep(_LOOK_SECONDS),
) -> Mapping[str, Any]:
    """Asks the driver of a checkpoint for a change and waits for its answer; raises the error that it answers with."""
    _require_listener(store)
    name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
    store.write_letter(f"{name}{_REQUEST}", {"kind": kind, "content": dict(content)})
    try:
        while (found := store.read_letter(f"{name}{_ANSWER}")) is None:
            _require_driver(store, "the driver ended before it answered; its history says whether the change was made")
            pause()
    finally:
        store.drop_letter(f"{name}{_REQUEST}")
        store.drop_letter(f"{name}{_ANSWER}")
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
    listener = store.read_letter(_LISTENER)
    if listener is None or listener.get("owner") != holder.owner:
        raise HostError(
            f"the driver of checkpoint '{store.location}' takes no requests",
            detail=f"{holder} has it; only `anabranch run` takes them",
            hint="in the program that runs the queries, call handle.add and handle.remove",
        )
