"""Sends a request to the controller of a deployment: a file in its root, and another file with the reply.

The controller serves a request when earlier changes allow it, and meanwhile reports what it waits for. Invariant: a
request that the client gives up is withdrawn.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from typing import Any

from anabranch.errors import SiteError
from anabranch.sites.root import WAITS, Root, now

TELL_AFTER = 3.0
"""The seconds after which the client shows what a pending request waits for."""


def request(
    root: Root,
    kind: str,
    wait: Callable[[], None] = lambda: time.sleep(0.2),
    tell: Callable[[str], None] = lambda text: None,
    **details: Any,
) -> str:
    """Sends a request to the running controller and returns its reply; `tell` receives what the request waits for.

    Raises SiteError if there is no controller, if it ends before it replies, and if it refuses.
    """
    _refuse_headless(root, "no controller is running")
    name, asked = f"{round(1e6 * now()):017d}-{uuid.uuid4().hex}.json", time.monotonic()
    root.write(f"requests/{name}", {"kind": kind, "process": os.getpid(), **details})
    shown = ""
    try:
        while (answer := root.read(f"answers/{name}")) is None:
            _refuse_headless(root, "the controller ended before it replied")
            waits = "; ".join((root.read(WAITS) or {}).get("waits", ()))
            if waits != shown and time.monotonic() - asked >= TELL_AFTER:
                tell(f"waiting for {waits}" if waits else "waiting for the controller")
                shown = waits
            wait()
    finally:
        root.remove(f"requests/{name}")
    root.remove(f"answers/{name}")
    if "error" in answer:
        raise SiteError(f"the controller refused to {kind}", detail=answer["error"])
    return str(answer["done"])


def _refuse_headless(root: Root, what: str) -> None:
    if root.holder("controller") is None:
        raise SiteError(
            f"{what} in '{root.location}'",
            hint="start one: anabranch deploy network.yaml queries.yaml --root DIR; the operators continue unchanged",
        )
