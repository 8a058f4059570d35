"""The generated streams have the shape the figures assume, and the batch answer is the window join's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import polars_join, workloads
from benchmarks.answer import Digest, digest_of, expected, found_in
from benchmarks.flink import insert, whole_streams
from benchmarks.user_workloads import auctions, band, many, wide
from benchmarks.workloads import Workload, held, steady, tables, w3, w3x, w4, write_file, written

WORKLOADS = (w3(240, 6), w4(260, 4), w3x(240, 3), steady(30, 6), held(60, 3))
DENSE_W4 = replace(w4(104, 4), span=60 * workloads.SECOND, domain=2)
SMALL = (w3(90, 6), w3(90, 6, form="csv"), DENSE_W4, w3x(90, 3), steady(15, 6))
LONG = 300 * workloads.SECOND
USERS = (
    auctions(2, 200, 4, window=LONG),
    auctions(3, 200, 3, window=LONG),
    auctions(4, 100, 3, window=LONG),
    auctions(3, 200, 3, text_keys=True, window=LONG),
    wide(60, 3),
    band(120, 3),
    many(4, 40, 2),
)


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "DATA", tmp_path)


def naive(workload: Workload) -> Digest:
    """Every combination of rows, tried."""
    streams = [pa.concat_tables([batch[s.name] for batch in tables(workload)]) for s in workload.streams]
    rows = [
        [{**row, "t": t} for row, t in zip(table.to_pylist(), table["ts"].cast(pa.int64()).to_pylist(), strict=True)]
        for table in streams
    ]
    found = [
        tuple(
            len(combination[i][column]) if (i, column) in workload.shown else combination[i][column]
            for i, column in workload.outputs
        )
        for combination in product(*rows)
        if max(row["t"] for row in combination) - min(row["t"] for row in combination) <= workload.window
        and all(combination[e.left][e.left_key] == combination[e.right][e.right_key] for e in workload.equalities)
        and all(
            abs(combination[b.left][b.left_column] - combination[b.right][b.right_column]) <= b.width
            for b in workload.bands
        )
    ]
    return Digest(len(found), tuple(sum(column) for column in zip(*found, strict=True)) or (0,) * len(workload.outputs))


@pytest.mark.parametrize("workload", SMALL + USERS, ids=lambda one: one.name)
def test_the_batch_answer_is_that_of_trying_every_combination(workload: Workload) -> None:
    assert expected(workload) == naive(workload)
    assert expected(workload).count > 0


@pytest.mark.parametrize("workload", WORKLOADS + USERS, ids=lambda one: one.name)
def test_files_hold_the_rows_of_the_tables_in_order_of_time(workload: Workload) -> None:
    directory = written(workload)
    for stream in workload.streams:
        files = sorted((directory / stream.name).iterdir(), key=lambda file: file.stat().st_mtime)
        assert files == sorted(files)
        assert len(files) == workload.batches
        whole = pa.concat_tables([pq.read_table(file) for file in files])
        assert whole.num_rows == stream.rows
        times = whole["ts"].cast(pa.int64()).to_pylist()
        assert times == sorted(times)
        for before, after in pairwise(files):
            last, first = pq.read_table(before)["ts"], pq.read_table(after)["ts"]
            assert not (len(last) and len(first)) or last[-1].as_py() < first[0].as_py()


@pytest.mark.parametrize("make", [w3, w4, w3x])
def test_output_is_about_as_large_as_the_input(make: Callable[[int, int], Workload]) -> None:
    workload = make(60_000, 4)
    assert expected(workload).count == pytest.approx(workload.rows, rel=0.1)


def test_every_bid_meets_its_auction_and_half_of_them_a_hot_one() -> None:
    workload = auctions(2, 200_000, 4)
    bids = pa.concat_tables([batch["bids"] for batch in tables(workload)])
    assert expected(workload).count == pytest.approx(len(bids), rel=0.05)
    is_hot = [auction % 100 == 0 for auction in bids["auction"].to_pylist()]
    assert sum(is_hot) / len(bids) == pytest.approx(0.5, abs=0.05)


def test_a_band_gives_about_one_result_per_row_and_texts_have_their_lengths() -> None:
    workload = band(20_000, 4)
    assert expected(workload).count == pytest.approx(workload.rows, rel=0.1)
    bodies = next(tables(wide(400, 2)))["s0"]["body"].to_pylist()
    assert all(900 <= len(body) <= 1_100 for body in bodies)
    assert len(set(bodies)) == len(bodies)


def test_output_stays_the_same_when_the_window_grows() -> None:
    short, long = w3(60_000, 4), w3(60_000, 4, window=300 * workloads.SECOND)
    assert long.domain > 20 * short.domain
    assert expected(long).count == pytest.approx(expected(short).count, rel=0.1)


def test_a_workload_is_the_same_whenever_it_is_made() -> None:
    first, second = (next(tables(w3(240, 6))) for _ in range(2))
    assert first["s1"].equals(second["s1"])
    assert not first["s0"]["k"].equals(first["s1"]["k"])


@pytest.mark.parametrize("form", polars_join.FORMS.values(), ids=polars_join.FORMS.keys())
def test_the_polars_loop_finds_every_result_once(form: polars_join.Form) -> None:
    workload = w3(3_000, 10)
    old, found = polars_join.no_rows(), []
    for batch in tables(workload):
        new = polars_join.frames(batch)
        found.append(form(workload, old, new))
        old = polars_join.advance(workload, old, new)
    assert digest_of(pl.concat(found).to_arrow()) == expected(workload)
    assert max(len(frame) for frame in old) < 1_000


def test_the_polars_batch_finds_every_result_once() -> None:
    workload = w3(3_000, 1)
    (batch,) = tables(workload)
    results = polars_join.batch_join(workload, polars_join.frames(batch))
    assert digest_of(results.to_arrow()) == expected(workload)


def test_a_missing_row_changes_the_digest(tmp_path: Path) -> None:
    workload = w3(30, 1)
    results = pa.table({"p0": [1, 2], "p1": [3, 4], "p2": [5, 6]})
    write_file(tmp_path / "out" / "batch=0", 0, results)
    assert found_in(workload, tmp_path / "out") == Digest(2, (3, 7, 11))
    assert found_in(workload, tmp_path / "nothing") == Digest(0, (0, 0, 0))


def test_in_csv_times_are_milliseconds_and_flink_reads_one_file_a_stream(tmp_path: Path) -> None:
    workload = w3(300, 3, span=30 * workloads.SECOND, form="csv")
    rows = pa.concat_tables(batch["s1"] for batch in tables(workload))
    times, *others = (rows[name].cast(pa.int64()).to_pylist() for name in ("ts", "k", "p"))
    paths = whole_streams(workload, written(workload), tmp_path / "whole")
    assert [path.name for path in paths] == ["s0.csv", "s1.csv", "s2.csv"]
    expected_lines = [f"{time // 1000},{k},{p}" for time, k, p in zip(times, *others, strict=True)]
    assert paths[1].read_text().splitlines() == expected_lines
    assert "ABS(millis2 - millis1) <= 10000" in insert(workload)
