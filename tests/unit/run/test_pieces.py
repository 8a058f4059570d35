"""Files that readers read without Spark: odd files are left, and pieces are shared out."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyarrow import parquet

from anabranch.cql import compile_query
from anabranch.errors import CatalogError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.expr import Column
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.plan.query_set import alone
from anabranch.run.files.form import Reading
from anabranch.run.files.parquet import Parquet
from anabranch.run.ingest import columns_to_read
from anabranch.run.pieces import Piece, divided, pieces_of, shared

COLUMNS = pa.schema(
    [("ts", TIMESTAMP), ("x", pa.int64()), ("y", pa.int32()), ("s", pa.string()), ("d", pa.decimal128(9, 2))]
)
FROM = "SELECT a.s AS s, b.d AS d FROM s0 [RANGE 8 SECONDS] AS a, s1 [RANGE 5 SECONDS] AS b WHERE "
ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 50)),
        st.one_of(st.none(), st.integers(-3, 3)),
        st.one_of(st.none(), st.integers(0, 2)),
        st.one_of(st.none(), st.sampled_from(["", "a", "bä", "a long text of more than eight bytes"])),
    ),
    max_size=20,
)


def catalog() -> Catalog:
    found = Catalog()
    for name in ("s0", "s1"):
        found.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts", 0))
    return found


def table(rows: list[tuple[int | None, int | None, int | None, str | None]]) -> pa.Table:
    ts, x, y, s = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    arrays = [pa.array(ts, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP), pa.array(x, pa.int64())]
    arrays += [pa.array(y, pa.int32()), pa.array(s, pa.string()), pa.nulls(len(rows), pa.decimal128(9, 2))]
    return pa.table(arrays, schema=COLUMNS)


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not count the bytes that a process reads")
def test_tasks_that_share_files_read_each_byte_once(tmp_path: Path) -> None:
    """Arrow reads 64 kB to find a footer, once in the driver and once in each task that has row groups of the file."""
    texts = random.Random(1).randbytes(8_000_000).hex()
    rows = table([(row, row % 7, row % 3, texts[400 * row : 400 * row + 400]) for row in range(40_000)])
    wanted = {field.name: field.type for field in COLUMNS}
    readings = {"s": Reading(Parquet(), {name: Column("s", name, kind) for name, kind in wanted.items()})}
    paths = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    for path in paths:
        parquet.write_table(rows, path, row_group_size=5_000)
    before = bytes_read()
    pieces = [piece for path in paths for piece in pieces_of("s", path, readings["s"].look_into(path))]
    reader = divided(pieces, readings, 4)
    found = [len(read.rows or ()) for part in range(4) for read in reader.read(part, iter(()))]
    assert sum(found) == 80_000
    assert bytes_read() - before <= 1.1 * sum(Path(path).stat().st_size for path in paths)


def bytes_read() -> int:
    """The bytes that this process has read so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).partition(":")[2])


@pytest.mark.parametrize(
    ("change", "is_read"),
    [
        ({}, True),
        ({"s": pa.dictionary(pa.int32(), pa.string())}, True),
        ({"s": pa.large_string()}, True),
        ({"ts": pa.timestamp("ms", "UTC")}, True),
        ({"ts": pa.timestamp("us", "Europe/Berlin")}, True),
        ({"ts": pa.timestamp("us")}, False),
        ({"ts": pa.timestamp("ns", "UTC")}, False),
        ({"x": pa.int32()}, False),
        ({"y": pa.int64()}, False),
        ({"s": pa.binary()}, False),
        ({"d": pa.decimal128(9, 3)}, False),
    ],
)
def test_files_of_other_types_are_left_to_spark(change: dict[str, pa.DataType], is_read: bool, tmp_path: Path) -> None:
    rows = table([(1_000, 1, 2, "a"), (2_000, None, 3, None)])
    stored = rows
    for name, kind in change.items():
        values = rows[name]
        if pa.types.is_dictionary(kind):
            values = values.dictionary_encode()
        stored = stored.set_column(stored.schema.get_field_index(name), name, values.cast(kind))
    parquet.write_table(stored, tmp_path / "rows.parquet")
    wanted = {field.name: field.type for field in COLUMNS}
    path = str(tmp_path / "rows.parquet")
    footer = Parquet().look_into(path, wanted)
    assert footer.is_readable == is_read
    if is_read:
        assert Parquet().read(path, wanted).equals(rows)


