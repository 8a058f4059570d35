"""`anabranch run` under a service manager: SIGTERM ends it like Ctrl-C, with its report; nothing is left behind."""

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
    said = []
    for line in running.stderr:
        said.append(line)
        if line.startswith("batch 0"):
            running.send_signal(signal.SIGTERM)
    assert running.wait() == 0, "".join(said)
    assert json.loads(report.read_text())["rows_out"] == 1
    assert any(line.startswith("1 row -> ") for line in said)
    assert not [path for path in hot.rglob("*") if path.is_file()]
