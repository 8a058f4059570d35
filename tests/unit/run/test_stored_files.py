"""Files of stores: each is in one batch, however late it is listed, and is read as it is or refused by name."""

from __future__ import annotations

import bz2
import gzip
import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from anabranch.errors import CatalogError, HostError
from anabranch.lang.schema import TIMESTAMP
from anabranch.run.files.csv import Csv
from anabranch.run.files.json import Json
from anabranch.run.files.parquet import Parquet
from anabranch.run.files.stored import (
    DIVIDED,
    DROP,
    READ,
    START,
    Found,
    Offset,
    StoredFiles,
    file_system,
    files_between,
    following,
    listed,
)
from anabranch.run.files.text import TextForm
from tests.support.s3_server import HALF, Fault, S3Server, s3_server

COLUMNS = pa.schema([("ts", TIMESTAMP), ("n", pa.int64()), ("s", pa.string())])
ROWS = pa.table([pa.array([1, None, 3], TIMESTAMP), [1, 2, None], ["a", None, "ü"]], schema=COLUMNS)
LINES = (
    '{"ts": "1970-01-01T00:00:00.000001Z", "n": 1, "s": "a"}\n{"n": 2}\n'
    '{"ts": "1970-01-01T00:00:00.000003Z", "s": "ü"}\n'
)


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with s3_server() as found:
        yield found


def stored(store: S3Server, folder: str, form: Parquet | TextForm, bad_records: str = "fail") -> StoredFiles:
    return StoredFiles(store.uri(f"bucket/{folder}"), form, COLUMNS, bad_records)


def only(files: StoredFiles) -> str:
    """The path of the only file of a folder."""
    (found,) = listed(files.location)
    return found.path


def as_parquet(rows: pa.Table, **options: int) -> bytes:
    data = io.BytesIO()
    parquet.write_table(rows, data, **options)
    return data.getvalue()


@given(
    arrivals=st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=8),
    most=st.one_of(st.none(), st.integers(1, 3)),
    removed=st.lists(st.integers(0, 20)),
)
def test_each_file_is_in_one_batch(arrivals: list[list[int]], most: int | None, removed: list[int]) -> None:
    """Files come up to five units late, and those that were read may be removed."""
    listing: list[Found] = []
    offset, taken, number = START, [], 0
    for now, several in enumerate(arrivals):
        for late in several:
            listing.append(Found(now + 6 - late, f"{number % 3}/{number}", 1 + number))
            number += 1
        after = following(offset, sorted(listing), most, 6)
        files = files_between(offset, after)
        assert len(files) <= (most or len(files))
        taken += [file.name for file in files]
        listing = [each for each in listing if each.name not in taken or int(each.name[2:]) not in removed]
        offset = after
    while (after := following(offset, sorted(listing), most, 6)) != offset:
        taken += [file.name for file in files_between(offset, after)]
        offset = after
    assert sorted(taken) == sorted(f"{each % 3}/{each}" for each in range(number))


def test_names_are_kept_for_the_age_and_a_later_file_is_an_error() -> None:
    offset: Offset = START
    listing = [Found(at, f"file {at}", 1) for at in range(20)]
    for count in range(20):
        offset = following(offset, listing[: count + 1], None, 5)
    assert sorted(offset[READ]) == sorted(f"file {at}" for at in range(14, 20))
    with pytest.raises(HostError, match="appeared late"):
        following(offset, [*listing, Found(3, "late", 1)], None, 5)
    assert following(offset, [*listing, Found(15, "not too late", 1)], None, 5)[READ]["not too late"] == [15, 1]


@pytest.mark.parametrize("packed", ["", ".gz", ".bz2", ".zst"])
def test_lines_of_json_are_read_plain_or_packed(packed: str, store: S3Server) -> None:
    pack: dict[str, Any] = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".zst": lambda data: pa.compress(data, "zstd", asbytes=True),
    }
    store.put(f"bucket/json{packed}/a b.json{packed}", pack.get(packed, bytes)(LINES.encode()))
    files = stored(store, f"json{packed}", Json())
    assert files.read(only(files), files.whole).equals(ROWS)
    assert files.read(only(files), {"n": pa.int64()}).column_names == ["n"]


def test_a_bad_line_is_refused_or_has_no_values(store: S3Server) -> None:
    store.put("bucket/bad/x.json", (LINES + '\n\r\n{"n": "two"}\r\n{"n": 5.0}\n').encode())
    files = stored(store, "bad", Json())
    with pytest.raises(CatalogError, match=r"line 6 of file 'bucket/bad/x\.json' is not one of its stream"):
        files.read(only(files), {"s": pa.string()})
    rows = stored(store, "bad", Json(), DROP).read(only(files), files.whole)
    assert rows.slice(0, 3).equals(ROWS)
    assert rows["n"].to_pylist()[3:] in ([None, 5], [None, None])


