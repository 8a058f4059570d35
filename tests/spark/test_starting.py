"""What makes a start quick: the archive of Spark's classes, and workers that are ready early."""

from __future__ import annotations

import gc
import importlib
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest
from pyspark.sql import SparkSession

from anabranch.spark import archive, jvm, session
from anabranch.spark.warming import environment_of_sql, warm_workers


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    for name in (archive.OFF, *jvm.SPOKEN, "SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_an_archive_that_is_there_is_mapped(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "spark.driver.extraJavaOptions"
    assert "SharedArchiveFile" not in session.recommended_configuration()[key]
    file = archive.archive_file()
    file.parent.mkdir(parents=True)
    file.touch()
    options = session.recommended_configuration()[key].split()
    assert options[: len(jvm.LAZY_COMPILER)] == [*jvm.LAZY_COMPILER]
    assert f"-XX:SharedArchiveFile={file}" in options
    monkeypatch.setenv(archive.OFF, "1")
    assert session.recommended_configuration()[key].split() == [*jvm.LAZY_COMPILER, *jvm.CLASSES, *jvm.COLLECTOR]


def test_a_collector_that_the_user_has_chosen_is_not_contradicted(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them keep the JVM from starting."""
    assert jvm.driver_options() == (*jvm.LAZY_COMPILER, *jvm.CLASSES, *jvm.COLLECTOR)
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Xss4m -XX:+UseZGC")
    assert jvm.driver_options() == (*jvm.LAZY_COMPILER, *jvm.CLASSES)
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Xss4m")
    assert jvm.driver_options() == (*jvm.LAZY_COMPILER, *jvm.CLASSES, *jvm.COLLECTOR)
    monkeypatch.setenv("SPARK_CONF_DIR", str(environment))
    assert jvm.driver_options() == (*jvm.LAZY_COMPILER, *jvm.CLASSES, *jvm.COLLECTOR)
    (environment / "spark-defaults.conf").write_text("spark.driver.defaultJavaOptions  -XX:+UseG1GC\n")
    assert jvm.driver_options() == (*jvm.LAZY_COMPILER, *jvm.CLASSES)


def test_another_java_has_another_archive(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = archive.archive_file()
    monkeypatch.setenv("JAVA_HOME", str(environment / "another"))
    assert archive.archive_file() != file


def test_the_workers_that_were_warmed_are_those_that_sql_uses(spark: SparkSession) -> None:
    """Spark keeps a daemon for each environment; one with another environment would be warmed for nothing."""

    gateway = spark.sparkContext._gateway
    assert gateway is not None

    def daemons() -> int:
        found = 0
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                found += parent == gateway.proc.pid and b"daemon" in (process / "cmdline").read_bytes()
        return found

    spark.range(0, 1, 1, 1).mapInArrow(lambda batches: batches, "id bigint").collect()
    before = daemons()
    assert before
    warm_workers(spark).join()
    assert daemons() == before
    assert "SPARK_SIMPLIFIED_TRACEBACK" not in spark.sparkContext.environment


def test_workers_that_are_warmed_twice_at_once_leave_the_environment_as_it_was(spark: SparkSession) -> None:
    """The later one put back what the earlier one had made of it."""
    entered, leaves = Event(), Event()

    def second() -> None:
        with environment_of_sql(spark):
            entered.set()
            leaves.wait()

    thread = Thread(target=second)
    with environment_of_sql(spark):
        thread.start()
        entered.wait(0.5)  # it has to wait, so this is in vain
    leaves.set()
    thread.join()
    assert "SPARK_SIMPLIFIED_TRACEBACK" not in spark.sparkContext.environment


@pytest.mark.parametrize("name", ["anabranch.engine.engine", "pyspark.worker", "pandas"])
def test_workers_do_not_look_for_garbage_in_what_they_were_born_with(spark: SparkSession, name: str) -> None:
    """After every task a worker collects garbage, which took as long as the task while the engine was part of it.

    And later a quarter of it, because pandas was not: pyarrow imports it in the first task, unless it is there.
    """

    def is_looked_through(_: int) -> bool:
        module = vars(importlib.import_module(name))
        return any(each is module for each in gc.get_objects())

    assert spark.sparkContext.parallelize([0], 1).map(is_looked_through).collect() == [False]
