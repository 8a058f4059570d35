"""`anabranch run` under a service manager: SIGTERM ends it like Ctrl-C, with its report; nothing is left behind.

Other commands change its queries meanwhile: `anabranch add` and `remove`; with SIGHUP it reads its spec anew.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("drivers of their own")]

SPEC = """
streams:
  a: {{format: parquet, path: {folder}/a, schema: "ts timestamp, k bigint", event_time: ts, watermark: 1 second}}
  b: {{format: parquet, path: {folder}/b, schema: "ts timestamp, k bigint", event_time: ts, watermark: 1 second}}
query: SELECT a.k AS k FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS] WHERE a.k = b.k
sink: {{format: parquet, path: {folder}/out}}
checkpoint: {folder}/checkpoint
trigger: 1 second
slots: 1
"""
ONE = "SELECT a.k AS k FROM a [NOW]"
TAIL = "checkpoint: {folder}/checkpoint\ntrigger: 1 second\nslots: 1"


def test_sigterm_ends_a_run_with_its_report_and_without_leftovers(tmp_path: Path) -> None:
    rows = pa.table({"ts": pa.array([1_700_000_000_000_000], pa.timestamp("us", "UTC")), "k": [7]})
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        parquet.write_table(rows, tmp_path / name / "0.parquet")
    (tmp_path / "spec.yaml").write_text(SPEC.format(folder=tmp_path))
    hot, report = tmp_path / "hot", tmp_path / "report.json"
    hot.mkdir()
    command = [sys.executable, "-m", "anabranch", "run", str(tmp_path / "spec.yaml"), "--report", str(report)]
    environment = {**os.environ, "ANABRANCH_HOT_FOLDER": str(hot)}
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert running.stderr is not None
    said, is_told = [], False
    for line in running.stderr:
        said.append(line)
        # On a busy machine the line comes again before the end; a second signal would end the run at once.
        if line.startswith("batch 0") and not is_told:
            running.send_signal(signal.SIGTERM)
            is_told = True
    assert running.wait() == 0, "".join(said)
    assert json.loads(report.read_text())["rows_out"] == 1
    assert any(line.startswith("1 row -> ") for line in said)
    assert not [path for path in hot.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("number", "is_for_all"), [(signal.SIGTERM, False), (signal.SIGINT, True), (signal.SIGTERM, True)]
)
def test_a_signal_ends_a_busy_run_quietly(tmp_path: Path, number: signal.Signals, *, is_for_all: bool) -> None:
    """To the process, or to all of its group, as a terminal sends it; the JVM then ends, too."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for second in range(60):
            times = pa.array([(1_700_000_000 + second) * 1_000_000], pa.timestamp("us", "UTC"))
            parquet.write_table(pa.table({"ts": times, "k": [second]}), tmp_path / name / f"{second:02d}.parquet")
            os.utime(tmp_path / name / f"{second:02d}.parquet", (1_700_000_000 + second,) * 2)
    spec = SPEC.format(folder=tmp_path).replace(
        "watermark: 1 second", "watermark: 1 second, options: {maxFilesPerTrigger: 1}"
    )
    (tmp_path / "spec.yaml").write_text(spec.replace("trigger: 1 second", "trigger: 0 seconds"))
    command = [sys.executable, "-m", "anabranch", "run", str(tmp_path / "spec.yaml"), "--log", "json"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert running.stderr is not None
    said: list[dict[str, object]] = []
    for line in running.stderr:
        said.append(json.loads(line))
        if said[-1]["event"] == "batch" and sum(each["event"] == "batch" for each in said) == 1:
            (os.killpg if is_for_all else os.kill)(running.pid, number)
    assert running.wait() == 0, said
    assert [each["event"] for each in said if each["event"] in ("failed", "error", "ended")] == ["ended"]
    assert said[-1]["failed"] is False
    (tmp_path / "spec.yaml").write_text(spec.replace("trigger: 1 second", "trigger: available_now"))
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    found = [key for file in (tmp_path / "out").glob("part-*") for key in parquet.read_table(file)["k"].to_pylist()]
    assert sorted(found) == list(range(60))


def test_queries_of_a_run_change_by_commands_and_by_a_signal(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    spec, more = tmp_path / "spec.yaml", tmp_path / "more.yaml"
    queries = {
        name: f"  {name}: {{query: '{ONE}', sink: {{format: parquet, path: {tmp_path}/{name}}}}}" for name in "xyz"
    }
    head = SPEC.format(folder=tmp_path).partition("query:")[0] + TAIL.format(folder=tmp_path)
    spec.write_text("\n".join([head, "queries:", queries["x"], ""]))
    more.write_text("\n".join(["queries:", queries["y"], ""]))
    command = [sys.executable, "-m", "anabranch"]
    running = subprocess.Popen([*command, "run", str(spec)], stderr=subprocess.PIPE, text=True)
    try:

        def asked(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run([*command, *words], capture_output=True, text=True, check=False)

        while (first := asked("remove", str(tmp_path / "checkpoint"), "nobody")).returncode == 2:
            if "no query is named 'nobody'" in first.stderr:
                break
            # Not started yet: there is no checkpoint, or nobody has it, or nobody listens.
            assert running.poll() is None, running.communicate()[1]
        added = asked("add", str(spec), str(more))
        assert added.stdout == "y joined; its answer is complete\n", added.stderr
        spec.write_text("\n".join([head, "queries:", queries["y"], queries["z"], ""]))
        running.send_signal(signal.SIGHUP)
        assert running.stderr is not None
        said = []
        for line in running.stderr:
            said.append(line.strip())
            if line.startswith("z joined"):
                break
        assert said[-2:] == ["x left", "z joined; its answer is complete"]
        rows = pa.table({"ts": pa.array([1_700_000_000_000_000], pa.timestamp("us", "UTC")), "k": [7]})
        parquet.write_table(rows, tmp_path / "a" / ".0.parquet")
        (tmp_path / "a" / ".0.parquet").rename(tmp_path / "a" / "0.parquet")
        for line in running.stderr:
            if line.startswith("batch 0"):
                break
        running.send_signal(signal.SIGTERM)
        assert running.wait() == 0
        found = {name: len(list((tmp_path / name).glob("part-*"))) for name in "xyz" if (tmp_path / name).is_dir()}
        assert {name for name, files in found.items() if files} == {"y", "z"}
    finally:
        running.kill()
        running.wait()
