"""The state of a run after a batch: clocks, row files, tables of partition groups; as a value and as JSON.

Invariant: a manifest lists everything needed to rebuild every slot, and nothing in it depends on a plan. A manifest
that contradicts its shape, its name, itself or the queries is refused when it is read, so no other code has to check
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.plan.partitioning import NO_CODE, Partitioning, row_code
from anabranch.plan.query_set import ALONE, QuerySet
from anabranch.run.clock import Clocks
from anabranch.run.json_schema import ANY_NAME, misfit


@dataclass(frozen=True)
class RowFile:
    """Base rows of one slot: those of one batch, or all live ones up to it when compacted."""

    name: str
    batch: int
    slot: int
    rows: int
    newest: Mapping[str, int]
    """The largest event time of each relation in the file."""
    partitioning: int
    """Position in the manifest's list of partitionings: the one by which the rows were distributed."""


@dataclass(frozen=True)
class Manifest:
    """The state of a query after a batch."""

    batch: int
    attempt: str
    """The successful attempt at the batch; hot state of any other attempt is not the state after this batch."""
    clocks: Clocks
    files: tuple[RowFile, ...]
    partitionings: tuple[Partitioning, ...]
    """The last one is current."""
    plans: Mapping[str, str] = field(default_factory=dict)
    """The plan that most slots had, by query, as text; results do not depend on it."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """The version of each table that the batch used, by file name."""
    since: Mapping[str, int] = field(default_factory=dict)
    """The event time from which each query that was added to the running set answers."""
    fingerprint: str | None = None
    """The fingerprint of the queries; None in manifests of releases in which a set could not change."""
    complete: Mapping[str, int] = field(default_factory=dict)
    """For relations of a changed set: the event time from which all rows are present, with all their values.

    Relations that are not listed have been complete since the start (`run/changing`).
    """
    pieces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The files of the batch, by stream, where readers read files; empty where Spark reads, which logs its offsets."""
    until: Mapping[str, int] = field(default_factory=dict)
    """The event time at which the answers of a query end because another run takes over (`run/branching`)."""


SHAPE = {
    "batch": int,
    "attempt": str,
    "clocks": {ANY_NAME: {"floor?": int, "newest?": (int, None), "heard?": int, "is_idle?": bool}},
    "files": [{"name": str, "batch": int, "slot": int, "rows": int, "newest": {ANY_NAME: int}, "partitioning": int}],
    "partitionings": [
        {
            "dimensions": [{"code": str, "relations": [str], "share": int}],
            "slots": int,
            "table": [int],
            "leaving?": [int],
            "mark?": (int, None),
            "heavy?": [{"code": str, "value": int, "shares": {ANY_NAME: int}, "frequency": (float, int)}],
        }
    ],
    "report": {"plan?": str, "plans?": {ANY_NAME: str}},
    "tables?": {ANY_NAME: str},
    "since?": {ANY_NAME: int},
    "until?": {ANY_NAME: int},
    "fingerprint?": (str, None),
    "complete?": {ANY_NAME: int},
    "lacking?": {ANY_NAME: {ANY_NAME: int}},
    "pieces?": {ANY_NAME: [str]},
}
"""The shape of a manifest."""


def read_manifest(value: Mapping[str, Any], batch: int, queries: QuerySet | None) -> Manifest:
    """Reads the manifest of a batch; raises a `ValueError` or a related error if it is invalid or of other queries."""
    if (wrong := misfit(value, SHAPE)) is not None:
        raise ValueError(wrong)
    manifest = _from_json(value)
    _require_sense(manifest, batch)
    if queries is not None:
        _require_match(manifest, queries)
    return manifest


def _require_sense(manifest: Manifest, batch: int) -> None:
    """Raises an error for a manifest that contradicts its name or itself."""
    if manifest.batch != batch:
        raise ValueError(f"it is that of batch {manifest.batch}")
    if not manifest.partitionings:
        raise ValueError("it has no table of partition groups")
    for file in manifest.files:
        if not 0 <= file.partitioning < len(manifest.partitionings):
            raise ValueError(f"file '{file.name}' names table {file.partitioning} of {len(manifest.partitionings)}")
        if not 0 <= file.slot < manifest.partitionings[file.partitioning].slots or file.batch > batch or file.rows < 0:
            raise ValueError(f"file '{file.name}' has slot {file.slot}, batch {file.batch} and {file.rows} rows")
        if "/" in file.name or not file.name[:9].isdigit():
            raise ValueError(f"'{file.name}' is not the name of a row file")


def _require_match(manifest: Manifest, queries: QuerySet) -> None:
    """Raises an error for a manifest whose streams and relations are not those of the queries."""
    if lacking := sorted(set(queries.streams) - manifest.clocks.streams.keys()):
        raise ValueError(f"it has no clock of stream '{lacking[0]}'")
    codes = {NO_CODE, *(key.name for key in queries.graph.keys), *map(row_code, queries.graph.names)}
    for dimension in manifest.partitionings[-1].dimensions:
        if not dimension.relations <= set(queries.graph.names) or dimension.code not in codes:
            raise ValueError(f"its grid has an axis '{dimension.code}' that the query does not have")


def manifest_to_json(manifest: Manifest) -> dict[str, Any]:
    return {
        "batch": manifest.batch,
        "attempt": manifest.attempt,
        "clocks": manifest.clocks.to_json(),
        "files": [dict(vars(file)) for file in manifest.files],
        "partitionings": [partitioning.to_json() for partitioning in manifest.partitionings],
        "report": _plans_to_json(manifest.plans),
        **({"tables": dict(manifest.tables)} if manifest.tables else {}),
        "since": dict(manifest.since),
        **({"until": dict(manifest.until)} if manifest.until else {}),
        "fingerprint": manifest.fingerprint,
        **({"complete": dict(manifest.complete)} if manifest.complete else {}),
        **({"pieces": {name: list(each) for name, each in manifest.pieces.items()}} if manifest.pieces else {}),
    }


def _from_json(value: Mapping[str, Any]) -> Manifest:
    return Manifest(
        batch=value["batch"],
        attempt=value["attempt"],
        clocks=Clocks.from_json(value["clocks"]),
        files=tuple(RowFile(**file) for file in value["files"]),
        partitionings=tuple(Partitioning.from_json(each) for each in value["partitionings"]),
        plans=_plans_from_json(value["report"]),
        tables=dict(value.get("tables", {})),
        since=dict(value.get("since", {})),
        until=dict(value.get("until", {})),
        fingerprint=value.get("fingerprint"),
        complete=dict(value["complete"]) if "complete" in value else _from_lacking(value.get("lacking", {})),
        pieces={name: tuple(each) for name, each in value.get("pieces", {}).items()},
    )


def _from_lacking(lacking: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Reads the entry of older manifests: by relation and column, the time from which rows have their own values."""
    return {name: max(columns.values()) for name, columns in lacking.items() if columns}


def _plans_to_json(plans: Mapping[str, str]) -> dict[str, Any]:
    """A query that runs alone has one plan and no name."""
    return {"plan": plans[ALONE]} if [*plans] == [ALONE] else {"plans": dict(plans)} if plans else {}


def _plans_from_json(report: Mapping[str, Any]) -> dict[str, str]:
    return {ALONE: report["plan"]} if "plan" in report else dict(report.get("plans", {}))
