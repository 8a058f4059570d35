"""The backlog of the sources of a trigger, from the offsets and metrics in Spark's progress.

Kafka and Anabranch's Redis source report where their streams end and where the batch ended; the difference is the
backlog in rows.

Limit: file sources report neither, so a rate-limited file source shows only as growing latency of the query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def backlog(sources: Any) -> float | None:
    """Returns the backlog of the sources: latest offset minus end of the batch, or their own metrics.

    >>> backlog([{"endOffset": {"orders": {"0": 40}}, "latestOffset": {"orders": {"0": 52, "1": 3}}}])
    15.0
    """
    found = [waits for source in sources if (waits := _waiting(source)) is not None]
    return sum(found) if found else None


def _waiting(source: Mapping[str, Any]) -> float | None:
    behind = _between(source.get("endOffset"), source.get("latestOffset"))
    if behind is not None:
        return behind
    found = [
        float(value)
        for key, value in (source.get("metrics") or {}).items()
        if ("outstanding" in key.lower() or "behind" in key.lower())
        and "bytes" not in key.lower()
        and _is_number(value)
    ]
    return sum(found) if found else None


def _between(end: Any, latest: Any) -> float | None:
    """Sums the differences of integers at equal places of two offsets, such as those of partitions."""
    if isinstance(end, Mapping) and isinstance(latest, Mapping):
        found = [_between(end.get(key, 0), value) for key, value in latest.items()]
        known = [each for each in found if each is not None]
        return sum(known) if known else None
    if isinstance(end, int) and isinstance(latest, int):
        return float(max(0, latest - end))
    return None


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
