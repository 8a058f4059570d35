"""Lists the settings of earlier versions that are gone, with what to do instead."""

from __future__ import annotations

_FIXED = "remove it: the value is fixed now"

REMOVED = {
    "adapt.threshold": _FIXED,
    "adapt.remember": _FIXED,
    "adapt.gate": _FIXED,
    "adapt.share": _FIXED,
    "adapt.batches": _FIXED,
    "adapt.growth": _FIXED,
    "adapt.memory": "write limits: {memory: 500 MB}",
    "balance.ratio": _FIXED,
    "balance.seconds": _FIXED,
    "balance.bytes": _FIXED,
    "balance.horizon": _FIXED,
    "balance.remember": _FIXED,
    "balance.cool_down": _FIXED,
    "balance.busy": _FIXED,
    "balance.idle": _FIXED,
    "balance.thresholds": "remove it: balance: auto evens out state as well as CPU time",
    "hints.force": "write it as 'plan', such as plan: jtree",
    "sink.mode": "remove it: results are always appended",
    "late.mode": "remove it: rows are always appended",
}
"""The end of the path of each removed entry, and the hint of its error."""


def hint_for(path: str) -> str | None:
    """Returns the hint for a removed entry; None if there never was one of that name.

    >>> hint_for("queries.alerts.sink.mode")
    'remove it: results are always appended'
    """
    return REMOVED.get(".".join(path.split(".")[-2:]))
