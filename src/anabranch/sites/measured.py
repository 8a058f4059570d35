"""Measured statistics: the controller takes a sample every few seconds, and rates are differences of samples.

Rates are per second of event time, so a replay of old files has the rates of its streams. A restarted site counts its
rows from zero; earlier samples are then ignored. From the rates of streams and links follow selectivities and widths:

- a filter's selectivity is the rows of a link over the rows of its stream, or over those of the join that it filters;
- the correction of a join is its measured over its modelled rows, once the longest of its windows is full;
- columns of a fixed width have it from their type, and the texts of a stream share the remaining bytes evenly.

Limit: a flow of fewer than `LEAST_ROWS` rows in all samples teaches nothing; its rate is mostly chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from anabranch.lang.catalog import Catalog
from anabranch.lang.schema import is_fixed_width
from anabranch.lang.window import UNITS
from anabranch.place.learnt import Learnt
from anabranch.place.selection import EVERYTHING
from anabranch.place.statistics import EVENT_TIME_BYTES, Statistics
from anabranch.place.view import View
from anabranch.sites.observed import Observed, flows
from anabranch.sites.operators import GATE, Program
from anabranch.sites.root import Orders, Root, now

EVERY, MOST = 5.0, 13
"""Seconds between two samples, and the number of samples kept."""
LEAST_ROWS = 100
"""The number of rows from which a measured rate is trusted: at 100, its standard error is 10 %."""
FILE = "samples.json"


@dataclass(frozen=True)
class MeasuredFlow:
    """A link over the last samples, per second of event time; `count` is the number of rows behind it."""

    rows: float
    bytes: float
    count: int


def take_sample(root: Root, orders: Orders) -> None:
    """Adds a sample if the last one is old enough."""
    known = _samples(root)
    if known and now() - known[-1]["at"] < EVERY:
        return
    reports = _gates(root, orders)
    carried = flows(root, orders)
    sample = {
        "at": now(),
        "reached": {name: one["reached"] for name, one in reports.items() if one.get("reached") is not None},
        "rows": {name: one.get("rows", 0) for name, one in reports.items()},
        "link_rows": {name: status.rows for name, status in carried.items()},
        "bytes": {name: status.bytes for name, status in carried.items()},
    }
    root.write(FILE, {"samples": [*known, sample][-MOST:]})


def stream_rates(root: Root, orders: Orders) -> dict[str, float]:
    """Returns the rows per second of each stream, over the last samples."""
    samples = _samples(root)
    gates = {name: spec.serves for name, spec in orders.wanted.operators.items() if spec.kind == GATE}
    found = {}
    for name, stream in gates.items():
        slope = _slope([(one["reached"].get(name), one["rows"].get(name)) for one in samples])
        if slope is not None:
            found[stream] = slope[0]
    return found


def flow_rates(root: Root) -> dict[str, MeasuredFlow]:
    """Returns the flow on each link, over the last samples."""
    samples = _samples(root)
    found = {}
    for name in {name for one in samples for name in one["bytes"]}:
        # The progress of the streams: the latest watermark of any gate.
        reached = [max(one["reached"].values(), default=None) for one in samples]
        rows = _slope([(at, one["link_rows"].get(name)) for at, one in zip(reached, samples, strict=True)])
        volume = _slope([(at, one["bytes"].get(name)) for at, one in zip(reached, samples, strict=True)])
        if rows is not None and volume is not None:
            found[name] = MeasuredFlow(rows[0], volume[0], rows[1])
    return found


def by_reader(root: Root, orders: Orders) -> dict[tuple[str, str], MeasuredFlow]:
    """Returns the flow into each input of an operator, by reader and stream."""
    rates = flow_rates(root)
    return {
        key: rates[link]
        for key, wire in orders.wanted.wiring.wires.items()
        if (link := wire.link(wire.stretches[-1])) in rates
    }


def learn(root: Root, orders: Orders, program: Program, statistics: Statistics, catalog: Catalog) -> Learnt:
    """Returns the statistics that the samples show; `program` has the planned flows of the running operators."""
    rates = {**_rates_since_start(root, orders), **stream_rates(root, orders)}
    return deduced(rates, by_reader(root, orders), _measured_seconds(root, orders), program, statistics, catalog)


def deduced(
    rates: Mapping[str, float],
    flows: Mapping[tuple[str, str], MeasuredFlow],
    seconds: Mapping[str, float],
    program: Program,
    statistics: Statistics,
    catalog: Catalog,
) -> Learnt:
    """Returns the statistics that follow from measured streams and links; `seconds` is how long a stream was read."""
    measured = {
        key: (flow, view)
        for key, flow in flows.items()
        if flow.count >= LEAST_ROWS and key in program.flows and (view := program.flows[key].view) is not None
    }
    single = [(flow, view) for flow, view in measured.values() if len(view.slots) == 1]
    shares = {}
    for flow, view in single:
        (slot,) = view.slots
        if slot.selection != EVERYTHING and rates.get(slot.stream):
            shares[slot.stream, str(slot.selection)] = min(1.0, flow.rows / rates[slot.stream])
    learnt = Learnt(rates, shares, {}, _widths(single, catalog))
    joined = [(flow, view) for flow, view in measured.values() if len(view.slots) > 1]
    full = [
        (flow, view)
        for flow, view in joined
        if all(seconds.get(slot.stream, 0.0) >= _longest(view) for slot in view.slots)
    ]
    # Readers of one join differ in their filters. The one with the fewest unknown filters shows how many rows the join
    # has; the others then show their filters.
    for flow, view in sorted(full, key=lambda each: (len(_unknown(each[1], learnt)), -each[0].count)):
        known = learnt.applied(statistics)
        unknown = _unknown(view, learnt)
        if view.signature not in learnt.factors:
            modelled = view.rate(known) / known.factors.get(view.signature, 1.0)
            if modelled > 0:
                learnt = learnt.updated(Learnt(factors={view.signature: flow.rows / modelled}))
        elif len(unknown) == 1:
            ((stream, text),) = unknown
            slots = tuple(
                replace(slot, selection=EVERYTHING) if (slot.stream, str(slot.selection)) == (stream, text) else slot
                for slot in view.slots
            )
            if (all_rows := View(slots, view.predicates).rate(known)) > 0:
                learnt = learnt.updated(Learnt(shares={(stream, text): min(1.0, flow.rows / all_rows)}))
    return learnt


def _unknown(view: View, learnt: Learnt) -> set[tuple[str, str]]:
    """Returns the filters of a view whose selectivity was not measured."""
    filters = {(slot.stream, str(slot.selection)) for slot in view.slots if slot.selection != EVERYTHING}
    return filters - set(learnt.shares)


def _widths(flows: list[tuple[MeasuredFlow, View]], catalog: Catalog) -> dict[str, dict[str, float]]:
    """Returns the bytes of the columns of each stream whose widths are known or follow from a link."""
    found: dict[str, dict[str, float]] = {}
    for flow, view in flows:
        (slot,) = view.slots
        stream = catalog.find(slot.stream)
        if stream is None:
            continue
        fields = [field for field in stream.schema if field.name in slot.columns]
        known = {field.name: field.type.bit_width / 8 for field in fields if is_fixed_width(field.type)}
        texts = [field.name for field in fields if field.name not in known]
        rest = flow.bytes / flow.rows - EVENT_TIME_BYTES - sum(known.values())
        found.setdefault(slot.stream, {}).update(known | dict.fromkeys(texts, max(0.0, rest) / max(1, len(texts))))
    return found


def _longest(view: View) -> float:
    return max(float("inf") if slot.range is None else slot.range / UNITS["second"] for slot in view.slots)


def _measured_seconds(root: Root, orders: Orders) -> dict[str, float]:
    """Returns for how long each stream has been read since its gate started, in event time."""
    reports = _gates(root, orders)
    return {
        orders.wanted.operators[name].serves: (one["reached"] - one["first"]) / 1e6
        for name, one in reports.items()
        if one.get("reached") is not None and one.get("first") is not None
    }


def _rates_since_start(root: Root, orders: Orders) -> dict[str, float]:
    return {
        orders.wanted.operators[name].serves: float(one["rate"])
        for name, one in _gates(root, orders).items()
        if one.get("rate")
    }


def _gates(root: Root, orders: Orders) -> dict[str, Mapping[str, Any]]:
    seen = Observed(root, orders)
    return {
        name: report
        for name, spec in orders.wanted.operators.items()
        if spec.kind == GATE and (report := seen.operator(name)) is not None
    }


def _samples(root: Root) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (root.read(FILE) or {}).get("samples", [])
    return found


def _slope(points: list[tuple[int | None, int | None]]) -> tuple[float, int] | None:
    """Returns the count per second of event time over the last monotonic points, and the count; None if unknown."""
    known = [(at, count) for at, count in points if at is not None and count is not None]
    first = 0
    for number, (one, other) in enumerate(pairwise(known)):
        if other[0] < one[0] or other[1] < one[1]:
            first = number + 1
    if len(known) - first < 2 or known[-1][0] <= known[first][0]:
        return None
    count = known[-1][1] - known[first][1]
    return count / ((known[-1][0] - known[first][0]) / 1e6), count
