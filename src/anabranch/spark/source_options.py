"""What our sources of streams share: the values of options, and the interfaces that Spark has had since 4.2.

Invariant: a wrong value, or an older Spark, is a named error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anabranch.errors import CatalogError, HostError

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS = True
except ImportError:  # Spark 4.1
    ReadLimit = ReadMaxFiles = ReadMaxRows = ReadAllAvailable = Any  # type: ignore[assignment, misc]
    SupportsTriggerAvailableNow = object  # type: ignore[assignment, misc]
    HAS_LIMITS = False

__all__ = [
    "HAS_LIMITS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxFiles",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "count_of",
    "one_of",
    "require_limits",
]


def require_limits(source: str, instead: str) -> None:
    """Refuses a source where Spark has no limits of batches for sources in Python."""
    if not HAS_LIMITS:
        raise HostError(f"{source} needs Spark 4.2 or newer", hint=f"use {instead}")


def count_of(name: str, text: str) -> int:
    """Returns a whole number of at least 1."""
    if not (text.isdecimal() and int(text) > 0):
        raise CatalogError(f"option '{name}' is '{text}'", hint="give a whole number of at least 1")
    return int(text)


def one_of(name: str, text: str, known: Sequence[str]) -> str:
    """Returns a text that is one of the known ones."""
    if text not in known:
        raise CatalogError(f"option '{name}' is '{text}'", hint=f"give {' or '.join(known)}")
    return text
