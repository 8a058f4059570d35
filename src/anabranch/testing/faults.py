"""Deaths at chosen moments, for crash tests: a driver and its whole process group are killed at the call of a method.

The kill is SIGKILL, so nothing is flushed, closed or undone: the same as a machine that loses power, as far as
processes can tell. The driver must have been started in a process group of its own.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from pyarrow import fs


def die() -> None:
    """Kills the calling process and all of its group, the JVM among them; never returns."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def die_at(target: Any, method: str, *, after: bool) -> None:
    """Makes the next call of the object's method the last thing the process does, before or after the method itself."""
    real = getattr(target, method)

    def last(*arguments: Any, **keywords: Any) -> None:
        if after:
            real(*arguments, **keywords)
        die()

    setattr(target, method, last)


class MortalFiles(fs.LocalFileSystem):
    """The local file system, as an object whose methods `die_at` can replace."""
