"""JSON texts become columns, each by itself, and a text that is wrong says why."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import CatalogError
from anabranch.lang.schema import TIMESTAMP
from anabranch.run.kafka.json_values import parse, require_types

COLUMNS = pa.schema(
    [
        *(("i", pa.int64()), ("j", pa.int32()), ("f", pa.float64()), ("s", pa.string()), ("b", pa.bool_())),
        *(("n", pa.decimal128(5, 2)), ("d", pa.date32()), ("t", TIMESTAMP)),
        ("in", pa.struct([("x", pa.int32()), ("d", pa.date32())])),
    ]
)
AT = datetime(2024, 1, 2, 3, 4, 5, 678901, UTC)
GOOD: list[tuple[bytes, dict[str, Any]]] = [
    (b"{}", {}),
    (b'{"i": 1, "unknown": [{"i": 2}], "j": null}', {"i": 1}),
    (b'{"i": 1, "i": 2}', {"i": 2}),
    (b'{\n"i": 1}\n', {"i": 1}),
    (b'{"f": 1, "n": 1.255}', {"f": 1.0, "n": Decimal("1.26")}),
    (b'{"f": "-Infinity", "n": "-7"}', {"f": float("-inf"), "n": Decimal("-7.00")}),
    (b'{"s": 5}', {"s": "5"}),
    (b'{"s": true, "b": false}', {"s": "true", "b": False}),
    (b'{"s": "} null {"}', {"s": "} null {"}),
    ('{"s": "bä"}'.encode(), {"s": "bä"}),
    (b'{"d": "2024-02-29"}', {"d": date(2024, 2, 29)}),
    (b'{"t": "2024-01-02T03:04:05.678901Z"}', {"t": AT}),
    (b'{"t": "2024-01-02 03:04:05.678901"}', {"t": AT}),
    (b'{"t": "2024-01-02T03:04:05.678901234Z"}', {"t": AT}),
    (b'{"t": "2024-01-02T05:04:05.678901+02:00"}', {"t": AT}),
    (b'{"in": {"x": 1, "d": "2024-02-29"}}', {"in": {"x": 1, "d": date(2024, 2, 29)}}),
    (b'{"in": {}}', {"in": {"x": None, "d": None}}),
]
BAD: list[tuple[bytes | None, str]] = [
    (None, "no value"),
    (b"", "not JSON"),
    (b"null", "not a JSON object"),
    (b"[1]", "not a JSON object"),
    (b'{"i": 1} null', "not JSON"),
    (b'{"i": 1} null {"i": 2}', "not JSON"),
    (b'{"i": 1}{"i": 2}', "not JSON"),
    (b'{"in": {"x": 1}', "not JSON"),
    (b'{"i": 1,}', "not JSON"),
    (b"{'i': 1}", "not JSON"),
    (b'{"s": "\xff"}', "not JSON"),
    (b'{"s": "\\ud800"}', "surrogates"),
    (b'{"i": 1.0}', "field 'i' is 1.0, not a int64"),
    (b'{"i": "1"}', "field 'i'"),
    (b'{"i": true}', "field 'i'"),
    (b'{"i": 9223372036854775808}', "too large"),
    (b'{"j": 3000000000}', "3000000000"),
    (b'{"n": 1234.5}', "field 'n'"),
    (b'{"s": {"x": 1}}', "field 's'"),
    (b'{"d": "2024-02-30"}', "field 'd'"),
    (b'{"t": 5}', "field 't'"),
    (b'{"t": "yesterday"}', "field 't'"),
    (b'{"in": {"x": "1"}}', "field 'in.x'"),
]
NOTHING = dict.fromkeys(COLUMNS.names)


@pytest.mark.parametrize(("text", "values"), GOOD)
def test_a_good_text_gives_its_values(text: bytes, values: dict[str, Any]) -> None:
    found = parse([text], COLUMNS)
    assert (found.rows.to_pylist(), found.bad) == ([NOTHING | values], {})


@pytest.mark.parametrize(("text", "why"), BAD)
def test_a_bad_text_gives_a_row_of_nulls_and_the_reason(text: bytes | None, why: str) -> None:
    found = parse([text], COLUMNS)
    assert found.rows.to_pylist() == [NOTHING]
    assert why in found.bad[0]


@given(st.lists(st.sampled_from([*(text for text, _ in GOOD), *(text for text, _ in BAD)]), max_size=60))
def test_neighbours_do_not_matter(texts: list[bytes | None]) -> None:
    good = {text: NOTHING | values for text, values in GOOD}
    found = parse(texts, COLUMNS)
    assert found.rows.to_pylist() == [good.get(text, NOTHING) if text is not None else NOTHING for text in texts]
    assert set(found.bad) == {place for place, text in enumerate(texts) if text not in good}
    assert found.rows.schema == COLUMNS


def test_a_type_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(CatalogError, match="column 'b' of type binary cannot be read from JSON"):
        require_types(pa.schema([("b", pa.binary())]))


def test_a_value_of_a_schema_registry_is_named() -> None:
    found = parse([b"\x00\x00\x00\x00\x07\x02\x0aabcde"], pa.schema([("k", pa.int64())]))
    assert "as Avro and Protobuf of a schema registry do" in found.bad[0]
