"""Runs searches for plans and meshes, in the background or between two batches.

Invariant: no micro-batch waits for a long search, or for the compilation of its kernels. Long searches run one after
another on a thread of the driver, and the outcome is used when a later batch ends. A search of a few milliseconds runs
immediately, so that its decision comes with the batch that caused it. If a search fails, there is a warning, and the
query keeps its plan.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
"""The type of the result of a search."""


class Searches:
    """Runs the searches of one query, one at a time."""

    def __init__(self, *, waits: bool = False) -> None:
        self._waits = waits
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, "anabranch-search")

    def begin(self, search: Callable[[], T], *, is_long: bool) -> Future[T]:
        """Starts a search; unless it is long and batches do not wait, it has ended when this returns."""
        if is_long and not self._waits and not self._is_closed:
            return self._thread.submit(search)
        found: Future[T] = Future()
        if self._is_closed:
            found.cancel()
            return found
        try:
            found.set_result(search())
        except Exception as error:
            found.set_exception(error)
        return found

    def close(self) -> None:
        """Cancels the searches that have not started; the process can end once the current search has ended."""
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)


def outcome(found: Future[T], what: str) -> T | None:
    """Waits for a search and returns its result; None if it was cancelled or, with a warning, if it failed."""
    try:
        return found.result()
    except CancelledError:
        return None
    except Exception as error:
        warnings.warn(f"a search for {what} failed: {error!r}", stacklevel=2)
        return None
