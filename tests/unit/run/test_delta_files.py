"""The files of Delta tables as offsets and pieces: snapshots, versions, limits, partitions, and what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from anabranch.errors import CatalogError, HostError
from anabranch.lang.schema import TIMESTAMP
from anabranch.run.files.delta import TAKEN, VERSION, DeltaFiles, first_offset, following, open_table, require_log
from anabranch.run.files.parquet import Parquet

deltalake = pytest.importorskip("deltalake", reason="the extra 'delta' is not installed")
COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("day", pa.date32()), ("place", pa.string())])


def rows(*keys: int, day: int = 1, place: str | None = "x") -> pa.Table:
    times = [datetime(2026, 1, 1, tzinfo=UTC)] * len(keys)
    return pa.table([times, list(keys), [date(2026, 1, day)] * len(keys), [place] * len(keys)], schema=COLUMNS)


def write(folder: Path, table: pa.Table, **options: Any) -> None:
    deltalake.write_deltalake(str(folder), table, mode="append", **options)


def form(folder: Path, **options: Any) -> DeltaFiles:
    return DeltaFiles(str(folder), Parquet(), COLUMNS, **options)


def keys(form: DeltaFiles, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    wanted = {"k": pa.int64()}
    return [key for path in form.between(start, end) for key in form.read(path, wanted)["k"].to_pylist()]


def test_a_stream_begins_with_all_rows_and_goes_on_with_those_that_versions_add(tmp_path: Path) -> None:
    write(tmp_path, rows(1))
    write(tmp_path, rows(2))
    start = first_offset(str(tmp_path), None)
    first = following(str(tmp_path), start, None)
    assert sorted(keys(form(tmp_path), start, first)) == [1, 2]
    assert following(str(tmp_path), first, None) == first
    write(tmp_path, rows(3))
    write(tmp_path, rows(4))
    second = following(str(tmp_path), first, None)
    assert keys(form(tmp_path), first, second) == [3, 4]
    # An offset gives the same files whatever is written later.
    write(tmp_path, rows(5))
    assert keys(form(tmp_path), first, second) == [3, 4]
    assert sorted(keys(form(tmp_path), start, first)) == [1, 2]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_batch_has_at_most_the_files_that_are_allowed(most: int, tmp_path: Path) -> None:
    for key in range(5):
        write(tmp_path, rows(key))
    found, batches = [], []
    start = first_offset(str(tmp_path), None)
    write(tmp_path, rows(5))
    while (end := following(str(tmp_path), start, most)) != start:
        batch = keys(form(tmp_path), start, end)
        found += batch
        batches.append(len(batch))
        start = end
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    assert max(batches) == most
    assert len([each for each in batches if each]) == 6 // most


def test_a_stream_may_begin_with_a_version_or_with_the_next_one(tmp_path: Path) -> None:
    for key in range(3):
        write(tmp_path, rows(key))
    for starting, expected in (("1", [1, 2]), ("0", [0, 1, 2]), ("latest", [])):
        start = first_offset(str(tmp_path), starting)
        assert keys(form(tmp_path), start, following(str(tmp_path), start, None)) == expected


def test_a_run_over_what_is_there_ends_with_that_version(tmp_path: Path) -> None:
    write(tmp_path, rows(0))
    start = first_offset(str(tmp_path), "0")
    write(tmp_path, rows(1))
    assert keys(form(tmp_path), start, following(str(tmp_path), start, None, until=0)) == [0]


def test_partition_columns_come_from_the_log(tmp_path: Path) -> None:
    write(tmp_path, rows(1, day=2), partition_by=["day", "place"])
    write(tmp_path, rows(2, day=3, place=None))
    partitioned = {"day": pa.date32(), "place": pa.string()}
    read = form(tmp_path, partitioned=partitioned)
    start = first_offset(str(tmp_path), None)
    end = following(str(tmp_path), start, None)
    found = [read.read(path, read.whole).to_pylist() for path in read.between(start, end)]
    assert sorted((row["k"], row["day"], row["place"]) for (row,) in found) == [
        (1, date(2026, 1, 2), "x"),
        (2, date(2026, 1, 3), None),
    ]
    (path, *_) = read.between(start, end)
    assert read.look_into(path, read.whole).is_readable
    assert read.read(path, {"day": pa.date32()}).num_rows == 1
    assert read.shown(path).startswith(str(tmp_path))


def test_compacting_a_table_adds_no_rows(tmp_path: Path) -> None:
    for key in range(4):
        write(tmp_path, rows(key))
    start = following(str(tmp_path), first_offset(str(tmp_path), None), None)
    deltalake.DeltaTable(str(tmp_path)).optimize.compact()
    write(tmp_path, rows(9))
    assert keys(form(tmp_path), start, following(str(tmp_path), start, None)) == [9]


def test_versions_that_change_rows_are_refused_or_skipped(tmp_path: Path) -> None:
    write(tmp_path, rows(1, 2))
    start = following(str(tmp_path), first_offset(str(tmp_path), None), None)
    deltalake.DeltaTable(str(tmp_path)).delete("k = 1")
    with pytest.raises(CatalogError, match=r"version 1 of the Delta table .* removes or changes rows"):
        following(str(tmp_path), start, None)
    write(tmp_path, rows(3))
    end = following(str(tmp_path), start, None, skips_changes=True)
    assert keys(form(tmp_path, skips_changes=True), start, end) == [3]


def test_a_log_that_was_cleaned_up_before_it_was_read_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, rows(1))
    start = following(str(tmp_path), first_offset(str(tmp_path), None), None)
    for key in (2, 3):
        write(tmp_path, rows(key))
    require_log(str(tmp_path), start)
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    (tmp_path / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(HostError, match=r"version 1 of the Delta table .* is gone"):
        require_log(str(tmp_path), start)


def test_what_is_no_table_or_has_features_that_are_not_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"the Delta table at .* cannot be opened"):
        open_table(str(tmp_path))
    write(tmp_path / "t", rows(1), configuration={"delta.enableDeletionVectors": "true"})
    with pytest.raises(CatalogError, match=r"has 'delta.enableDeletionVectors', which streams do not read"):
        open_table(str(tmp_path / "t"))


def test_an_offset_that_ends_inside_a_version_goes_on_there(tmp_path: Path) -> None:
    write(tmp_path, pa.concat_tables([rows(1, day=1), rows(2, day=2), rows(3, day=3)]), partition_by=["day"])
    start = first_offset(str(tmp_path), None)
    middle = following(str(tmp_path), start, 2)
    assert (middle[VERSION], middle[TAKEN]) == (0, 2)
    end = following(str(tmp_path), middle, 2)
    assert (end[VERSION], end[TAKEN]) == (0, None)
    assert [len(keys(form(tmp_path), a, b)) for a, b in ((start, middle), (middle, end))] == [2, 1]
