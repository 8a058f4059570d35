from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from anabranch.spark.internals.patches.local_files import CLASS, replace_local_files

MODES = [0o644, 0o600, 0o755, 0o777, 0o070, 0o007, 0o000, 0o1777]


def settings_of(spark: SparkSession) -> Any:
    java = spark.sparkContext._jsc
    assert java is not None
    return java.hadoopConfiguration()


def files_of(spark: SparkSession, folder: Path) -> Any:
    jvm: Any = spark.sparkContext._jvm
    return jvm.org.apache.hadoop.fs.Path(f"file://{folder}").getFileSystem(settings_of(spark))


def all_settings(spark: SparkSession) -> dict[str, str]:
    found, entries = {}, settings_of(spark).iterator()
    while entries.hasNext():
        entry = entries.next()
        found[entry.getKey()] = entry.getValue()
    return found


def test_permissions_are_those_of_chmod_and_nothing_is_forked_for_them(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark.sparkContext._jvm
    replace_local_files(spark)
    files = files_of(spark, tmp_path)
    assert files.getRaw().getClass().getName() == CLASS
    target = tmp_path / "a file with 'quotes' and ünicode"
    files.create(jvm.org.apache.hadoop.fs.Path(f"file://{target}"), True).close()
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    for mode in MODES:
        files.setPermission(
            jvm.org.apache.hadoop.fs.Path(f"file://{target}"),
            jvm.org.apache.hadoop.fs.permission.FsPermission(f"{mode:03o}"),
        )
        assert stat.S_IMODE(target.stat().st_mode) == mode


def test_a_file_that_is_not_there_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark.sparkContext._jvm
    replace_local_files(spark)
    missing = jvm.org.apache.hadoop.fs.Path(f"file://{tmp_path}/missing")
    with pytest.raises(Exception, match="NoSuchFile"):
        files_of(spark, tmp_path).setPermission(missing, jvm.org.apache.hadoop.fs.permission.FsPermission("600"))


def test_every_setting_stays_and_only_its_source_is_forgotten(spark: SparkSession) -> None:
    before = all_settings(spark)
    replace_local_files(spark)
    assert all_settings(spark) == before
    assert settings_of(spark).getPropertySources("fs.permissions.umask-mode") is None


def test_easing_again_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    replace_local_files(spark)
    raw = files_of(spark, tmp_path).getRaw()
    replace_local_files(spark)
    assert files_of(spark, tmp_path).getRaw().equals(raw)


def test_where_hadoop_is_other_than_expected_all_stays_as_it_was(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.spark.internals.patches.local_files.HADOOPS_OWN", CLASS)
    monkeypatch.setattr("anabranch.spark.internals.patches.local_files.SOURCE", "no Java")
    replace_local_files(spark)
    files_of(spark, tmp_path).mkdirs(spark.sparkContext._jvm.org.apache.hadoop.fs.Path(f"file://{tmp_path}/made"))  # type: ignore[union-attr]
    assert (tmp_path / "made").is_dir()


FOREIGN = """
import sys
from pyspark.sql import SparkSession
import anabranch
from anabranch.spark.internals.driver import has_context, hush_updates, stop_with_jvm
from anabranch.spark.internals.patches.local_files import local_files

assert not has_context()
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config(
    "spark.sql.session.timeZone", "UTC").getOrCreate()
session = anabranch.Session(spark)
frame = spark.readStream.schema("ts timestamp, k bigint").json(sys.argv[1] + "/in")
session.register("s", frame, event_time="ts", watermark="0 seconds")
writer = session.sql("SELECT a.k AS k FROM s [RANGE 1 SECONDS] AS a").writeStream.format("memory").queryName("out")
writer.option("checkpointLocation", sys.argv[1] + "/checkpoint").trigger(availableNow=True).start().awaitTermination()
assert spark.table("out").count() == 1
assert local_files(spark) is None, "the JVM of the user was patched"
context = spark.sparkContext
process = context._gateway.proc
hush_updates(spark)
assert context._accumulatorServer.handle_error(None, None) is None
stop_with_jvm(spark)
assert process.poll() is not None
"""


@pytest.mark.spark
@pytest.mark.xdist_group("drivers of their own")
def test_a_session_of_the_user_is_not_patched_and_stops_with_its_jvm(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.json").write_text('{"ts": "2026-01-01T00:00:00Z", "k": 1}\n')
    command = [sys.executable, "-c", FOREIGN, str(tmp_path)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
