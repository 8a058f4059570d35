"""Reads the checkpoint of a Spark query with one stream-stream join, by Spark's own state reader.

The reader gives the rows of each side with the columns that Spark kept, as of the last committed batch. The logs beside
the state give the offset of each source and the watermark. Nothing is written.

Limit: the state says neither the join condition nor the kind of the join; both are for the user to know.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from pyspark.sql import DataFrame, SparkSession

from anabranch.errors import CheckpointError
from anabranch.run.locations import locate

SIDES = ("left", "right")
_JOIN = "symmetricHashJoin"


@dataclass(frozen=True)
class JoinState:
    """A join's checkpoint: its last batch, the offsets of its sources, and its watermark in microseconds."""

    location: str
    batch: int
    offsets: tuple[str, ...]
    """The offset of each source as JSON, the left side first."""
    watermark: int
    files: pafs.FileSystem
    root: str

    def sources(self, number: int) -> list[str]:
        """Returns the paths of the files that Spark keeps of a source."""
        selector = pafs.FileSelector(f"{self.root}/sources/{number}", allow_not_found=True, recursive=True)
        names = self.files.get_file_info(selector)
        return [info.path for info in names if info.is_file and not info.base_name.startswith(".")]


def open_join(spark: SparkSession, location: str) -> JoinState:
    """Returns the checkpoint of a join; raises an error that says why a checkpoint cannot be adopted."""
    files, root, _ = locate(location)
    offsets, commits = (_numbers(files, f"{root}/{log}") for log in ("offsets", "commits"))
    if not commits:
        raise _cannot(location, "it has no committed batch", "name the checkpointLocation of the Spark query")
    if offsets and offsets[-1] > commits[-1]:
        raise _cannot(
            location,
            f"batch {offsets[-1]} was planned and is not committed, so some of its results may be in the sink",
            "start the Spark query once more with trigger(availableNow=True) and let it end",
        )
    stateful = spark.read.format("state-metadata").load(location).collect()
    operators = {(row.operatorId, row.operatorName) for row in stateful}
    if operators != {(0, _JOIN)}:
        found = ", ".join(sorted(name for _, name in operators)) or "none"
        raise _cannot(
            location,
            f"its stateful operators are: {found}",
            "only a single stream-stream join can be adopted; start other queries anew",
        )
    version, metadata, *each = _text(files, f"{root}/offsets/{commits[-1]}").split("\n")
    if version != "v1" or len(each) != len(SIDES) or "-" in each:
        raise _cannot(location, f"it has {len(each)} sources", "one source for each side of the join can be adopted")
    planned = json.loads(metadata)["batchWatermarkMs"]
    after = json.loads(_text(files, f"{root}/commits/{commits[-1]}").split("\n")[1]).get("nextBatchWatermarkMs", 0)
    return JoinState(location, commits[-1], tuple(each), 1000 * max(planned, after), files, root)


def rows_of(spark: SparkSession, state: JoinState, side: str) -> pa.Table:
    """Returns the rows of a side, in the columns that Spark kept."""
    reader = spark.read.format("statestore").option("joinSide", side).option("batchId", state.batch)
    frame: DataFrame = reader.load(state.location).select("value.*")
    return frame.toArrow()


def write_logs(state: JoinState, files: pafs.FileSystem, folder: str, order: Sequence[int], batch: int) -> None:
    """Writes Spark's part of a checkpoint whose sources continue at these offsets; `order` numbers the old sources."""
    metadata: dict[str, Any] = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}
    lines = ["v1", json.dumps(metadata), *(state.offsets[number] for number in order)]
    _write(files, f"{folder}/offsets/{batch}", "\n".join(lines).encode())
    _write(files, f"{folder}/metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
    _write(files, f"{folder}/commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
    for place, number in enumerate(order):
        for path in state.sources(number):
            with state.files.open_input_stream(path) as stream:
                name = path.removeprefix(f"{state.root}/sources/{number}/")
                _write(files, f"{folder}/sources/{place}/{name}", stream.read())


def _write(files: pafs.FileSystem, path: str, content: bytes) -> None:
    files.create_dir(path.rpartition("/")[0], recursive=True)
    with files.open_output_stream(path) as out:
        out.write(content)


def _numbers(files: pafs.FileSystem, folder: str) -> list[int]:
    listed = files.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
    return sorted(int(info.base_name) for info in listed if info.base_name.isdigit())


def _text(files: pafs.FileSystem, path: str) -> str:
    with files.open_input_stream(path) as stream:
        return str(stream.read().decode())


def _cannot(location: str, reason: str, hint: str) -> CheckpointError:
    return CheckpointError(f"Spark's checkpoint '{location}' cannot be adopted", detail=reason, hint=hint)
