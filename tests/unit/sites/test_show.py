"""The example of three sites: its files come in order, and its check can fail."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import duckdb

from examples.sites import show


def test_files_are_read_in_the_order_of_event_time(tmp_path: Path) -> None:
    """Spark reads files by their times in milliseconds, and those of equal times in any order.

    A file that is read after a newer one has nothing but late rows.
    """
    chance = Random(1)
    for second in range(30):
        show.write_second(tmp_path, second, chance)
    for stream in show.STREAMS:
        files = sorted((tmp_path / "data" / stream).glob("*.json"))
        times = [path.stat().st_mtime_ns // 1_000_000 for path in files]
        assert len(times) == 30
        assert all(one < other for one, other in pairwise(times))


def test_the_check_finds_rows_that_are_missing_or_too_many(tmp_path: Path) -> None:
    chance = Random(1)
    for second in range(6):
        show.write_second(tmp_path, second, chance)
    arguments = ("display", show.DISPLAY, (10, 5, 5), "")
    out = tmp_path / "out" / "display"
    out.mkdir(parents=True)
    timed = f"(SELECT *, epoch_us(CAST(ts AS TIMESTAMPTZ)) AS at FROM read_json('{tmp_path}/data/%s/*.json')) AS %s"
    tables = ", ".join(timed % each for each in (("flights", "fl"), ("checkins", "ci"), ("baggage", "bg")))
    newest = "greatest(fl.at, ci.at, bg.at)"
    inside = " AND ".join(f"{newest} - {name}.at <= {r}000000" for name, r in (("fl", 10), ("ci", 5), ("bg", 5)))
    answer = f"{show.DISPLAY} FROM {tables} WHERE fl.num = ci.flight AND fl.num = bg.flight AND {inside}"
    for rows, wrong in ((answer, 0), (f"{answer} OFFSET 3", 3), (f"{answer} UNION ALL ({answer} LIMIT 2)", 2)):
        duckdb.execute(f"COPY ({rows}) TO '{out}/part-0.parquet' (FORMAT parquet)")
        assert show.difference(tmp_path, *arguments) == wrong
