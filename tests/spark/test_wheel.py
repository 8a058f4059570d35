"""The wheel has all that a user needs: it installs and runs a query outside of the repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAIRS = """
streams:
  orders: {{format: json, path: {data}/orders, schema: "ts timestamp, order_id bigint, customer string",
           event_time: ts, watermark: 1 hour}}
  payments: {{format: json, path: {data}/payments, schema: "ts timestamp, order_id bigint, method string",
             event_time: ts, watermark: 1 hour}}
query: |
  SELECT o.order_id, p.method FROM orders [RANGE 10 MINUTES] AS o, payments [RANGE 5 MINUTES] AS p
  WHERE o.order_id = p.order_id
sink: {{format: parquet, path: out}}
checkpoint: checkpoint
spark: {{master: "local[2]"}}
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel of this repository was installed into."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "-q", "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    built = subprocess.run(build, capture_output=True, text=True, timeout=300, check=False)
    if "hatchling" in built.stderr:
        pytest.skip("hatchling, which builds the wheel, cannot be had here")
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("anabranch-*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        (metadata,) = (content.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    assert "anabranch/py.typed" in names
    assert any(name.startswith("anabranch/console/page/") and name.endswith(".html") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"anabranch"}
    needed = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line]
    core = {re.split(r"[<>=]", line.split()[1])[0] for line in needed}
    assert core == {"pyarrow", "numpy", "numba", "pyyaml", "rich"}
    target = folder / "site"
    install = ["install", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "-q", *install], check=True, timeout=300)
    return target


def anabranch(installed: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        [sys.executable, "-m", "anabranch", *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.xdist_group("drivers of their own")
def test_the_wheel_runs_a_query_outside_of_the_repository(installed: Path, tmp_path: Path) -> None:
    where = "import anabranch; print(anabranch.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    found = subprocess.run([sys.executable, "-c", where], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert found.stdout.startswith(str(installed))
    (tmp_path / "query.yaml").write_text(PAIRS.format(data=ROOT / "examples" / "data"))
    assert "plan (" in anabranch(installed, tmp_path, "explain", "query.yaml").stdout
    done = anabranch(installed, tmp_path, "run", "query.yaml", "--log", "json", "--report", "report.json")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [event["event"] for event in events if event["event"] in ("started", "ended")] == ["started", "ended"]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["rows_out"] > 0
    assert report["late_rows"] == 0
    assert sum(event["rowsOut"] for event in events if event["event"] == "batch") == report["rows_out"]
