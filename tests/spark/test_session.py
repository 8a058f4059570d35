from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError

from anabranch.errors import HostError
from anabranch.spark import session
from anabranch.spark.session import (
    local_session,
    open_session,
    recommended_configuration,
    refuse_speculation,
    require_java,
)


def java_home(folder: Path, script: str) -> Path:
    """A folder with a `java` of our own in it."""
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.parametrize(
    ("printed", "version"), [('openjdk version "21" 2023-09-19', 21), ('java version "17.0.9"', 17)]
)
def test_a_new_java_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, version: int) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path, f"echo '{printed}' >&2")))
    assert require_java() == version


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'java version \"1.8.0_392\"' >&2", "is of version 8"),
        ("echo hello", "does not print its version"),
        ("exit 3", "does not run"),
    ],
)
def test_an_old_or_broken_java_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path, script)))
    with pytest.raises(HostError, match=message) as caught:
        require_java()
    assert "Java 17" in caught.value.hint


def test_a_missing_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="java was not found"):
        require_java()


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (Py4JError("An error\n: java.net.BindException: in use\n\tat java.base/x"), "java.net.BindException: in use"),
        (
            PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited"),
            "[JAVA_GATEWAY_EXITED] Java gateway",
        ),
    ],
)
def test_a_spark_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch, error: Exception, detail: str) -> None:
    builder = Mock()
    builder.master.return_value = builder.config.return_value = builder
    builder.getOrCreate.side_effect = error
    monkeypatch.setattr(session, "SparkSession", Mock(builder=builder))
    with pytest.raises(HostError, match=r"Spark does not start on master 'local\[2\]'") as caught:
        local_session(2)
    assert caught.value.detail.startswith(detail)
    assert "ANABRANCH_VERBOSE" in caught.value.hint


@pytest.mark.parametrize(
    ("master", "tasks"),
    [("local", 1), ("local[3]", 3), ("local[3, 2]", 3), ("local[*]", os.cpu_count()), ("local-cluster[2,3,1024]", 6)],
)
def test_a_master_says_how_many_tasks_run_at_once(monkeypatch: pytest.MonkeyPatch, master: str, tasks: int) -> None:
    builder = Mock()
    builder.master.return_value = builder.config.return_value = builder
    monkeypatch.setattr(session, "SparkSession", Mock(builder=builder))
    open_session(master)
    builder.config.assert_any_call("spark.sql.shuffle.partitions", str(tasks))


def test_a_missing_pyspark_is_named() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import anabranch\n"
        "try: anabranch.Session\n"
        "except anabranch.errors.HostError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "pyspark is not installed",
        "hint: in a clone of the repository: pip install '.[spark]'",
    ]


def test_recommended_settings_are_texts_for_spark() -> None:
    assert all(key.startswith("spark.") and value for key, value in recommended_configuration().items())


@pytest.mark.parametrize("written", ["true", "TRUE"])
def test_a_session_that_speculates_is_refused(written: str) -> None:
    spark = Mock()
    spark.conf.get = lambda key, default: {"spark.speculation": written}.get(key, default)
    with pytest.raises(HostError, match=r"spark\.speculation"):
        refuse_speculation(spark)
    spark.conf.get = lambda key, default: default
    refuse_speculation(spark)
