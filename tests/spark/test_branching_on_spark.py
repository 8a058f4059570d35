"""A branch from the shell: it leaves the original alone, compares, and takes over; together each result comes once."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from anabranch.checkpoint.examine import contents

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("drivers of their own")]

SPEC = """
streams:
  a:
    {{format: parquet, path: a, schema: "ts timestamp, k bigint, p bigint", event_time: ts, watermark: 1 second,
      options: {{maxFilesPerTrigger: {files}}}}}
  b:
    {{format: parquet, path: b, schema: "ts timestamp, k bigint, p bigint", event_time: ts, watermark: 1 second,
      options: {{maxFilesPerTrigger: {files}}}}}
query: {query}
sink: {{format: parquet, path: out}}
checkpoint: {checkpoint}
slots: 2
spark: {{master: "local[2]"}}
"""
OLD = "SELECT a.k AS k, a.p AS p FROM a [RANGE 3 SECONDS], b [RANGE 3 SECONDS] WHERE a.k = b.k"
NEW = OLD.replace("a.p AS p", "a.p AS p, b.p AS q") + " AND a.p > 3"
START = 1_700_000_000


def feed(folder: Path, first: int, last: int) -> None:
    """A row of each stream in each second; row n of both streams has the key n % 3."""
    for name in "ab":
        (folder / name).mkdir(exist_ok=True)
        times = pa.array([(START + second) * 1_000_000 for second in range(first, last)], pa.timestamp("us", "UTC"))
        rows = {"ts": times, "k": [second % 3 for second in range(first, last)], "p": list(range(first, last))}
        parquet.write_table(pa.table(rows), folder / name / f"{first}.parquet")


def command(folder: Path, *words: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "anabranch", *words], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def expected(first: int, last: int, of: int, *, is_new: bool) -> Counter[tuple[int, ...]]:
    pairs = [(a, b) for a in range(of) for b in range(of) if a % 3 == b % 3 and abs(a - b) <= 3]
    found = [(a, b) for a, b in pairs if first <= max(a, b) < last]
    return Counter((a % 3, a, b) if is_new else (a % 3, a) for a, b in found if not is_new or a > 3)


def test_a_branch_is_compared_and_takes_over(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text(SPEC.format(query=OLD, checkpoint="old", files=1))
    (tmp_path / "new.yaml").write_text(SPEC.format(query=NEW, checkpoint="new", files=9))
    (tmp_path / "same.yaml").write_text(SPEC.format(query=OLD, checkpoint="new", files=9))
    feed(tmp_path, 0, 10)
    command(tmp_path, "run", "old.yaml")
    assert "no query of 'same.yaml' differs" in command(tmp_path, "branch", "old", "same.yaml", status=2)
    before = contents(str(tmp_path / "old"))
    # The branch reads these rows in one batch, the original in two. So both write into `out` in a batch 2.
    feed(tmp_path, 10, 15)
    feed(tmp_path, 15, 20)
    said = command(tmp_path, "branch", "old", "new.yaml")
    assert "compared from event time 2023-11-14 22:13:32.000001+00:00 on" in said
    # Row 9 is the last that the copy has, without p of b; so results that may contain it are not compared.
    assert "the query: 21 results before, 21 after; 21 equal in k, p, 0 only before, 0 only after" in said
    assert "s of the engine for a million rows" not in said  # of one batch, which loads kernels
    assert contents(str(tmp_path / "old")) == before
    took = command(tmp_path, "branch", "old", "new.yaml", "--take-over")
    assert "answers until event time 2023-11-14 22:13:39.000001+00:00" in took
    assert "there is no branch" in command(tmp_path, "branch", "old", "new.yaml", "--discard", status=2)
    feed(tmp_path, 20, 30)
    command(tmp_path, "run", "old.yaml")
    command(tmp_path, "run", "new.yaml")
    found: Counter[tuple[int, ...]] = Counter()
    for file in (tmp_path / "out").glob("part-*"):
        found.update(tuple(row.values()) for row in parquet.read_table(file).to_pylist())
    assert found == expected(0, 20, 30, is_new=False) + expected(20, 30, 30, is_new=True)
