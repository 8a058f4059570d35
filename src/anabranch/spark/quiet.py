"""Filters the routine messages of Java and Spark from the terminal.

The Java process that runs Spark gets a pipe as its standard error. A thread forwards every line except startup
messages, warnings in Spark's own log format, stack frames, and errors of query threads, which handles raise. So the
first line of a failure is shown, as are lines of a user's log4j configuration in another format. With ANABRANCH_VERBOSE
set, Spark writes to the terminal.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

VERBOSE = "ANABRANCH_VERBOSE"

_USUAL = re.compile(
    rb"WARNING: Using incubator modules"
    rb"|Using Spark's default log4j profile"
    rb"|Setting (default|Spark) log level to"
    rb"|To adjust logging level use"
    rb"|\d\d/\d\d/\d\d \d\d:\d\d:\d\d (WARN|INFO) "
    # A query that is stopped; any other failure of a broadcast fails its job, too.
    rb"|\d\d/\d\d/\d\d \d\d:\d\d:\d\d ERROR TorrentBroadcast: Store broadcast \S+ fail"
    rb"|\tat "
)
_OF_QUERY = re.compile(rb'Exception in thread "stream execution thread for ')
"""The handle raises the same error if it is one; a JVM that ends with the driver stops its queries like this."""
_OF_TRACE = re.compile(rb"\tat |\t\.\.\. |Caused by: |\tSuppressed: ")
_STANDARD_ERROR = 2


def is_verbose() -> bool:
    """Returns True if the user wants to see Spark's log."""
    return os.environ.get(VERBOSE, "") not in ("", "0")


def is_usual(line: bytes) -> bool:
    """Returns True if a line is routine output.

    >>> is_usual(b'Setting default log level to "WARN".')
    True
    >>> is_usual(b"26/11/16 05:17:04 ERROR TorrentBroadcast: Store broadcast broadcast_49 fail, remove all pieces")
    True
    >>> is_usual(b"26/11/16 05:17:04 ERROR SparkContext: Error initializing SparkContext.")
    False
    """
    return _USUAL.match(line) is not None


@contextmanager
def hushed() -> Iterator[None]:
    """Filters the standard error of processes started inside the context, for their whole lifetime."""
    terminal = os.dup(_STANDARD_ERROR)
    reading, writing = os.pipe()
    os.dup2(writing, _STANDARD_ERROR)
    os.close(writing)
    threading.Thread(target=_relay, args=(reading, os.dup(terminal)), name="anabranch-hushed", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(terminal, _STANDARD_ERROR)
        os.close(terminal)


def _relay(reading: int, terminal: int) -> None:
    with os.fdopen(reading, "rb") as lines, os.fdopen(terminal, "wb", buffering=0) as shown:
        is_of_query = False
        for line in lines:
            is_of_query = _OF_QUERY.match(line) is not None or (is_of_query and _OF_TRACE.match(line) is not None)
            if not is_of_query and not is_usual(line):
                shown.write(line)
