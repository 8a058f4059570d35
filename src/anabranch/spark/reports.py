"""The triggers of a query in numbers: Spark's own progress with Anabranch's entry for the batch, and the report of a
run.

Invariant: every key that Spark reports is kept. Limit: only the triggers that the handle still has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anabranch.lang.window import instant_text
from anabranch.run.progress import BatchProgress
from anabranch.stats.mesh.routes import merge_routes

_SPARK_STEP = "addBatch"


class Progress(dict[str, Any]):
    """The progress of one trigger: Spark's keys, and Anabranch's entry under `adaptive` (None if the trigger had no
    batch).

    As in PySpark every key is an attribute too: `progress.batchId`.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"a progress has no '{name}'", name=name, obj=self) from None

    @property
    def json(self) -> str:
        return json.dumps(self, default=str)

    @property
    def prettyJson(self) -> str:
        return json.dumps(self, indent=2, default=str)


def progress_of(spark: str, find: Callable[[int], BatchProgress | None]) -> Progress:
    """Returns the progress of a trigger from Spark's JSON, with Anabranch's entry for its batch, if found."""
    # Spark's JSON omits empty entries, which PySpark's own dictionary has.
    progress = Progress({"eventTime": {}, "observedMetrics": {}, **json.loads(spark)})
    # An idle trigger has the number of the next batch, whose statistics are not those of the trigger.
    ours = find(progress["batchId"]) if has_batch(progress) else None
    progress["adaptive"] = None if ours is None else ours.to_json()
    if ours is not None:
        _count_rows(progress, ours.rows_in)
        # Spark sees no stateful operator here, and its watermark is that of an unrelated frame.
        progress["eventTime"] = {} if ours.watermark is None else {"watermark": instant_text(ours.watermark)}
        progress["stateOperators"] = [_state_operator(ours)]
    return progress


def run_report(triggers: Sequence[Progress], ours: Sequence[BatchProgress | None]) -> dict[str, Any]:
    """Summarizes the triggers of a run and Anabranch's entries for them."""
    batches = [_batch_report(progress, entry) for progress, entry in zip(triggers, ours, strict=True)]
    latest = ours[-1] if ours else None
    known = [entry for entry in ours if entry is not None]
    by_query = [entry.queries for entry in known if entry.queries]
    return {
        "rows_in": sum(batch["rows_in"] for batch in batches),
        "rows_out": sum(entry.rows_out for entry in known) if known else None,
        "late_rows": sum(sum(entry.late_rows.values()) for entry in known) if known else None,
        "ahead_rows": sum(sum(entry.ahead_rows.values()) for entry in known) if known else None,
        "shed_rows": sum(sum(entry.shed_rows.values()) for entry in known) if known else None,
        "undated_rows": sum(sum(entry.undated_rows.values()) for entry in known) if known else None,
        "state_rows": latest.statistics.state_rows if latest else None,
        "state_bytes": latest.statistics.state_bytes if latest else None,
        "duration_ms": sum(batch["duration_ms"] for batch in batches),
        "routes": _route_report(known),
        "queries": {
            name: sum(each[name].rows_out for each in by_query if name in each)
            for name in (by_query[-1] if by_query else ())
        },
        "batches": batches,
    }


def _count_rows(progress: Progress, rows_in: Mapping[str, int]) -> None:
    """Replaces Spark's row counts of a batch by the rows in.

    Spark counts the rows of its scans: twice if it evaluates a frame twice, once per alias of a stream, and none if
    slots read the files.
    """
    _count_as(progress, sum(rows_in.values()), progress["durationMs"]["triggerExecution"])
    if len(progress["sources"]) == len(rows_in):
        # Both are in the order of the scans.
        for source, rows in zip(progress["sources"], rows_in.values(), strict=True):
            _count_as(source, rows, progress["durationMs"]["triggerExecution"])


def _count_as(entry: dict[str, Any], rows: int, milliseconds: float) -> None:
    counted, entry["numInputRows"] = entry["numInputRows"], rows
    if milliseconds:
        entry["processedRowsPerSecond"] = 1000 * rows / milliseconds
    if counted and "inputRowsPerSecond" in entry:
        entry["inputRowsPerSecond"] *= rows / counted


def _state_operator(ours: BatchProgress) -> dict[str, Any]:
    """Returns the state of the query in the format of Spark's state operators, for tools that read it."""
    states = ours.statistics.states
    return {
        "operatorName": "anabranch",
        "numRowsTotal": ours.statistics.state_rows,
        "numRowsUpdated": sum(state.inserted for state in states),
        "numRowsRemoved": sum(state.dropped for state in states),
        "memoryUsedBytes": ours.statistics.state_bytes,
        "numRowsDroppedByWatermark": sum(ours.late_rows.values()),
        "numShufflePartitions": len(ours.slots),
        "customMetrics": {},
    }


def has_batch(progress: Mapping[str, Any]) -> bool:
    """Returns True for a trigger that ran a batch."""
    return _SPARK_STEP in progress["durationMs"]


def _batch_report(progress: Progress, ours: BatchProgress | None) -> dict[str, Any]:
    whole = progress["durationMs"]["triggerExecution"]
    own = None if ours is None else round(1000 * ours.own_seconds, 1)
    return {
        "batch": progress["batchId"],
        "rows_in": progress["numInputRows"],
        "rows_out": None if ours is None else ours.rows_out,
        "late_rows": None if ours is None else sum(ours.late_rows.values()),
        "ahead_rows": None if ours is None else sum(ours.ahead_rows.values()),
        "undated_rows": None if ours is None else sum(ours.undated_rows.values()),
        "state_rows": None if ours is None else ours.statistics.state_rows,
        "state_bytes": None if ours is None else ours.statistics.state_bytes,
        "duration_ms": whole,
        "own_ms": own,
        "spark_ms": None if own is None else round(max(0.0, whole - own), 1),
        "plan": None if ours is None else ours.plan,
        "queries": {} if ours is None else {name: each.rows_out for name, each in ours.queries.items()},
    }


def _route_report(batches: list[BatchProgress]) -> list[dict[str, Any]]:
    """Returns the routes of the latest mesh that all slots had; empty if there was no mesh."""
    agreed = [batch for batch in batches if len(set(batch.plans)) == 1]
    since = [batch for batch in agreed if batch.plans == agreed[-1].plans]
    routes = merge_routes(route for batch in since for route in batch.statistics.routes)
    rows = {name: sum(each.rows for each in routes if each.relation == name) for name in {r.relation for r in routes}}
    return [
        {
            "relation": each.relation,
            "route": each.route,
            "rows": each.rows,
            "share": round(each.rows / rows[each.relation], 4) if each.rows else 0.0,
            "results": each.results,
            "operators": [hop.operator for hop in each.hops],
            "selectivities": [hop.kept / hop.rows if hop.rows else None for hop in each.hops],
            "seconds": round(each.seconds, 6),
        }
        for each in sorted(routes, key=lambda each: (each.relation, each.route))
    ]
