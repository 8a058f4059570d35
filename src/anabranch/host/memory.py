"""What a query has learnt of its streams and plans, kept with its checkpoint, so that a restart need not learn it anew.

Law: no answer depends on it, so nothing about it can stop a query. A file that cannot be read or written, or that does
not fit the query, is told as a record and otherwise passed over; what was learnt for other limits, another objective or
other hints is not used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from anabranch.errors import AnabranchError
from anabranch.host.bundling import BundleSteering
from anabranch.host.steering import Record, Steering
from anabranch.host.store import Store

_UNREADABLE = (AnabranchError, AttributeError, KeyError, TypeError, ValueError, OSError)


def recall(store: Store, steering: Steering | BundleSteering, batch: int) -> list[Record]:
    """Gives a query that begins with a batch what earlier runs have learnt; a record where that was not possible."""
    try:
        found = store.memory()
        if found is not None:
            steering.recall(found)
    except _UNREADABLE as error:
        return [_warning(batch, "what earlier runs have learnt is not used", error)]
    return []


def keep(store: Store, steering: Steering | BundleSteering, batch: int, records: Iterable[Record]) -> list[Record]:
    """Keeps what the query knows if the records of a batch have a decision, which is when it learns."""
    if not any(record["kind"] == "decision" for record in records):
        return []
    try:
        store.keep_memory(steering.memory())
    except _UNREADABLE as error:
        return [_warning(batch, "what was learnt is not kept for a restart", error)]
    return []


def _warning(batch: int, what: str, error: Any) -> Record:
    return {"kind": "warning", "batch": batch, "reason": f"{what}: {error}"}
