"""Flink as a rival: what its process is asked to run. Nothing here loads Flink, which has an environment of its own.

`make bench-flink` makes that environment and names its interpreter in ANABRANCH_FLINK_PYTHON. Flink's package can read
CSV and JSON, not Parquet, and its event times have milliseconds, so both sides read and write the CSV form of a
workload. Flink's file source gives no order of files, so a stream is one file for it: rows then come in the order of
their times, as they do for us, and no row is late. A live run reads folders, whose files arrive one by one.

Every pair of relations is held within the window by an interval condition, as in `benchmarks.spark_native`. Flink joins
pairwise and lets one relation's event time through, so a second interval of a relation that was joined already is a
plain condition on a copy of its time.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.job import Job
    from benchmarks.workloads import Workload

SECOND = 1_000_000
INTERPRETER = "ANABRANCH_FLINK_PYTHON"
CHILD = Path(__file__).with_name("flink_child.py")
SETTINGS = {
    "parallelism.default": "2",
    "pipeline.object-reuse": "true",
    "execution.checkpointing.interval": "10 s",
    "state.backend.type": "hashmap",
    "table.local-time-zone": "UTC",
    "table.exec.source.idle-timeout": "0",
}
"""What a good engineer would set: state on the heap, no copies between operators, a checkpoint every ten seconds."""

LIVE_SETTINGS = {"execution.checkpointing.interval": "500 ms"}
"""Results become visible with a checkpoint, so a live run makes them often."""


@dataclass(frozen=True)
class Kind:
    """How the tables of a run differ: the delay of watermarks, and options of sources and of the sink."""

    delay: str
    source: str
    sink: str


ORDERED = Kind("", "", "")
LIVE = Kind(
    " - INTERVAL '5' SECOND",
    ", 'source.monitor-interval' = '100 ms'",
    ", 'sink.rolling-policy.rollover-interval' = '200 ms', 'sink.rolling-policy.check-interval' = '100 ms'",
)
"""Two files that are found at once may be read in either order; the delay keeps rows from being late. It delays no
result of an inner join, only the end of its rows in state."""


class NoFlink(ImportError):
    """There is no environment with Flink."""


def flink_command(job: Job, answered: Path) -> list[str]:
    """The command that runs a job through Flink and writes its outcome."""
    interpreter = os.environ.get(INTERPRETER)
    if not interpreter:
        raise NoFlink(f"no interpreter with Flink is named in {INTERPRETER}; `make bench-flink` makes one")
    asked = answered.with_name("flink.json")
    settings = SETTINGS | {"execution.checkpointing.dir": f"file://{job.checkpoint}"}
    told = {"query": insert(job.workload)}
    if job.live is None:
        sources = whole_streams(job.workload, job.source, answered.parent / "streams")
        kind = ORDERED
    else:
        sources = [job.source / stream.name for stream in job.workload.streams]
        kind = LIVE
        settings |= LIVE_SETTINGS
        told |= {"started": str(job.live.started), "fed": str(job.live.fed)}
    statements = [source(job.workload, i, path, kind) for i, path in enumerate(sources)]
    statements.append(sink(job.workload, job.output, kind))
    asked.write_text(json.dumps({"settings": settings, "tables": statements, **told}))
    return [interpreter, str(CHILD), str(asked), str(answered)]


def whole_streams(workload: Workload, files: Path, folder: Path) -> list[Path]:
    """Each stream as one file, in the order of its micro-batches."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for stream in workload.streams:
        path = folder / f"{stream.name}.csv"
        with path.open("wb") as whole:
            for part in sorted((files / stream.name).glob("*.csv")):
                whole.write(part.read_bytes())
        paths.append(path)
    return paths


def source(workload: Workload, index: int, path: Path, kind: Kind = ORDERED) -> str:
    """The table of a stream, of one file or of a folder in which files arrive."""
    stream = workload.streams[index]
    columns = ", ".join(f"{name} BIGINT" for name in ("millis", *(column.name for column in stream.columns), "p"))
    time = f"ts AS TO_TIMESTAMP_LTZ(millis, 3), WATERMARK FOR ts AS ts{kind.delay}"
    return (
        f"CREATE TABLE {stream.name} ({columns}, {time}) "
        f"WITH ('connector' = 'filesystem', 'path' = 'file://{path}', 'format' = 'csv'{kind.source})"
    )


def sink(workload: Workload, output: Path, kind: Kind = ORDERED) -> str:
    """The table of results."""
    columns = ", ".join(f"{column}{i} BIGINT" for i, column in workload.outputs)
    return (
        f"CREATE TABLE results ({columns}) "
        f"WITH ('connector' = 'filesystem', 'path' = 'file://{output}', 'format' = 'csv'{kind.sink})"
    )


def insert(workload: Workload) -> str:
    """The query: one interval join after another, in the order of the workload."""
    carried = ["ts", "millis"]
    text = ""
    for i, stream in enumerate(workload.streams):
        names = [*carried, *(column.name for column in stream.columns), "p"]
        own = f"(SELECT {', '.join(f'{name} AS {name}{i}' for name in names)} FROM {stream.name})"
        if i == 0:
            text = own
            continue
        window = f"INTERVAL '{workload.window // SECOND}' SECOND"
        near = f"ts{i} BETWEEN ts0 - {window} AND ts0 + {window}"
        on = [
            f"{e.left_key}{e.left} = {e.right_key}{e.right}" for e in workload.equalities if max(e.left, e.right) == i
        ]
        on += [near, *(f"ABS(millis{i} - millis{j}) <= {workload.window // 1000}" for j in range(1, i))]
        text = f"(SELECT * FROM {text} JOIN {own} ON {' AND '.join(on)})"
    outputs = ", ".join(f"{column}{i}" for i, column in workload.outputs)
    return f"INSERT INTO results SELECT {outputs} FROM {text}"
