"""The demo's data and its check; that it runs on Spark is seen in tests/host/spark."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from anabranch.demo import drift, skew
from anabranch.demo.check import Check, compare
from anabranch.explain import Explanation
from anabranch.spec.file import load


def write(folder: Path, streams: dict[str, list[pa.Table]]) -> None:
    for name, tables in streams.items():
        (folder / "streams" / name).mkdir(parents=True)
        for index, table in enumerate(tables):
            pq.write_table(table, folder / "streams" / name / f"{index}.parquet")
    (folder / "results").mkdir()


def checked(folder: Path) -> Check:
    (check,) = compare(folder / "streams", drift.NAMES, drift.BATCH_ANSWER, folder / "results")
    return check


def test_no_row_of_the_demo_is_late() -> None:
    for tables in drift.generate(12, seed=3).values():
        newest = None
        for table in tables:
            times = table["ts"].cast(pa.int64())
            if newest is not None and len(times):
                assert pc.min(times).as_py() >= newest - drift.DISORDER
            newest = max(filter(None, (newest, pc.max(times).as_py())), default=None)


def test_the_same_seed_gives_the_same_streams() -> None:
    assert drift.generate(3, seed=5) == drift.generate(3, seed=5)
    assert drift.generate(3, seed=5) != drift.generate(3, seed=6)


def test_the_check_counts_what_is_missing_and_what_is_too_many(tmp_path: Path) -> None:
    write(tmp_path, drift.generate(12, seed=1))
    empty = checked(tmp_path)
    assert empty.missing > 0
    assert not empty.has_passed

    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name in ("orders", "payments", "shipments"):
            connection.execute(f"CREATE VIEW {name} AS FROM '{tmp_path}/streams/{name}/*.parquet'")
        connection.execute(f"COPY ({drift.BATCH_ANSWER}) TO '{tmp_path}/results/0.parquet' (FORMAT parquet)")
    assert checked(tmp_path) == Check(empty.missing, 0, 0)

    whole = pq.read_table(tmp_path / "results" / "0.parquet")
    pq.write_table(whole.slice(0, 1), tmp_path / "results" / "1.parquet")
    assert checked(tmp_path) == Check(empty.missing + 1, 0, 1)


def test_in_every_office_something_hardly_ever_happens() -> None:
    streams = skew.generate(2, 2_000, seed=1)
    for office, lacking in enumerate(skew.LACKING, start=1):
        rows = {
            name: sum(pc.sum(pc.equal(pc.divide(table["session"], skew.OFFICE), office)).as_py() for table in tables)
            for name, tables in streams.items()
        }
        assert min(rows, key=lambda name: rows[name]) == lacking
        assert rows[lacking] < 0.02 * sum(rows.values()) / len(rows)


def test_files_of_the_skewed_streams_follow_each_other_in_time(tmp_path: Path) -> None:
    for tables in skew.generate(3, 300, seed=2).values():
        ends = [(pc.min(table["ts"]).as_py(), pc.max(table["ts"]).as_py()) for table in tables]
        assert all(newest <= oldest for (_, newest), (oldest, _) in pairwise(ends))


def test_the_skewed_query_is_what_duckdb_is_asked(tmp_path: Path) -> None:
    """Both texts name the same sums and windows; that the answers agree is seen when the demo runs."""
    file = tmp_path / "skewed.yaml"
    file.write_text(skew.SPEC, encoding="utf-8")
    spec = load(file)
    graph = Explanation(spec.only.query, spec.catalog()).query.graph
    assert {relation.stream for relation in graph.relations} == set(skew.NAMES)
    assert {relation.window.range for relation in graph.relations} == {20_000_000}
    (risks,) = graph.thetas
    assert str(risks).replace("(", "").replace(")", "") in skew.BATCH_ANSWER
