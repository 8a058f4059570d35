"""Measured rates: the controller takes a sample every few seconds, and rates are differences of samples.

Rates are per second of event time, so a replay of old files has the rates of its streams. A restarted site counts its
rows from zero; earlier samples are then ignored.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from anabranch.sites.observed import Observed, flows
from anabranch.sites.operators import GATE
from anabranch.sites.root import Orders, Root, now

EVERY, MOST = 5.0, 13
"""Seconds between two samples, and the number of samples kept."""
FILE = "samples.json"


def take_sample(root: Root, orders: Orders) -> None:
    """Adds a sample if the last one is old enough."""
    known: list[dict[str, Any]] = (root.read(FILE) or {}).get("samples", [])
    if known and now() - known[-1]["at"] < EVERY:
        return
    seen = Observed(root, orders)
    reports = {
        name: report
        for name, spec in orders.wanted.operators.items()
        if spec.kind == GATE and (report := seen.operator(name)) is not None
    }
    sample = {
        "at": now(),
        "newest": {name: report["newest"] for name, report in reports.items() if report.get("newest") is not None},
        "rows": {name: report.get("rows", 0) for name, report in reports.items()},
        "bytes": {name: status.bytes for name, status in flows(orders).items()},
    }
    root.write(FILE, {"samples": [*known, sample][-MOST:]})


def stream_rates(root: Root, orders: Orders) -> dict[str, float]:
    """Returns the rows per second of each stream, over the last samples."""
    samples = _samples(root)
    gates = {name: spec.serves for name, spec in orders.wanted.operators.items() if spec.kind == GATE}
    found = {}
    for name, stream in gates.items():
        rate = _slope([(one["newest"].get(name), one["rows"].get(name)) for one in samples])
        if rate is not None:
            found[stream] = rate
    return found


def flow_rates(root: Root) -> dict[str, float]:
    """Returns the bytes per second on each link, over the last samples."""
    samples = _samples(root)
    names = {name for one in samples for name in one["bytes"]}
    rates = {}
    for name in names:
        # The progress of the streams: the newest event time of any gate.
        points = [(max(one["newest"].values(), default=None), one["bytes"].get(name)) for one in samples]
        rate = _slope(points)
        if rate is not None:
            rates[name] = rate
    return rates


def _samples(root: Root) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (root.read(FILE) or {}).get("samples", [])
    return found


def _slope(points: list[tuple[int | None, int | None]]) -> float | None:
    """Returns the count per second of event time over the last monotonic points; None if unknown."""
    known = [(at, count) for at, count in points if at is not None and count is not None]
    first = 0
    for number, (one, other) in enumerate(pairwise(known)):
        if other[0] < one[0] or other[1] < one[1]:
            first = number + 1
    if len(known) - first < 2 or known[-1][0] <= known[first][0]:
        return None
    return (known[-1][1] - known[first][1]) / ((known[-1][0] - known[first][0]) / 1e6)
