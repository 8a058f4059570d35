"""The metrics of runs, in the text format of Prometheus.

Names end in `_total`, `_seconds`, `_bytes` or `_ratio`. Labels are names of runs, queries, streams, slots and
operators, never keys or values of rows. Counters start when the console first sees a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from anabranch.console.points import BatchPoint
from anabranch.console.watching import WatchedRun

_OfRun: TypeAlias = Callable[[WatchedRun], float]
_ByLabel: TypeAlias = Callable[[WatchedRun], Mapping[Any, float]]
_OfBatch: TypeAlias = Callable[[BatchPoint], float | None]

COUNTERS: Mapping[str, tuple[str, _OfRun]] = {
    "anabranch_batches": ("Committed batches.", lambda run: run.totals.batches),
    "anabranch_trigger_seconds": ("Seconds of whole triggers.", lambda run: run.totals.trigger_seconds),
    "anabranch_own_seconds": ("Seconds of our part of triggers.", lambda run: run.totals.own_seconds),
    "anabranch_migrations": ("Changes of plan that began.", lambda run: run.totals.migrations),
    "anabranch_moves": ("Batches with which partition groups moved.", lambda run: run.totals.moves),
}
"""Counters of a run."""
LABELLED: Mapping[str, tuple[str, str, _ByLabel]] = {
    "anabranch_rows_in": ("Rows that the source delivered.", "stream", lambda run: run.totals.rows_in),
    "anabranch_rows_out": ("Rows that the sink received.", "query", lambda run: run.totals.rows_out),
    "anabranch_late_rows": ("Late rows that were dropped.", "stream", lambda run: run.totals.late),
    "anabranch_undated_rows": (
        "Rows without an event time, such as bad records.",
        "stream",
        lambda run: run.totals.undated,
    ),
    "anabranch_shed_rows": ("Rows shed because the run could not take all.", "stream", lambda run: run.totals.shed),
    "anabranch_overloads": (
        "Limits that were broken, and backlogs that grew.",
        "bound",
        lambda run: run.totals.overloads,
    ),
    "anabranch_slot_cpu_seconds": ("CPU time of slots.", "slot", lambda run: run.totals.slot_cpu),
    "anabranch_decisions": ("Decisions on plans.", "action", lambda run: run.totals.decisions),
}
"""Counters with one more label."""
GAUGES: Mapping[str, tuple[str, _OfBatch]] = {
    "anabranch_batch": ("Number of the latest batch.", lambda point: point.batch),
    "anabranch_last_trigger_seconds": ("Seconds of the latest trigger.", lambda point: point.trigger),
    "anabranch_last_own_seconds": ("Our part of the latest trigger.", lambda point: point.own),
    "anabranch_state_rows": ("Rows kept in states.", lambda point: point.state_rows),
    "anabranch_state_bytes": ("Bytes of states.", lambda point: point.state_bytes),
    "anabranch_skew_ratio": ("CPU time of the slowest slot over the average.", lambda point: point.skew),
    "anabranch_watermark_seconds": ("The watermark, as seconds since 1970.", lambda point: point.watermark),
    "anabranch_watermark_lag_seconds": (
        "From the watermark to the start of the latest trigger.",
        lambda point: point.lag,
    ),
    "anabranch_backlog": ("Rows, files or offsets that wait, as sources say.", lambda point: point.backlog),
    "anabranch_kept_ratio": ("Share of keys whose rows are kept.", lambda point: point.kept),
    "anabranch_idle_streams": ("Streams that are idle.", lambda point: len(point.idle)),
    "anabranch_migrating_slots": ("Slots whose plan is being changed.", lambda point: len(point.migrating)),
}
"""Figures of the latest batch."""


def metrics_text(runs: Iterable[WatchedRun]) -> bytes:
    """Returns the metrics of all runs."""
    registry = CollectorRegistry()
    registry.register(_Collector(list(runs)))
    return generate_latest(registry)


class _Collector:
    def __init__(self, runs: list[WatchedRun]) -> None:
        self._runs = runs

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for name, (words, of_run) in COUNTERS.items():
            counter = CounterMetricFamily(name, words, labels=["run"])
            for run in self._runs:
                counter.add_metric([run.run.title], of_run(run))
            yield counter
        for name, (words, label, by_label) in LABELLED.items():
            counter = CounterMetricFamily(name, words, labels=["run", label])
            for run in self._runs:
                for key, count in by_label(run).items():
                    counter.add_metric([run.run.title, str(key)], count)
            yield counter
        for name, (words, of_batch) in GAUGES.items():
            gauge = GaugeMetricFamily(name, words, labels=["run"])
            for run in self._runs:
                found = of_batch(run.point) if run.point else None
                if found is not None:
                    gauge.add_metric([run.run.title], found)
            yield gauge
        up = GaugeMetricFamily("anabranch_up", "1 while the run is active.", labels=["run"])
        for run in self._runs:
            up.add_metric([run.run.title], run.status == "running")
        yield up
        yield from self._operators()
        yield from self._slots()

    def _operators(self) -> Iterator[Metric]:
        labels = ["run", "operator", "origin", "target"]
        looked = CounterMetricFamily("anabranch_operator_lookups", "Rows looked up in a state.", labels=labels)
        kept = CounterMetricFamily("anabranch_operator_matches", "Matches that passed predicates.", labels=labels)
        states = GaugeMetricFamily("anabranch_operator_state_rows", "Rows in a state.", labels=["run", "operator"])
        for run in self._runs:
            for operator, count in run.totals.probes.items():
                looked.add_metric([run.run.title, *operator], count)
                kept.add_metric([run.run.title, *operator], run.totals.kept[operator])
            for state in run.recent[-1][1]["adaptive"]["statistics"]["states"] if run.recent else ():
                states.add_metric([run.run.title, state["state"]], state["rows"])
        yield from (looked, kept, states)

    def _slots(self) -> Iterator[Metric]:
        labels = ["run", "slot"]
        held = GaugeMetricFamily("anabranch_slot_state_bytes", "Bytes of a slot's states.", labels=labels)
        groups = GaugeMetricFamily("anabranch_slot_groups", "Partition groups of a slot.", labels=labels)
        for run in self._runs:
            for slot in run.point.slots if run.point else ():
                held.add_metric([run.run.title, str(slot.slot)], slot.bytes)
                groups.add_metric([run.run.title, str(slot.slot)], slot.groups)
        yield from (held, groups)
