"""Files of JSON lines that slots read: plain ones are read whole, and anything that has to be interpreted is left."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import CatalogError
from anabranch.lang.schema import TIMESTAMP
from anabranch.run.files.json import Json
from anabranch.run.json_kernels import DEEPEST, LONGEST_NAME, LONGEST_NUMBER
from anabranch.run.json_lines import NotPlain, read_lines

INNER = pa.struct([("x", pa.int32()), ("t", TIMESTAMP)])
KINDS = {
    "i": pa.int64(),
    "j": pa.int32(),
    "k": pa.int8(),
    "f": pa.float64(),
    "s": pa.string(),
    "b": pa.bool_(),
    "n": pa.decimal128(9, 2),
    "d": pa.date32(),
    "t": TIMESTAMP,
    "in": INNER,
}
FORM = Json()
UTC = ZoneInfo("UTC")
AT = datetime(2024, 2, 29, 12, 0, 0, 250000, UTC)


def file(folder: Path, text: str | bytes, name: str = "rows.json") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def read(text: str | bytes, *, is_utc: bool = True) -> list[dict[str, Any]]:
    data = text if isinstance(text, bytes) else text.encode()
    rows: list[dict[str, Any]] = read_lines(data, pa.schema(list(KINDS.items())), is_utc=is_utc).to_pylist()
    return rows


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
TIMES = st.datetimes(datetime(1000, 1, 1), datetime(9999, 12, 31))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-(2**63), 2**63 - 1),
    "j": st.integers(-(2**31), 2**31 - 1),
    "k": st.integers(-128, 127),
    "f": st.floats(allow_nan=False, allow_infinity=False),
    "s": TEXTS,
    "b": st.booleans(),
    "n": st.decimals(-9_999_999, 9_999_999, places=2),
    "d": st.dates(),
    "t": TIMES,
    "in": st.fixed_dictionaries({}, optional={"x": st.none() | st.integers(-5, 5), "t": st.none() | TIMES}),
}
ROWS = st.fixed_dictionaries({}, optional={name: st.none() | values for name, values in VALUES.items()})
OTHERS = st.dictionaries(
    TEXTS.filter(lambda name: name not in KINDS),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=3,
)


def written(value: Any, zone: str) -> Any:
    if isinstance(value, dict):
        return {name: written(inner, zone) for name, inner in value.items()}
    if isinstance(value, datetime):
        return value.isoformat() + zone
    return str(value) if isinstance(value, Decimal | date) else value


def whole(row: dict[str, Any], kinds: dict[str, pa.DataType]) -> dict[str, Any]:
    found = {name: row.get(name) for name in kinds}
    for name, value in found.items():
        if isinstance(value, dict):
            found[name] = whole(value, {field.name: field.type for field in kinds[name]})
        elif isinstance(value, datetime):
            found[name] = value.replace(tzinfo=UTC, fold=0)
    return found


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(ROWS, OTHERS), max_size=12),
    zone=st.sampled_from(["", "Z", "+00:00"]),
    is_ascii=st.booleans(),
    indent=st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\t:  ")]),
    end=st.sampled_from(["\n", "\r\n", "\n\n", "\r\n\n"]),
    is_open=st.booleans(),
)
def test_plain_rows_are_read_as_they_are(
    rows: list[tuple[dict[str, Any], dict[str, Any]]],
    zone: str,
    is_ascii: bool,
    indent: tuple[str, str],
    end: str,
    is_open: bool,
) -> None:
    lines = []
    for row, others in rows:
        # A name may be written in its order or before others, and escapes in names are not plain.
        several = {**others, **written(row, zone)} if len(row) % 2 else {**written(row, zone), **others}
        several = {
            name: value for name, value in several.items() if json.dumps(name, ensure_ascii=is_ascii)[1:-1] == name
        }
        lines.append(json.dumps(several, ensure_ascii=is_ascii, separators=indent))
    text = end.join(lines) + ("" if is_open else end)
    assert str(read(text)) == str([whole(row, KINDS) for row, _ in rows])


PLAIN = (
    '{"i": 1, "j": 2, "k": 3, "f": 1.5, "s": "one", "b": true, "n": 1.25, "d": "2024-02-29", '
    '"t": "2024-02-29T12:00:00.25Z", "in": {"x": 1}}\n'
)
ROW = {
    "i": 1,
    "j": 2,
    "k": 3,
    "f": 1.5,
    "s": "one",
    "b": True,
    "n": Decimal("1.25"),
    "d": date(2024, 2, 29),
    "t": AT,
    "in": {"x": 1, "t": None},
}


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("", "", {}),
        ('"i": 1', '"i": -9223372036854775808', {"i": -(2**63)}),
        ('"i": 1', '"i": 9223372036854775807', {"i": 2**63 - 1}),
        ('"i": 1', '"i": -0', {"i": 0}),
        ('"i": 1', '"i": null', {"i": None}),
        ('"i": 1', '"I": 1', {"i": None}),
        ('"i": 1', '"other": {"i": [5, {"i": 6}], "in": []}', {"i": None}),
        ("1.5", "3", {"f": 3.0}),
        ("1.5", "-0.0", {"f": -0.0}),
        ("1.5", "1E+2", {"f": 100.0}),
        ("1.5", "123456789012345678901234567890", {"f": 123456789012345678901234567890.0}),
        ("1.5", "1e-999", {"f": 0.0}),
        ("1.25", "-7", {"n": Decimal("-7.00")}),
        ("1.25", '"1.5"', {"n": Decimal("1.50")}),
        ("1.25", "1e3", {"n": Decimal("1000.00")}),
        ('"one"', '""', {"s": ""}),
        ('"one"', '"\\u00e4\\ud83d\\ude00\\n\\/\\"\\\\"', {"s": 'ä😀\n/"\\'}),
        ('"one"', '"} {\x7f"', {"s": "} {\x7f"}),
        ("T12:00:00.25Z", " 12:00:00.250", {}),
        ("T12:00:00.25Z", "T13:30:00.25+01:30", {}),
        ("T12:00:00.25Z", "T06:00:00.250000-06:00", {}),
        ('{"x": 1}', "{}", {"in": {"x": None, "t": None}}),
        ('{"x": 1}', "null", {"in": None}),
        ('{"x": 1}', '{"y": 1, "x": 2, "t": "2024-02-29T12:00:00.25Z"}', {"in": {"x": 2, "t": AT}}),
        (PLAIN, "\n\r\n" + PLAIN.replace("\n", "\r\n"), {}),
        (PLAIN, PLAIN[:-1] + " \t", {}),
    ],
)
def test_plain_values(old: str, new: str, changed: dict[str, Any]) -> None:
    assert str(read(PLAIN.replace(old, new, 1))) == str([{**ROW, **changed}])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Values that are not of the type of their column.
        ('"i": 1', '"i": 1.0'),
        ('"i": 1', '"i": 1e2'),
        ('"i": 1', '"i": "1"'),
        ('"i": 1', '"i": true'),
        ('"i": 1', '"i": 9223372036854775808'),
        ('"i": 1', '"i": -9223372036854775809'),
        ('"i": 1', '"i": 18446744073709551617'),
        ('"j": 2', '"j": 2147483648'),
        ('"k": 3', '"k": 200'),
        ("1.5", '"1.5"'),
        ("1.5", '"NaN"'),
        ("1.5", "-0"),
        ("1.5", "1e999"),
        ('"one"', "5"),
        ('"one"', "true"),
        ('"one"', '{"x": 1}'),
        ('"one"', "[1]"),
        ("true", '"true"'),
        ("true", "1"),
        ("1.25", "1.255"),
        ("1.25", "12345678.5"),
        ("1.25", '" 1.25"'),
        ("1.25", '"much"'),
        ("2024-02-29", "2024-2-29"),
        ("2024-02-29", "2023-02-29"),
        ('"2024-02-29"', "5"),
        ('"2024-02-29"', '"2024-02-29T00:00:00"'),
        ('"2024-02-29T12:00:00.25Z"', "1709208000"),
        ("T12:00:00.25Z", ""),
        ("T12:00:00.25Z", "T12:00"),
        ("T12:00:00.25Z", "T12:00Z"),
        ("T12:00:00.25Z", "T12:00+01:00"),
        ("T12:00:00.25Z", "T12:00:00+01"),
        ("T12:00:00.25Z", "T12:00:00+0100"),
        ("T12:00:00.25Z", "T12:00:00+18:00"),
        ("T12:00:00.25Z", "T12:00:00 Europe/Berlin"),
        ("T12:00:00.25Z", "T12:00:00.1234567Z"),
        ("T12:00:00.25Z", "T24:00:00Z"),
        ('{"x": 1}', "[]"),
        ('{"x": 1}', '"x"'),
        ('{"x": 1}', '{"x": "1"}'),
        # Names.
        ('"i": 1', '"i": 1, "i": 1'),
        ('"i": 1', '"i": null, "i": 1'),
        ('"i": 1', '"\\u0069": 1'),
        ('{"x": 1}', '{"x": 1, "x": 1}'),
        ('"i": 1', f'"{"a" * (LONGEST_NAME + 1)}": 1'),
        # What is no JSON, or not for every reader, even where nobody reads it.
        ('"i": 1', '"i": 01'),
        ('"i": 1', '"i": +1'),
        ('"i": 1', '"i": -'),
        ('"i": 1', '"o": 1.'),
        ('"i": 1', '"o": .5'),
        ('"i": 1', '"o": 1e'),
        ('"i": 1', '"o": NaN'),
        ('"i": 1', '"o": -Infinity'),
        ('"i": 1', '"o": nul'),
        ('"i": 1', '"o": True'),
        ('"i": 1', "'o': 1"),
        ('"i": 1', "o: 1"),
        ('"i": 1', '"o" 1'),
        ('"i": 1', '"o":: 1'),
        ('"i": 1', '"o": [1,]'),
        ('"i": 1', '"o": [1 2]'),
        ('"i": 1', '"o": [1}'),
        ('"i": 1', '"o": {"a": 1]'),
        ('"i": 1', '"o": "a\tb"'),
        ('"i": 1', '"o": "\\x"'),
        ('"i": 1', '"o": "\\u12g4"'),
        ('"i": 1', '"o": "\x00"'),
        ('"i": 1', f'"o": {"1" * (LONGEST_NUMBER + 1)}'),
        ('"i": 1', f'"o": {"[" * DEEPEST}{"]" * DEEPEST}'),
        ('"i": 1', '"i": 1, /* one */ "o": 2'),
        ('"i": 1', ""),
        ('"one"', '"\\ud800"'),
        ('"one"', '"\\udc00"'),
        ('"one"', '"\\ud800\\u0041"'),
        ('"one"', '"\\ud800x\\udc00"'),
        # Lines.
        ("\n", "}\n"),
        ("\n", ",\n"),
        ("\n", " x\n"),
        ("\n", "{}\n"),
        ("\n", " {}\n"),
        ("\n", "\n \n"),
        ("\n", "\nnull\n"),
        ("\n", "\n[]\n"),
        ("\n", "\n[{}]\n"),
        ("\n", "\n5\n"),
        ("\n", "\r\r\n"),
        ("\n", "\r{}\n"),
        ("\n", "\x00\n"),
        ('"i": 1', '"i":\n1'),
        ('"i": 1', '"i":\r1'),
        ("}}\n", "}"),
        ("}}\n", ""),
        (PLAIN, " " + PLAIN),
        (PLAIN, "\ufeff" + PLAIN),
    ],
)
def test_what_has_to_be_interpreted_is_not_plain(old: str, new: str) -> None:
    text = PLAIN.replace(old, new, 1)
    assert text != PLAIN
    for several in (text, PLAIN + text if old != PLAIN or "\ufeff" not in text else text, text.rstrip("\n")):
        with pytest.raises(NotPlain):
            read(several)


def test_bytes_that_are_no_text_are_not_plain() -> None:
    for spoilt in (PLAIN.encode().replace(b"one", b"\xff"), PLAIN.encode().replace(b'"i"', b'"\xed\xa0\x80"')):
        with pytest.raises(NotPlain):
            read(spoilt)


def test_times_are_all_of_one_form_and_have_zones_where_the_session_is_not_in_utc() -> None:
    naive, far = PLAIN.replace("0.25Z", "0.25"), PLAIN.replace("12:00:00.25Z", "13:00:00.25+01:00")
    for text in (PLAIN, far):
        assert read(text, is_utc=False) == [ROW]
    for text in (naive, naive + far, PLAIN + naive, PLAIN + far):
        with pytest.raises(NotPlain):
            read(text, is_utc=False)
    assert read(naive) == [ROW]
    # The halves of a block of records are read each by itself (`run/kafka/json_values`).
    for text in (naive + far, PLAIN + naive, PLAIN + far):
        with pytest.raises(NotPlain):
            read(text)


def test_a_column_that_nobody_reads_may_have_values_of_any_type(tmp_path: Path) -> None:
    path = file(tmp_path, PLAIN.replace("1.5", '"NaN"').replace("true", "[1]").replace('{"x": 1}', "5"))
    wanted = {"i": pa.int64(), "s": pa.string()}
    assert FORM.look_into(path, wanted).is_readable
    assert FORM.read(path, wanted).to_pylist() == [{"i": 1, "s": "one"}]


def test_packed_and_missing_files_are_left_to_spark(tmp_path: Path) -> None:
    assert not FORM.look_into(file(tmp_path, PLAIN, "rows.json.gz"), KINDS).is_readable
    assert not FORM.look_into(str(tmp_path / "gone.json"), KINDS).is_readable


@pytest.mark.parametrize("text", ["", "\n", "\r\n\n"])
def test_files_without_rows(text: str, tmp_path: Path) -> None:
    path = file(tmp_path, text)
    assert FORM.look_into(path, KINDS).is_readable
    assert FORM.read(path, KINDS).schema.equals(pa.schema(list(KINDS.items())))


def test_a_file_that_changes_meanwhile_is_named(tmp_path: Path) -> None:
    for path in (str(tmp_path / "gone.json"), file(tmp_path, "no object\n")):
        with pytest.raises(CatalogError, match="of a stream cannot be read"):
            FORM.read(path, KINDS)


def test_types_that_are_left_to_spark() -> None:
    nested = pa.struct([("t", pa.timestamp("us"))])
    for kind in (pa.binary(), pa.list_(pa.int64()), pa.timestamp("us"), nested, pa.struct([]), pa.duration("us")):
        assert not FORM.can_hold(kind)
    assert all(map(FORM.can_hold, KINDS.values()))
