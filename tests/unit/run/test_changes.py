"""A table after changes has, for each key, the row of its last change."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import CatalogError
from anabranch.run.kafka.changes import DEBEZIUM, UPSERT, ChangeForm

COLUMNS = pa.schema([("id", pa.int64()), ("part", pa.string()), ("v", pa.float64())])


@dataclass(frozen=True)
class Message:
    """A record, as librdkafka gives it."""

    text: bytes | None
    name: bytes | None = None

    def value(self) -> bytes | None:
        return self.text

    def key(self) -> bytes | None:
        return self.name

    def offset(self) -> int:
        return 7

    def partition(self) -> int:
        return 0

    def topic(self) -> str:
        return "t"


def envelope(op: str, before: Any, after: Any, *, deep: bool = False) -> Message:
    found = {"before": before, "after": after, "op": op, "ts_ms": 5, "source": {"lsn": 1}}
    return Message(json.dumps({"schema": {"type": "struct"}, "payload": found} if deep else found).encode())


CHANGES = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from("ab"), st.one_of(st.none(), st.integers(0, 9)), st.booleans()),
    max_size=30,
)


@pytest.mark.parametrize("form", [DEBEZIUM, UPSERT])
@given(several=st.lists(CHANGES, max_size=3))
def test_the_last_change_of_a_key_decides(form: str, several: list[list[tuple[int, str, int | None, bool]]]) -> None:
    of = ChangeForm(form, COLUMNS, ("id", "part"))
    rows, model = COLUMNS.empty_table(), dict[tuple[int, str], float]()
    for changes in several:
        messages = []
        for number, part, value, deep in changes:
            key, row = {"id": number, "part": part}, {"id": number, "part": part, "v": value}
            if value is None:
                model.pop((number, part), None)
                gone = [envelope("d", key, None, deep=deep), Message(None)]
                messages += gone if form == DEBEZIUM else [Message(None, json.dumps(key).encode())]
            else:
                model[number, part] = float(value)
                text = json.dumps(row).encode()
                messages.append(envelope("u", None, row, deep=deep) if form == DEBEZIUM else Message(text))
        rows = of.after(rows, of.changes(messages))
    assert {(row["id"], row["part"]): row["v"] for row in rows.to_pylist()} == model
    assert len(rows) == len(model)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message(b"{"), "not JSON"),
        (envelope("t", None, None), "none of c, u, r, d and m"),
        (envelope("c", None, None), "it has no row"),
        (envelope("d", None, None), "it has no row"),
        (Message(b"{}"), "none of c, u, r, d and m"),
        (envelope("c", None, {"id": "x"}), "field 'after.id'"),
        (envelope("c", None, {"v": 1.5}), "no value for its key column 'id'"),
    ],
)
def test_a_record_that_is_no_change_is_named(message: Message, words: str) -> None:
    with pytest.raises(CatalogError) as error:
        ChangeForm(DEBEZIUM, COLUMNS, ("id",)).changes([message])
    assert words in str(error.value)


def test_messages_that_concern_no_row_are_skipped() -> None:
    found = ChangeForm(DEBEZIUM, COLUMNS, ("id",)).changes([envelope("m", None, None), Message(None)])
    assert len(found) == 0
