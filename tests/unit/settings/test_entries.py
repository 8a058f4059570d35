"""The one reader of settings: values of the wanted type, or an error that names the entry and says what to write."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import CatalogError, SpecError, StatisticsError
from anabranch.settings.entries import Entry, argument, document, found, optional, suggestion

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
READERS: Mapping[str, tuple[Callable[[Entry], Any], type | tuple[type, ...]]] = {
    "text": (Entry.text, str),
    "label": (Entry.label, str),
    "texts": (Entry.texts, tuple),
    "choice": (lambda entry: entry.choice(("auto", "none")), str),
    "number": (Entry.number, float),
    "count": (Entry.count, int),
    "size": (Entry.size, float),
    "duration": (Entry.duration, int),
    "seconds": (Entry.seconds, float),
    "timeout": (Entry.timeout, (int, type(None))),
    "flag": (Entry.flag, bool),
    "options": (Entry.options, tuple),
    "items": (lambda entry: entry.items("[a, b]"), list),
    "named": (Entry.named, dict),
    "filled": (Entry.filled, dict),
    "mapping": (lambda entry: entry.mapping("a b", {"a": "a: 1"}), dict),
}


@pytest.mark.parametrize("reader", READERS)
@given(value=VALUES | st.sampled_from(["10 seconds", "none", "500 MB", "auto", {"a": 1}, ["x"], True, 3, 0.5]))
def test_any_value_is_read_or_refused_by_its_path(reader: str, value: object) -> None:
    read, kind = READERS[reader]
    refused: SpecError | None = None
    try:
        result = read(Entry("block.entry", value))
    except SpecError as error:
        refused = error
    if refused is None:
        assert isinstance(result, kind)
    else:
        assert "'block.entry" in refused.message
        assert refused.hint


@pytest.mark.parametrize(
    ("read", "value", "message", "hint"),
    [
        (Entry.count, "two", "entry 'a.b' is 'two'", "write a whole number of at least 1"),
        (Entry.count, True, "entry 'a.b' is true", "write a whole number of at least 1"),
        (lambda entry: entry.number(1.0), 0.5, "entry 'a.b' is 0.5", "write a number of 1 or more"),
        (Entry.number, math.inf, "entry 'a.b' is inf", "write a number"),
        (lambda entry: entry.number(high=1.0, above=0.0, hint="a share"), 0, "entry 'a.b' is 0", "a share"),
        (Entry.size, "5 apples", "entry 'a.b' is '5 apples'", "500 MB"),
        (Entry.duration, "-1 seconds", "entry 'a.b' is negative: '-1 seconds'", "10 seconds"),
        (Entry.timeout, "0 seconds", "entry 'a.b' is '0 seconds'", "none to wait for ever"),
        (lambda entry: entry.choice(("query", "slot")), "slots", "entry 'a.b' is 'slots'", "did you mean 'slot'?"),
        (lambda entry: entry.choice(("query", "slot")), 7, "entry 'a.b' is 7", "write one of query, slot"),
        (Entry.named, {5: 1}, "entry 'a.b' has the key 5, which is not a text", 'quote it: "5"'),
        (Entry.filled, {"x": None}, "entry 'a.b.x' is empty", "indented further"),
        (lambda entry: entry.mapping("rates bytes"), {"rate": 1}, "unknown entry 'a.b.rate'", "did you mean 'rates'?"),
        (lambda entry: entry.mapping("a", {"a": "a: 1"}), {}, "entry 'a.b.a' is missing", "write for example a: 1"),
    ],
)
def test_errors_have_one_style(read: Callable[[Entry], object], value: object, message: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(Entry("a.b", value))
    assert caught.value.message == message
    assert hint in caught.value.hint


def test_an_argument_is_named_by_its_title_and_raises_its_own_kind() -> None:
    with pytest.raises(CatalogError) as caught:
        argument("the watermark of stream 's0'", "soon", CatalogError).duration()
    assert caught.value.message == "the watermark of stream 's0' is 'soon'"
    assert "expected a duration" in caught.value.detail


def test_the_kind_of_error_and_the_file_hold_for_all_entries_below() -> None:
    block = Entry("", {"rates": {"a": "fast"}}, StatisticsError, file="network.yaml")
    with pytest.raises(StatisticsError, match=r"entry 'rates\.a' is 'fast'") as caught:
        block.named()["rates"].named()["a"].number()
    assert caught.value.detail == "in file 'network.yaml'"


def test_locations_start_at_the_folder_unless_they_are_absolute_or_uris() -> None:
    read = {text: Entry("path", text).location(Path("/specs")) for text in ("out", "../x", "/y", "s3://b/k")}
    assert read == {"out": "/specs/out", "../x": "/x", "/y": "/y", "s3://b/k": "s3://b/k"}


def test_an_absent_entry_has_its_default() -> None:
    entries = Entry("", {"slots": 3, "name": None}).named()
    assert optional(entries, "slots", Entry.count, None) == 3
    assert optional(entries, "name", Entry.text, "unnamed") == "unnamed"


def test_unknown_names_get_the_nearest_known_one_or_all() -> None:
    assert suggestion("policyy", ["policy", "gate"]) == "did you mean 'policy'?"
    assert suggestion("xyz", ["policy", "gate"]) == "known here are policy, gate"


def test_values_are_shown_as_they_are_written() -> None:
    values = [None, " ", "x", 5, 2.5, False, {}, {"a": 1}, [1]]
    shown = ["empty", "empty", "'x'", "5", "2.5", "false", "empty", "a group of entries", "a list"]
    assert [found(value) for value in values] == shown


def test_a_document_names_what_is_not_yaml() -> None:
    with pytest.raises(SpecError, match=r"file 'q\.yaml' is not YAML"):
        document("queries: [", "file 'q.yaml'")
    with pytest.raises(SpecError, match="entry 'a' appears twice"):
        document("a: 1\na: 2\n")
