from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from anabranch.errors import HostError
from anabranch.host.spark.session import recommended_configuration, refuse_speculation, require_java


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
        ("echo hello", "does not tell its version"),
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
        "hint: install the package with its extra: pip install 'anabranch[spark]'",
    ]


def test_recommended_settings_are_texts_for_spark() -> None:
    assert all(key.startswith("spark.") and value for key, value in recommended_configuration().items())


def test_a_session_that_speculates_is_refused() -> None:
    spark = Mock()
    spark.conf.get = lambda key, default: {"spark.speculation": "true"}.get(key, default)
    with pytest.raises(HostError, match=r"spark\.speculation"):
        refuse_speculation(spark)
    spark.conf.get = lambda key, default: default
    refuse_speculation(spark)
