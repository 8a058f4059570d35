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
from typing import Generic, TypeVar

T = TypeVar("T")
"""The type of the result of a search."""


class Search(Generic[T]):
    """A started search."""

    def __init__(self, found: Future[T], what: str) -> None:
        self._found = found
        self._what = what

    @property
    def is_done(self) -> bool:
        return self._found.done()

    def outcome(self) -> T | None:
        """Waits for the search and returns its result; None if it was cancelled or, with a warning, if it failed."""
        try:
            return self._found.result()
        except CancelledError:
            return None
        except Exception as error:
            warnings.warn(f"a search for {self._what} failed: {error!r}", stacklevel=2)
            return None


class Searches:
    """Runs the searches of one query, one at a time."""

    def __init__(self, *, waits: bool = False) -> None:
        self._waits = waits
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, "anabranch-search")

    def begin(self, what: str, search: Callable[[], T], *, is_long: bool) -> Search[T]:
        """Starts a search; unless it is long and batches do not wait, it has ended when this returns."""
        found: Future[T] = Future()
        if self._is_closed:
            found.cancel()
            return Search(found, what)
        if is_long and not self._waits:
            return Search(self._thread.submit(search), what)
        try:
            found.set_result(search())
        except Exception as error:
            found.set_exception(error)
        return Search(found, what)

    def close(self) -> None:
        """Cancels the searches that have not started; the process can end once the current search has ended."""
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
