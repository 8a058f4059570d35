"""What a user sees of Spark's own words: nothing that is said at every start, and every failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from anabranch.spark.quiet import VERBOSE, hushed, is_usual, is_verbose

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "orders.yaml"


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties",
        'Setting default log level to "WARN".',
        "To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).",
        "26/11/16 05:17:04 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform",
        'Setting Spark log level to "ERROR".',
        "\tat org.apache.spark.SparkContext.<init>(SparkContext.scala:517)",
    ],
)
def test_what_is_said_at_every_start_is_usual(line: str) -> None:
    assert is_usual(line.encode())


@pytest.mark.parametrize(
    "line",
    [
        "26/11/16 05:20:42 ERROR SparkContext: Error initializing SparkContext.",
        "Error: Could not create the Java Virtual Machine.",
        'Exception in thread "main" org.apache.spark.SparkException: Master must either be yarn or start with spark',
        "# A fatal error has been detected by the Java Runtime Environment:",
    ],
)
def test_failures_are_not(line: str) -> None:
    assert not is_usual(line.encode())


def test_a_process_started_inside_is_heard_without_the_usual_lines() -> None:
    child = "import sys; print('Setting default log level to WARN', 'no room', sep=chr(10), file=sys.stderr)"
    program = (
        "import subprocess, sys, threading\n"
        "from anabranch.spark.quiet import hushed\n"
        f"with hushed(): done = subprocess.run([sys.executable, '-c', {child!r}])\n"
        "[t.join() for t in threading.enumerate() if t.name == 'anabranch-hushed']\n"  # it may have ended already
        "print('after', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["no room", "after"]


def test_standard_error_is_as_before_after_a_failure() -> None:
    before = os.fstat(2)
    with pytest.raises(ValueError, match="inside"), hushed():
        raise ValueError("inside")
    assert os.path.samestat(before, os.fstat(2))


@pytest.mark.parametrize(("value", "verbose"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_the_environment_asks_for_the_log(monkeypatch: pytest.MonkeyPatch, value: str | None, *, verbose: bool) -> None:
    monkeypatch.delenv(VERBOSE, raising=False)
    if value is not None:
        monkeypatch.setenv(VERBOSE, value)
    assert is_verbose() is verbose


@pytest.mark.spark
@pytest.mark.xdist_group("drivers of their own")
def test_a_run_from_the_shell_shows_its_own_lines_only(tmp_path: Path) -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    for stream in document["streams"].values():
        stream["path"] = str(EXAMPLE.parent / stream["path"])
    document |= {"sink": {"format": "json", "path": "out"}, "checkpoint": "checkpoint"}
    (tmp_path / "orders.yaml").write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "anabranch", "run", "orders.yaml", "--report", "report.json"]
    settings = ["--master", "local[1]", "--conf", "spark.driver.memory=512m"]
    environment = {name: value for name, value in os.environ.items() if name != VERBOSE}
    done = subprocess.run(
        [*command, *settings],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second, *others = done.stderr.splitlines()
    assert first == "starting Spark …"
    assert second.startswith("plan ")
    assert others == [line for line in others if line.startswith(("batch", "wrote", "3 rows -> "))]
    assert json.loads((tmp_path / "report.json").read_text())["rows_out"] == 3
