"""A driver that writes a story into a table of a database and is killed amid it; the tests start it as a child process.

    python jdbc_story.py <folder> <options as JSON> <driver jar> <moment>

It dies at batch 1 at the moment, or ends with all rows of the table in `<folder>/found.parquet`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyarrow import parquet

from anabranch.spark.session import local_session
from anabranch.spark.sinks import jdbc
from tests.spark.stories import Story, cut, feed, register
from tests.support.faults import die
from tests.support.oracle import describe_difference, rows_as_multiset

STORY = Story(
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.y = c.y",
    disorder={"s1": 2},
    rows=80,
)
MOMENTS = ("DELETE", "INSERT", "commit", "count")
"""After which statement the driver dies: inside the transaction, behind it, or between staging and publishing."""


def check(options: Mapping[str, str], jar: str, folder: Path, moments: tuple[str, ...]) -> None:
    """Kills the driver at each moment, lets it end, and compares the table with the batch answer."""
    tables = STORY.tables()
    for batch in cut(tables, 8):
        feed(folder, batch)
    for moment in moments:
        code = _child(folder, options, jar, moment)
        assert code == -signal.SIGKILL, f"the driver ended with {code} instead of being killed at {moment}"
    assert _child(folder, options, jar, "never") == 0
    found = parquet.read_table(folder / "found.parquet")
    assert not describe_difference(STORY.expected(tables), rows_as_multiset(found))


def _child(folder: Path, options: Mapping[str, str], jar: str, moment: str) -> int:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    return subprocess.run(
        [sys.executable, __file__, str(folder), json.dumps(dict(options)), jar, moment],
        env=environment,
        start_new_session=True,
        timeout=300,
        check=False,
    ).returncode


def _die_after(moment: str) -> None:
    """Dies at the second batch, so that one is there already."""
    real_run, real_number, seen = jdbc._run, jdbc._number, [0]

    def run(connection: Any, sql: str) -> None:
        real_run(connection, sql)
        seen[0] += sql.startswith("INSERT")
        if seen[0] > 1 and moment == "commit":
            connection.commit()
            die()
        if seen[0] >= 1 + (moment == "INSERT") and sql.startswith(moment):
            die()

    def number(connection: Any, sql: str) -> int:
        if moment == "count" and seen[0] >= 1:
            die()
        return real_number(connection, sql)

    setattr(jdbc, "_run", run)  # noqa: B010
    setattr(jdbc, "_number", number)  # noqa: B010


def main(folder: Path, given: str, jar: str, moment: str) -> None:
    _die_after(moment)
    spark = local_session(2, **{"spark.jars": jar, "spark.sql.warehouse.dir": str(folder / "warehouse")})
    options = {**json.loads(given), "dbtable": "results"}
    handle = (
        register(spark, STORY, folder)
        .sql(STORY.cql)
        .writeStream.format("jdbc")
        .options(**options)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    handle.awaitTermination()
    found = spark.read.format("jdbc").options(**options).load().select("p0", "p1", "p2")
    parquet.write_table(found.toArrow(), folder / "found.parquet")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
