"""The process of one measured Flink run, under an interpreter that has Flink and none of our packages.

`python flink_child.py asked.json outcome.json`: runs the statements and says when the query began and ended. Its own
cluster lives in the process, with a heap as large as the driver of a Spark run gets.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HEAP = "-Xmx4g"
DRAIN = 20.0
"""Seconds until the last results are visible; the answer is checked, so too few would be seen."""


def main(asked: Path, answered: Path) -> None:
    os.environ["FLINK_ENV_JAVA_OPTS"] = HEAP
    from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]

    job = json.loads(asked.read_text())
    begun = time.time()
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in job["settings"].items():
        tables.get_config().set(name, value)
    for statement in job["tables"]:
        tables.execute_sql(statement)
    started = time.time()
    running = tables.execute_sql(job["query"])
    if "fed" in job:
        _follow(running.get_job_client(), Path(job["started"]), Path(job["fed"]))
    else:
        running.wait()
    ended = time.time()
    outcome = {"session_seconds": started - begun, "started": started, "ended": ended, "progress": []}
    answered.write_text(json.dumps(outcome))


def _follow(client: Any, started: Path, fed: Path) -> None:
    """Lets a live query run until its feeder is done and the last results are visible, then ends it."""
    while client.get_job_status().result().name != "RUNNING":
        time.sleep(0.1)
    started.touch()
    while not fed.exists():
        if client.get_job_status().result().name != "RUNNING":
            raise SystemExit("the query ended while files still came")
        time.sleep(0.1)
    time.sleep(DRAIN)
    client.cancel().result()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
