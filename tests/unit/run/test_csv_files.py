"""CSV files that slots read: plain ones are read whole, and anything that has to be interpreted is left to Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import CatalogError, ExpressionError
from anabranch.lang.expr import Call, Column, Literal
from anabranch.lang.schema import TIMESTAMP
from anabranch.run.files.csv import Csv
from anabranch.run.files.form import Reading

KINDS = {"n": pa.int64(), "x": pa.float64(), "s": pa.string(), "b": pa.bool_(), "d": pa.date32(), "t": TIMESTAMP}
FORM = Csv(tuple(KINDS))
PLAIN = "1,1.5,one two,true,2024-02-29,2024-02-29 12:00:00.25\n"
TEXTS = st.text(st.characters(exclude_characters='",\\', exclude_categories=["Cs", "Cc"]), min_size=1).filter(
    lambda text: text == text.strip() and "0x" not in text.lower() and "\ufeff" not in text
)
ROW = st.tuples(
    st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
    st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
    st.one_of(st.none(), TEXTS),
    st.one_of(st.none(), st.booleans()),
    st.one_of(st.none(), st.dates()),
    st.one_of(st.none(), st.datetimes()),
)


def line(row: tuple[Any, ...]) -> str:
    n, x, s, b, d, t = row
    written = [n, None if x is None else repr(x), s, None if b is None else str(b).lower(), d, t]
    return ",".join("" if value is None else str(value) for value in written) + "\n"


def file(folder: Path, text: str | bytes, name: str = "rows.csv") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(ROW, max_size=20), has_header=st.booleans())
def test_plain_rows_are_read_as_they_are(
    rows: list[tuple[Any, ...]], has_header: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    form = Csv(tuple(KINDS), has_header=has_header)
    text = ("n,x,s,b,d,t\n" if has_header else "") + "".join(map(line, rows))
    path = file(tmp_path_factory.mktemp("csv"), text)
    assert form.look_into(path, KINDS).is_readable
    expected = {name: pa.array([row[i] for row in rows], kind) for i, (name, kind) in enumerate(KINDS.items())}
    assert form.read(path, KINDS).equals(pa.table(expected))


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.replace("one two", '"one"'),
        PLAIN.replace("one two", "one\\two"),
        PLAIN.replace("one two", " one"),
        PLAIN.replace("one two", "one\t"),
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", " \n"),
        " " + PLAIN,
        "\n" + PLAIN,
        "\ufeff" + PLAIN,
        PLAIN.replace("1,", "0x1,", 1),
        PLAIN.replace("1,", "+1,", 1),
        PLAIN.replace("1,", "9223372036854775808,", 1),
        PLAIN.replace("1.5", "NaN"),
        PLAIN.replace("1.5", "inf"),
        PLAIN.replace("true", "TRUE"),
        PLAIN.replace("true", "1"),
        PLAIN.replace("2024-02-29,", "2024-2-29,"),
        PLAIN.replace("12:00:00.25", "12:00"),
        PLAIN.replace("12:00:00.25", "12:00:00Z"),
        PLAIN.replace("2024-02-29 12", "2023-02-29 12"),
        PLAIN + "2,2.5\n",
        PLAIN.replace("\n", ",more\n"),
        PLAIN.encode() + b"1,1.5,\xff,true,2024-02-29,2024-02-29 12:00:00\n",
        PLAIN.replace("one two", "one\0two"),
        PLAIN.replace("one two", "\x0b"),
    ],
)
def test_what_has_to_be_interpreted_is_left_to_spark(text: str | bytes, tmp_path: Path) -> None:
    assert FORM.look_into(file(tmp_path, PLAIN), KINDS).is_readable
    assert not FORM.look_into(file(tmp_path, text), KINDS).is_readable


def test_a_value_that_nobody_reads_may_be_anything(tmp_path: Path) -> None:
    path = file(tmp_path, PLAIN.replace("1.5", "NaN").replace("true", "yes"))
    wanted = {"n": pa.int64(), "s": pa.string()}
    assert FORM.look_into(path, wanted).is_readable
    assert FORM.read(path, wanted).to_pylist() == [{"n": 1, "s": "one two"}]


def test_packed_and_missing_files_are_left_to_spark(tmp_path: Path) -> None:
    assert not FORM.look_into(file(tmp_path, PLAIN, "rows.csv.gz"), KINDS).is_readable
    assert not FORM.look_into(str(tmp_path / "gone.csv"), KINDS).is_readable


def test_files_without_rows(tmp_path: Path) -> None:
    headed = Csv(("n", "s"), has_header=True)
    for text in ("", "n,s", "n,s\n"):
        path = file(tmp_path, text)
        assert headed.look_into(path, {"n": pa.int64()}).is_readable
        assert headed.read(path, {"n": pa.int64()}).num_rows == 0


def test_a_file_that_changes_meanwhile_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="of a stream cannot be read"):
        FORM.read(str(tmp_path / "gone.csv"), KINDS)
    with pytest.raises(CatalogError, match="of a stream cannot be read"):
        FORM.read(file(tmp_path, "no number,1.5\n"), KINDS)


def test_columns_are_computed_and_rows_left_out(tmp_path: Path) -> None:
    n, s = Column("stream", "n", pa.int64()), Column("stream", "s", pa.string())
    reading = Reading(
        Csv(("s", "n")),
        {"ts": Call("timestamp_millis", (n,), TIMESTAMP), "name": s},
        (Call("greater", (n, Literal(1, pa.int64())), pa.bool_()),),
    )
    path = file(tmp_path, "a,1\nb,2\nc,\nd,4000\n")
    assert reading.look_into(path).is_readable
    (found,) = reading.read([(path, None)])
    assert found["ts"].cast(pa.int64()).to_pylist() == [2_000, 4_000_000]
    assert found["name"].to_pylist() == ["b", "d"]
    assert reading.only(["name"]).columns.keys() == {"s", "n"}
    with pytest.raises(ExpressionError):
        list(reading.read([(file(tmp_path, "a,9223372036854775807\n"), None)]))
