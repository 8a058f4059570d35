"""The demo's data and its check; that it runs on Spark is seen in tests/host/spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from anabranch import demo


def write(folder: Path, streams: dict[str, list[pa.Table]]) -> None:
    for name, tables in streams.items():
        (folder / "streams" / name).mkdir(parents=True)
        for index, table in enumerate(tables):
            pq.write_table(table, folder / "streams" / name / f"{index}.parquet")
    (folder / "results").mkdir()


def test_no_row_of_the_demo_is_late() -> None:
    for tables in demo.generate(12, seed=3).values():
        newest = None
        for table in tables:
            times = table["ts"].cast(pa.int64())
            if newest is not None and len(times):
                assert pc.min(times).as_py() >= newest - demo.DISORDER
            newest = max(filter(None, (newest, pc.max(times).as_py())), default=None)


def test_the_same_seed_gives_the_same_streams() -> None:
    assert demo.generate(3, seed=5) == demo.generate(3, seed=5)
    assert demo.generate(3, seed=5) != demo.generate(3, seed=6)


def test_the_check_counts_what_is_missing_and_what_is_too_many(tmp_path: Path) -> None:
    write(tmp_path, demo.generate(12, seed=1))
    empty = demo.compare(tmp_path)
    assert empty.missing > 0
    assert not empty.has_passed

    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name in ("orders", "payments", "shipments"):
            connection.execute(f"CREATE VIEW {name} AS FROM '{tmp_path}/streams/{name}/*.parquet'")
        connection.execute(f"COPY ({demo.BATCH_ANSWER}) TO '{tmp_path}/results/0.parquet' (FORMAT parquet)")
    assert demo.compare(tmp_path) == demo.Check(empty.missing, 0, 0)

    whole = pq.read_table(tmp_path / "results" / "0.parquet")
    pq.write_table(whole.slice(0, 1), tmp_path / "results" / "1.parquet")
    assert demo.compare(tmp_path) == demo.Check(empty.missing + 1, 0, 1)
