"""A driver of a set is killed in any stage of a batch, and at any moment of a change of its queries."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from anabranch.api import QueryHandle, Session
from anabranch.errors import ForeignCheckpoint
from anabranch.run.store import Store
from tests.spark import crash_set_driver
from tests.spark.crash_set_driver import ALL, BATCHES, OF_CHANGES, OF_STAGES, OVER, PAIRS, prepared, start, writer
from tests.spark.stories import FEEDS, cut, feed
from tests.support.oracle import Answer, comparable, describe_difference, rows_as_multiset, timed_results

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("drivers of their own")]


@pytest.mark.parametrize("moment", [*OF_STAGES, *OF_CHANGES])
def test_a_killed_driver_of_a_set_loses_and_repeats_nothing(moment: str, spark: SparkSession, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    command = [sys.executable, str(Path(crash_set_driver.__file__)), str(tmp_path), moment]
    done = subprocess.run(
        command, env=environment, start_new_session=True, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    session = prepared(spark, tmp_path)
    handle, is_new = restarted(session, tmp_path)
    try:
        if moment in OF_CHANGES:
            assert is_new == (moment not in list(OF_CHANGES)[:3])
        if not is_new:
            handle.add("over", writer(session, tmp_path, "over"))
        fed = len([path for path in (tmp_path / FEEDS).iterdir() if path.suffix == ".parquet"])
        for number, batch in enumerate(cut(PAIRS.tables(), BATCHES)):
            if number >= fed:
                feed(tmp_path, batch)
                handle.processAllAvailable()
        handle.processAllAvailable()
        manifest = Store(str(tmp_path / "checkpoint")).latest()
        assert manifest is not None
        assert manifest.batch == BATCHES - 1
        for name, text in (("pairs", PAIRS.cql), ("over", OVER)):
            results = timed_results(session.sql(text).compiled.query, PAIRS.tables())
            since = manifest.since.get(name)
            expected: Answer = Counter(
                tuple(map(comparable, values)) for time, values in results if since is None or time >= since
            )
            assert expected
            files = sorted((tmp_path / name).glob("part-*.parquet"))
            found = sum((rows_as_multiset(parquet.read_table(file)) for file in files), Counter())
            assert not describe_difference(expected, found)
    finally:
        handle.stop()


def restarted(session: Session, folder: Path) -> tuple[QueryHandle, bool]:
    """The queries from their checkpoint, and whether it is that of the new set."""
    try:
        return start(session, folder, ALL), True
    except ForeignCheckpoint:
        return start(session, folder, ("pairs",)), False
