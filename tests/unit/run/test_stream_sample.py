"""Samples of streams, read by Arrow: which files, which rows, and what is left to another reader."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.lang.schema import TIMESTAMP, Field
from anabranch.run import stream_sample
from anabranch.run.stream_sample import SampledRows, StreamSample, file_sample, first_files, sample_streams

SCHEMA = parse_schema("ts timestamp, k bigint, note string")
WANTED = {"ts": TIMESTAMP, "k": pa.int64(), "note": pa.string()}
SECOND = 1_000_000


def rows(start: int, count: int) -> pa.Table:
    times = (np.arange(start, start + count) * SECOND).astype("datetime64[us]")
    numbers = np.arange(start, start + count)
    ts = pa.array(times).cast(TIMESTAMP)
    return pa.table({"ts": ts, "k": numbers, "note": [f"n{number}" for number in numbers]})


def nobody() -> StreamSample | None:
    return None


def write(folder: Path, name: str, table: pa.Table) -> None:
    folder.mkdir(exist_ok=True)
    match name.rpartition(".")[2]:
        case "parquet":
            pq.write_table(table, folder / name)
        case "orc":
            orc.write_table(table, folder / name)
        case "json":
            lines = [{**row, "ts": row["ts"].isoformat()} for row in table.to_pylist()]
            (folder / name).write_text("\n".join(map(json.dumps, lines)))


@pytest.mark.parametrize("format", stream_sample.ARROW_FORMATS)
def test_files_are_read_in_the_types_of_the_stream(tmp_path: Path, format: str) -> None:
    write(tmp_path / "s", f"0.{format}", rows(0, 3))
    found = file_sample(str(tmp_path / "s"), format, SCHEMA, nobody)
    assert found is not None
    read = found.read(WANTED, "ts")
    assert read.rows.to_pydict() == rows(0, 3).cast(pa.schema(list(WANTED.items()))).to_pydict()
    assert (read.share, read.newest) == (1.0, None)
    assert found.has(Field("k", pa.int64()))
    assert not found.has(Field("k", pa.int32()))


def test_a_column_that_the_files_lack_is_null(tmp_path: Path) -> None:
    write(tmp_path / "s", "0.parquet", rows(0, 3).drop_columns(["note"]))
    found = file_sample(str(tmp_path / "s"), "parquet", SCHEMA, nobody)
    assert found is not None
    assert found.read(WANTED, "ts").rows.column("note").null_count == 3


def test_files_that_spark_does_not_read_are_no_sample(tmp_path: Path) -> None:
    write(tmp_path / "s", "_SUCCESS", rows(0, 1))
    write(tmp_path / "s", ".part.parquet", rows(0, 1))
    write(tmp_path / "s" / "_temporary", "0.parquet", rows(0, 1))
    assert file_sample(str(tmp_path / "s"), "parquet", SCHEMA, nobody) is None


def test_the_newest_file_tells_how_long_the_stream_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_sample, "MOST_FILES", 1)
    for number in range(4):
        write(tmp_path / "s", f"{number}.parquet", rows(10 * number, 10))
    found = file_sample(str(tmp_path / "s"), "parquet", SCHEMA, nobody)
    assert found is not None
    read = found.read(WANTED, "ts")
    assert len(read.rows) == 10
    assert read.share == pytest.approx(0.25, rel=0.1)
    assert read.newest == 39 * SECOND


def test_a_sample_has_one_file_at_least_and_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_sample, "MOST_BYTES", 100)
    assert first_files([1_000, 1]) == 1
    assert first_files([60, 40, 1]) == 2
    assert first_files([1] * 50) == stream_sample.MOST_FILES


class Other:
    """A sample of another reader."""

    def has(self, column: Field) -> bool:
        return False

    def read(self, wanted: Mapping[str, pa.DataType], event_time: str) -> SampledRows:
        return SampledRows(rows(0, 7))


def test_files_that_arrow_cannot_read_are_sampled_by_the_other_reader(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "0.parquet").write_text("no parquet")
    found = file_sample(str(folder), "parquet", SCHEMA, Other)
    assert found is not None
    assert len(found.read(WANTED, "ts").rows) == 7
    # A pattern, a missing folder, another format.
    for path, format in ((f"{folder}/*", "parquet"), (f"{folder}/none", "parquet"), (str(folder), "csv")):
        assert isinstance(file_sample(path, format, SCHEMA, Other), Other)


def query(text: str = "SELECT a.k AS k FROM s [RANGE 10 SECONDS] AS a, t [RANGE 10 SECONDS] AS b WHERE a.k = b.k"):  # type: ignore[no-untyped-def]
    catalog = Catalog()
    for name in ("s", "t"):
        catalog.register(StreamDeclaration(name, SCHEMA, "ts", 0))
    return compile_query(text, catalog)


def sample(folder: Path) -> StreamSample:
    found = file_sample(str(folder), "parquet", SCHEMA, nobody)
    assert found is not None
    return found


def test_rates_and_rows_of_both_streams(tmp_path: Path) -> None:
    write(tmp_path / "s", "0.parquet", rows(0, 200))
    write(tmp_path / "t", "0.parquet", rows(0, 100))
    (found,) = sample_streams([query()], {name: sample(tmp_path / name) for name in ("s", "t")})
    assert found.statistics.rates["a"] == pytest.approx(1.0, rel=0.02)
    assert {name: len(batch) for name, batch in found.rows.items()} == {"a": 200, "b": 100}
    assert found.kin is None


def test_all_rows_of_the_drawn_values_are_kin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_sample, "MOST_ROWS", 50)
    for name in ("s", "t"):
        write(tmp_path / name, "0.parquet", rows(0, 500))
    (found,) = sample_streams([query()], {name: sample(tmp_path / name) for name in ("s", "t")})
    assert found.kin is not None
    assert found.kin.share == pytest.approx(0.1)
    codes = [sorted(found.kin.rows[name].codes[found.kin.key.name].tolist()) for name in ("a", "b")]
    assert codes[0] == codes[1]
    assert 20 < len(codes[0]) < 100
    assert {len(batch) for batch in found.rows.values()} == {50}
    assert all((np.diff(batch.times) >= 0).all() for batch in found.rows.values())


class Broken(Other):
    def read(self, wanted: Mapping[str, pa.DataType], event_time: str) -> SampledRows:
        raise OSError("gone")


def test_a_sample_that_cannot_be_read_leaves_its_stream_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "s", "0.parquet", rows(0, 200))
    with caplog.at_level(logging.WARNING):
        (found,) = sample_streams([query()], {"s": sample(tmp_path / "s"), "t": Broken()})
    assert "stream 't' could not be sampled" in caplog.text
    assert set(found.statistics.rates) == {"a"}