def test_a_large_file_of_parquet_is_read_in_parts(store: S3Server) -> None:
    store.put("bucket/parts/x.parquet", as_parquet(ROWS, row_group_size=1))
    files = stored(store, "parts", Parquet())
    path = only(files)
    assert files.read(path, files.whole).equals(ROWS)
    assert files.read(path, {"s": pa.string()}, (0, 2)).column("s").to_pylist() == ["a", "ü"]
    assert files.look_into(path, files.whole).sizes == (int(path.rpartition(":")[2]),)
    with file_system(files.location)[0].open_input_file("bucket/parts/x.parquet") as file:
        assert len(Parquet().sizes(file)) == 3
    assert DIVIDED > 1


@pytest.mark.parametrize(
    ("form", "name", "data", "found"),
    [
        (Parquet(), "x.parquet", as_parquet(ROWS.drop_columns(["n"])), "it has 0 columns 'n'"),
        (Parquet(), "x.parquet", as_parquet(ROWS.set_column(1, "n", ROWS["n"].cast(pa.int32()))), "has type int32"),
        (Parquet(), "x.parquet", b"no parquet", "footer"),
        (Csv(("ts", "n", "s")), "x.csv", b'1970-01-01 00:00:00,1,"a"\n', "interpreted"),
        (Csv(("ts", "n", "s")), "x.csv.snappy", b"x", "compressed"),
    ],
)
def test_a_file_that_is_not_as_its_stream_is_refused(
    form: Parquet | TextForm, name: str, data: bytes, found: str, store: S3Server, request: pytest.FixtureRequest
) -> None:
    folder = f"refused-{abs(hash(request.node.name))}"
    store.put(f"bucket/{folder}/{name}", data)
    files = stored(store, folder, form)
    with pytest.raises(CatalogError, match=f"file 'bucket/{folder}/{name}' of a stream cannot be read") as error:
        files.read(only(files), files.whole)
    assert found in str(error.value.detail)


def test_a_file_that_changed_or_is_gone_is_refused(store: S3Server) -> None:
    store.put("bucket/changed/x.json", LINES.encode())
    files = stored(store, "changed", Json())
    path = only(files)
    store.put("bucket/changed/x.json", 2 * LINES.encode())
    with pytest.raises(CatalogError, match="cannot be read") as error:
        files.read(path, files.whole)
    assert "bytes when it was listed" in str(error.value.detail)
    store.delete("bucket/changed/x.json")
    with pytest.raises(CatalogError, match="is gone"):
        files.read(path, files.whole)


def test_hidden_and_empty_objects_are_left_out_and_folders_have_no_columns(store: S3Server) -> None:
    for name in ("_SUCCESS", ".x.json", "_delta_log/0.json", "empty.json", "a/b.json", "c.json", "d.csv"):
        store.put(f"bucket/names/{name}", b"" if name == "empty.json" else b"{}")
    place = store.uri("bucket/names")
    assert sorted(each.name for each in listed(place)) == ["a/b.json", "c.json", "d.csv"]
    assert sorted(each.name for each in listed(place, "*.json")) == ["a/b.json", "c.json"]
    assert listed(store.uri("bucket/nothing")) == []
    store.put("bucket/names/day=1/x.json", b"{}")
    with pytest.raises(CatalogError, match="columns in the names of folders"):
        listed(place)


@pytest.mark.slow
def test_a_store_that_keeps_refusing_is_a_named_error(store: S3Server) -> None:
    """Arrow's client asks some thirty times, and then says what the store said."""
    store.put("bucket/down/x.json", LINES.encode())
    files = stored(store, "down", Json())
    path = only(files)
    store.answer_badly(Fault("503", 1000, path="down"))
    with pytest.raises(HostError, match="cannot be read from its store") as error:
        files.read(path, files.whole)
    assert "503" in str(error.value.detail)
    with pytest.raises(HostError, match="cannot be listed"):
        listed(files.location)
    assert 900 < store.pending() < 1000
    store.answer_badly()
    assert files.read(path, files.whole).equals(ROWS)


def test_answers_that_are_cut_off_or_refused_are_asked_for_again(store: S3Server) -> None:
    store.put("bucket/faults/x.json", LINES.encode())
    files = stored(store, "faults", Json())
    store.answer_badly(Fault("500", 1, path="list-type"), Fault(HALF, 1, path="list-type"))
    path = only(files)
    store.answer_badly(Fault(HALF, 2, path="faults"), Fault("429", 2, path="faults"), Fault("503", 1, "HEAD"))
    assert files.read(path, files.whole).equals(ROWS)
    assert not store.pending()


def test_a_place_that_is_no_store_or_has_no_bucket_is_refused(store: S3Server) -> None:
    with pytest.raises(CatalogError, match="folder 'nonsense://bucket/x' of a stream cannot be opened") as error:
        listed("nonsense://user:word@bucket/x?key=word")
    assert "word" not in str(error.value)
    with pytest.raises(HostError, match="cannot be listed"):
        listed(store.uri("no-bucket/x"))
