"""A live feed links every file in its order, and a result is dated by the last file that it needs."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import live, workloads
from benchmarks.answer import batch_sql
from benchmarks.job import Job, Live, System
from benchmarks.latency import feed
from benchmarks.workloads import Workload, first_rows, steady, tables, written

FEED = steady(60, 4, batch=live.TICK)


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "DATA", tmp_path / "data")


def job(folder: Path, workload: Workload = FEED, system: System = "ours") -> Job:
    told = Live(folder / "started", folder / "fed")
    return Job(system, workload, folder / "in", folder / "out", folder / "checkpoint", folder / "hot", live=told)


@pytest.mark.parametrize("workload", [FEED, workloads.w3(90, 6)])
def test_the_first_rows_are_where_the_files_begin(workload: Workload) -> None:
    batches = list(tables(workload))
    for i, stream in enumerate(workload.streams):
        begins = list(accumulate((len(batch[stream.name]) for batch in batches), initial=0))
        assert first_rows(workload, i).tolist() == begins[:-1]
        assert begins[-1] == stream.rows


def test_a_feed_has_its_rate_and_a_file_a_tick() -> None:
    workload = feed(8_000, 5, "parquet")
    assert workload.batches == 5 * workloads.SECOND // live.TICK
    assert workload.rows == pytest.approx(8_000 * 5, rel=0.01)
    assert workload.span == 5 * workloads.SECOND


def test_the_feeder_links_every_file_and_says_when_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "TICK", 0)
    asked = job(tmp_path)
    assert asked.live is not None
    for stream in FEED.streams:
        (asked.source / stream.name).mkdir(parents=True)
    feeder = live.Feeder(written(FEED), asked, asked.live)
    asked.live.started.touch()
    feeder.run()
    assert asked.live.fed.exists()
    assert len(feeder.arrivals) == FEED.batches
    assert feeder.arrivals == sorted(feeder.arrivals)
    for stream in FEED.streams:
        fed = {path.name for path in (asked.source / stream.name).iterdir()}
        assert fed == {path.name for path in FEED.path(stream).iterdir()}


def test_a_feeder_that_is_stopped_says_nothing(tmp_path: Path) -> None:
    asked = job(tmp_path)
    assert asked.live is not None
    feeder = live.Feeder(written(FEED), asked, asked.live)
    feeder.stopped.set()
    feeder.run()
    assert not asked.live.fed.exists()


def test_a_result_waits_from_the_arrival_of_its_last_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    firsts = [first_rows(FEED, i) for i in range(3)]
    result = tmp_path / "part.parquet"
    # Rows of files 0, 2 and 1; all of file 0; the last row before a cut.
    needed = [(0, 2, 1), (0, 0, 0)]
    rows = [[int(firsts[i][tick]) for i, tick in enumerate(ticks)] for ticks in needed]
    rows.append([int(firsts[i][3]) - 1 for i in range(3)])
    pq.write_table(pa.table({f"p{i}": [row[i] for row in rows] for i in range(3)}), result)
    monkeypatch.setattr(live, "visible", lambda _: [(result, 100.0)])
    latencies, ticks = live.dated(job(tmp_path), [10.0, 20.0, 30.0, 40.0])
    assert ticks.tolist() == [2, 0, 2]
    assert latencies.tolist() == [70.0, 90.0, 70.0]


def test_results_of_the_warm_up_do_not_count() -> None:
    found = live.LiveRun(None, np.array([9.0, 1.0, 2.0]), np.array([0, 4, 8]))  # type: ignore[arg-type]
    assert found.after(1.0).tolist() == [1.0, 2.0]
    assert found.after(1.25).tolist() == [2.0]
    assert live.percentile(found.after(1.0), 50) == 1.5
    with pytest.raises(ValueError, match="no result"):
        live.percentile(found.after(3.0), 99)


def test_a_file_of_sparks_sink_is_visible_when_its_log_first_names_it(tmp_path: Path) -> None:
    asked = job(tmp_path)
    log = asked.output / live.SINK_LOG
    log.mkdir(parents=True)
    lines = [json.dumps({"path": f"file:///out/part-{i}.parquet"}) for i in range(11)]
    for entry, held in (("0", lines[:1]), ("9.compact", lines[:10]), ("10", lines[10:])):
        (log / entry).write_text("\n".join(["v1", *held]))
    found = dict(live.visible(asked))
    assert len(found) == 11
    assert found[Path("/out/part-0.parquet")] == (log / "0").stat().st_ctime
    assert found[Path("/out/part-9.parquet")] == (log / "9.compact").stat().st_ctime
    assert found[Path("/out/part-10.parquet")] == (log / "10").stat().st_ctime


def test_files_that_are_not_yet_published_are_not_visible(tmp_path: Path) -> None:
    asked = job(tmp_path)
    for name in ("part-1.parquet", ".staging/part-2.parquet", "_temporary/part-3.parquet"):
        (asked.output / name).parent.mkdir(parents=True, exist_ok=True)
        (asked.output / name).touch()
    assert [path.name for path, _ in live.visible(asked)] == ["part-1.parquet"]


def test_a_feed_gives_about_one_result_for_a_row() -> None:
    duckdb = pytest.importorskip("duckdb")
    workload = feed(2_000, 30, "parquet")
    written(workload)
    sources = [f"read_parquet('{workload.path(stream)}/*.parquet')" for stream in workload.streams]
    ((count,),) = duckdb.sql(f"SELECT count(*) FROM ({batch_sql(workload, sources)})").fetchall()
    assert count == pytest.approx(workload.rows, rel=0.35)
