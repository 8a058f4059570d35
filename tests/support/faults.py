"""Fault injection for crash tests: kills a driver and its process group at the call of a chosen method.

The signal is SIGKILL, so nothing is flushed, closed or undone, as when the machine loses power. Limit: the driver must
run in its own process group.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from pyarrow import fs


def die() -> None:
    """Kills the calling process and its group, including the JVM; never returns."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def die_at(target: Any, method: str, *, after: bool) -> None:
    """Replaces a method of an object: its next call kills the process, before or after the method has run."""
    real = getattr(target, method)

    def last(*arguments: Any, **keywords: Any) -> None:
        if after:
            real(*arguments, **keywords)
        die()

    setattr(target, method, last)


class MortalFiles(fs.LocalFileSystem):
    """Local file system whose methods `die_at` can replace."""
