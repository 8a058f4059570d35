"""Searches for plans and meshes, beside the batches or in line.

Law: no micro-batch waits for a long search, or for the compilation of the kernels that a search needs. A long search
runs on a thread of the driver's, one search after another, and its outcome is judged when a later batch ends. A search
of a few milliseconds runs in line, so that its decision comes with the batch that gave the reason for it.

A search that fails gives a warning, and the query keeps the plan that it has.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")
"""The type of the result of a search."""


class Search(Generic[T]):
    """A search that was begun."""

    def __init__(self, found: Future[T], what: str) -> None:
        self._found = found
        self._what = what

    @property
    def is_done(self) -> bool:
        return self._found.done()

    def outcome(self) -> T | None:
        """Waits for the result of the search; None when it was cancelled or, after a warning, when it failed."""
        try:
            return self._found.result()
        except CancelledError:
            return None
        except Exception as error:
            warnings.warn(f"a search for {self._what} failed: {error!r}", stacklevel=2)
            return None


class Searches:
    """The searches of one query, one after another."""

    def __init__(self, *, waits: bool = False) -> None:
        self._waits = waits
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, "anabranch-search")

    def begin(self, what: str, search: Callable[[], T], *, is_long: bool) -> Search[T]:
        """Begins a search; one that is not long, or that batches wait for, has ended when this returns."""
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
        """Cancels the searches that have not begun; the process can end once the one at work has ended."""
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
