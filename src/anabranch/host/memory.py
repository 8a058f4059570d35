"""Keeps what the loops of a query have learnt with its checkpoint, so that a restart need not learn it again.

Law: no answer depends on the memory, so nothing about it can stop a query. A file that cannot be read or written, or
that does not fit the query, leads to a warning record and is ignored. Loops do not use what was learnt for other
limits, another objective or other hints.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.adapt.memory import Memory
from anabranch.adapt.records import DecisionMade, Record, Warned
from anabranch.adapt.steering import Steering
from anabranch.errors import AnabranchError
from anabranch.host.store import Store

_UNREADABLE = (AnabranchError, AttributeError, KeyError, TypeError, ValueError, OSError)


def recall(store: Store, steering: Steering, batch: int) -> list[Record]:
    """Gives the loops what earlier runs have learnt; returns a warning where that was not possible."""
    try:
        found = store.memory()
        if found is not None:
            steering.recall(Memory.from_json(found, is_named=steering.is_named))
    except _UNREADABLE as error:
        return [_warning(batch, "what earlier runs have learnt is not used", error)]
    return []


def keep(store: Store, steering: Steering, batch: int, records: Iterable[Record]) -> list[Record]:
    """Writes the memory when the records of a batch have a decision: loops learn when they decide."""
    if not any(isinstance(record, DecisionMade) for record in records):
        return []
    try:
        store.keep_memory(steering.memory)
    except _UNREADABLE as error:
        return [_warning(batch, "what was learnt is not kept for a restart", error)]
    return []


def _warning(batch: int, what: str, error: Exception) -> Warned:
    return Warned(batch, f"{what}: {error}")
