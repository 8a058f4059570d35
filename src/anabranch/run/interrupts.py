"""Signals that ask a run to end, noted instead of raised.

An exception that a signal raises may hit the middle of a call to the JVM, which loses the connection; PySpark's own
handler also cancels the jobs of the batch under way. So the first signal is only noted, and whoever waits looks at the
note. The second one has the effect that it has without us.

Limit: Python takes signals in its main thread only; elsewhere nothing is noted.
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
    """Sets the event at the first of these signals and calls `then`; after that their handlers are as before.

    With `default`, they have the system's own effect after the first.
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
    """True when Ctrl-C raises KeyboardInterrupt, by Python's handler or by PySpark's: no program has its own."""
    handler = signal.getsignal(signal.SIGINT)
    return handler is signal.default_int_handler or getattr(handler, "__module__", "").startswith("pyspark.")
