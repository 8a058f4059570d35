"""Turns the first signal that requests the end of a run into an event, instead of an exception.

An exception may interrupt a call to the JVM, which loses the connection. PySpark's own handler also cancels the jobs of
the current batch. So the first signal only sets an event, which the waiting loop checks. The second signal has its
usual effect.

Limit: Python handles signals only in its main thread; in other threads the event is never set.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, current_thread, main_thread
from typing import Any


@contextmanager
def noted_signals(
    *numbers: signal.Signals, then: Callable[[], None] = lambda: None, default: bool = False
) -> Iterator[Event]:
    """Yields an event that the first of these signals sets; it also calls `then` and restores the previous handlers.

    With `default`, the first signal installs the system's default handlers instead of the previous ones.
    """
    noted = Event()
    if current_thread() is not main_thread():
        yield noted
        return
    before: dict[signal.Signals, Any] = {}

    def note(*_: object) -> None:
        noted.set()
        then()
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if default else handler)

    for number in numbers:
        before[number] = signal.signal(number, note)
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def takes_interrupts() -> bool:
    """Returns True if the handler of Python or PySpark, and not of the program, raises KeyboardInterrupt for Ctrl-C."""
    handler = signal.getsignal(signal.SIGINT)
    return handler is signal.default_int_handler or getattr(handler, "__module__", "").startswith("pyspark.")
