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

HEAP = "-Xmx4g"


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
    tables.execute_sql(job["query"]).wait()
    ended = time.time()
    outcome = {"session_seconds": started - begun, "started": started, "ended": ended, "progress": []}
    answered.write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
