"""Sends a request to the controller of a deployment: a file in its root, and another file with the reply."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from typing import Any

from anabranch.errors import SiteError
from anabranch.sites.root import Root

ANSWER_WITHIN = 120.0
"""Seconds that a command waits for the controller's reply."""


def ask(root: Root, kind: str, wait: Callable[[], None] = lambda: time.sleep(0.2), **details: Any) -> str:
    """Sends a request to the running controller and returns its reply; raises SiteError if there is none."""
    if root.holder("controller") is None:
        raise SiteError(
            f"no controller is at work in '{root.location}'",
            hint="start one: anabranch deploy network.yaml queries.yaml --root DIR; the deployment goes on as it is",
        )
    name = f"{uuid.uuid4().hex}.json"
    root.write(f"requests/{name}", {"kind": kind, "process": os.getpid(), **details})
    end = time.monotonic() + ANSWER_WITHIN
    while time.monotonic() < end:
        answer = root.read(f"answers/{name}")
        if answer is not None:
            root.remove(f"answers/{name}")
            if "error" in answer:
                raise SiteError(f"the controller refused to {kind}", detail=answer["error"])
            return str(answer["done"])
        wait()
    raise SiteError(f"the controller did not answer within {ANSWER_WITHIN:g} seconds", hint="see its output")
