"""Drops the rows of some keys, chosen by a hash, when a run cannot take all of its input.

A key is kept or dropped in all relations alike, so the results of a key that is kept throughout are exact, and a key
that is dropped has none. This needs a key that every stream compares; a run without one is refused. Hence results are
only missing, never wrong, also for outer and anti joins; aggregates over several keys count the keys that are kept.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from anabranch.engine.batch import RelationBatch
from anabranch.engine.kernels import BoolArray
from anabranch.engine.ownership import coordinates
from anabranch.errors import PlanError
from anabranch.plan.query_set import QuerySet
from anabranch.settings.entries import Entry

Overload: TypeAlias = Literal["keep", "shed"]
OVERLOADS: tuple[Overload, ...] = ("keep", "shed")
"""The behaviour of an overloaded run: it falls behind (`keep`), or sheds rows (`shed`)."""
PARTS = 9973
"""The number of parts into which keys are divided; a prime, so that shedding is independent of the partition group."""


def read_overload(entry: Entry) -> Overload:
    """Reads `overload: keep` or `overload: shed`."""
    name = entry.choice(OVERLOADS)
    return next(each for each in OVERLOADS if each == name)


def shedding_key(queries: QuerySet) -> str:
    """Returns the key whose values are kept or dropped as a whole.

    Raises
    ------
    PlanError
        If rows cannot be shed so that the results are a part of the whole answer.
    """
    if queries.graph.counted:
        raise PlanError(
            f"rows cannot be shed: '{queries.graph.counted[0]}' has a count window, which other rows would fill",
            hint="use overload: keep",
        )
    streams = {each.name for each in queries.graph.streamed if not each.is_result}
    for key in queries.graph.keys:
        if key.relations >= streams:
            return key.name
    raise PlanError(
        "rows cannot be shed: no key is compared by all streams",
        detail=f"streams: {', '.join(sorted(streams))}",
        hint="use overload: keep, and limit the rows of a trigger by the options of the sources",
    )


def kept_rows(rows: RelationBatch, key: str, share: float) -> BoolArray:
    """Returns True for the rows whose keys are in the kept share; a smaller share is a subset of a larger one."""
    kept: BoolArray = coordinates(rows.codes[key], PARTS) < share * PARTS
    return kept