def test_times_of_96_bits_are_instants(tmp_path: Path) -> None:
    rows = table([(1_000, 1, 2, "a"), (1_700_000_000_123_456, None, 3, None), (-1, 1, 1, "")])
    parquet.write_table(rows, tmp_path / "rows.parquet", use_deprecated_int96_timestamps=True)
    wanted = {field.name: field.type for field in COLUMNS}
    assert Parquet().look_into(str(tmp_path / "rows.parquet"), wanted).is_readable
    assert Parquet().read(str(tmp_path / "rows.parquet"), wanted).equals(rows)


def test_a_file_that_is_no_file_of_the_stream_is_left_to_spark(tmp_path: Path) -> None:
    wanted = {field.name: field.type for field in COLUMNS}
    rows = table([(1_000, 1, 2, "a")])
    assert not Parquet().look_into(str(tmp_path / "gone.parquet"), wanted).is_readable
    (tmp_path / "text.parquet").write_text("no Parquet")
    assert not Parquet().look_into(str(tmp_path / "text.parquet"), wanted).is_readable
    parquet.write_table(rows.drop_columns(["x"]), tmp_path / "narrow.parquet")
    assert not Parquet().look_into(str(tmp_path / "narrow.parquet"), wanted).is_readable
    parquet.write_table(rows.rename_columns(["ts", "X", "y", "s", "d"]), tmp_path / "case.parquet")
    assert not Parquet().look_into(str(tmp_path / "case.parquet"), wanted).is_readable
    old = rows.replace_schema_metadata({"org.apache.spark.legacyDateTime": ""})
    parquet.write_table(old, tmp_path / "old.parquet")
    assert not Parquet().look_into(str(tmp_path / "old.parquet"), wanted).is_readable


def test_slots_read_the_columns_that_queries_need() -> None:
    found = columns_to_read(alone(compile_query(FROM + "a.x + 1 = b.y AND a.y > 1", catalog())))
    assert found == {
        "s0": {"ts": TIMESTAMP, "x": pa.int64(), "y": pa.int32(), "s": pa.string()},
        "s1": {"ts": TIMESTAMP, "y": pa.int32(), "d": pa.decimal128(9, 2)},
    }


def test_a_file_that_breaks_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="of a stream cannot be read"):
        Parquet().read(str(tmp_path / "gone.parquet"), {"ts": TIMESTAMP})


def test_row_groups_of_a_file_are_pieces(tmp_path: Path) -> None:
    rows = table([(time, time, 0, "a") for time in range(10)])
    path = str(tmp_path / "rows.parquet")
    parquet.write_table(rows, path, row_group_size=3)
    wanted = {field.name: field.type for field in COLUMNS}
    footer = Parquet().look_into(path, wanted)
    pieces = pieces_of("s0", path, footer)
    assert [piece.groups for piece in pieces] == [(0,), (1,), (2,), (3,)]
    found = [Parquet().read(path, wanted, piece.groups) for piece in pieces]
    assert [len(each) for each in found] == [3, 3, 3, 1]
    assert pa.concat_tables(found).equals(rows)


def test_tasks_share_pieces_by_size() -> None:
    sizes = [("a", 9), ("b", 5), ("c", 4), ("d", 1)]
    found = divided([Piece("s", path, size) for path, size in sizes], {}, 2)
    assert [[piece.path for piece in share] for share in found.shares] == [["a", "d"], ["b", "c"]]
    assert len(divided([Piece("s", "a", 1)], {}, 4).shares) == 1
    assert divided([], {}, 4).shares == ((),)


def test_row_groups_of_a_file_in_one_task_are_read_together() -> None:
    pieces = [Piece("s", "a", 1, (group,)) for group in range(4)]
    assert divided(pieces, {}, 1).shares == ((Piece("s", "a", 4, (0, 1, 2, 3)),),)
    assert shared(pieces, {}, 2).shares == ((Piece("s", "a", 0),),) * 2
