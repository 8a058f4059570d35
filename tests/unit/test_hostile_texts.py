"""Hostile texts: specs, plans, column lists and queries of any kind end in a named error, never in another one."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.errors import AnabranchError, ParseError, PlanError, SpecError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.plan.mesh import parse_plan
from anabranch.spec.file import parse

WHOLE = yaml.safe_load(
    re.findall(r"```yaml\n(.*?)```", (Path(__file__).parents[2] / "docs/spec.md").read_text(), re.DOTALL)[0]
)
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, 0, -1, 10**30, 1.5, float("nan"), float("inf"), "", " ", "x", "💥", "a b", "${HOME}", "../..",
     "!!python/object/apply:os.system [id]", "\x00", [], {}, [None], [[]], {"x": 1}, {1: 2}, "9" * 400, ["a"] * 3]
)  # fmt: skip
CATALOG = Catalog()
CATALOG.register(StreamDeclaration("a", parse_schema("ts timestamp, k bigint"), "ts"))
PIECES = st.sampled_from([*"ab()[]{}|>#,:;? 019'`", "mesh(", "mjoin", " by ", "<=", "->", "\n", "é", "💥"])


def refused_or_read(text: str) -> None:
    """Reads a spec; only an error of ours with a hint may come out."""
    try:
        parse(text, folder=Path("/specs"))
    except AnabranchError as error:
        refusal: AnabranchError | None = error
    else:
        refusal = None
    assert refusal is None or refusal.hint, str(refusal)


@given(data=st.data())
def test_a_spec_with_any_entry_replaced_is_read_or_refused(data: st.DataObject) -> None:
    document: Any = copy.deepcopy(WHOLE)
    node, key = document, data.draw(st.sampled_from(sorted(document)), "entry")
    while isinstance(node[key], dict | list) and node[key] and data.draw(st.booleans(), "deeper"):
        node = node[key]
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else list(range(len(node)))), "key")
    node[key] = data.draw(ODD, "value")
    refused_or_read(yaml.safe_dump(document, allow_unicode=True))


@given(cut=st.integers(0, 2000), put=st.text(max_size=5))
def test_a_spec_that_is_cut_or_altered_anywhere_is_read_or_refused(cut: int, put: str) -> None:
    text = yaml.safe_dump(WHOLE)
    refused_or_read(text[:cut] + put + text[cut + 3 :])


def test_a_spec_runs_no_code(tmp_path: Path) -> None:
    for tag in ("!!python/object/apply:os.mkdir", "!!python/object/new:os.system", "!!python/name:os.system"):
        with pytest.raises(SpecError, match="is not YAML"):
            parse(f"streams: {tag} ['{tmp_path}/made']", folder=tmp_path)
    assert not (tmp_path / "made").exists()


@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=30))
def test_any_plan_text_is_read_or_refused(text: str) -> None:
    refusal: AnabranchError | None = None
    try:
        parse_plan(text)
    except PlanError as error:
        refusal = error
    assert refusal is None or refusal.hint


@pytest.mark.parametrize("depth", [100, 3_000, 100_000])
def test_too_deep_nesting_is_refused_by_name(depth: int) -> None:
    deep = "(" * depth
    if depth > 100:
        with pytest.raises(PlanError, match="too many brackets"):
            parse_plan(deep + "a b" + ")" * depth)
        with pytest.raises(SpecError, match="nested too deep"):
            parse("[" * depth, folder=Path("/specs"))
        with pytest.raises(ValueError, match="nested too deep"):
            parse_schema("a " + "struct<b: " * depth + "int" + ">" * depth)
    # The parser of queries is Python alone, whose depth ends long before this; longer texts only take longer to read.
    depth = min(depth, 10_000)
    for text in (
        f"SELECT {deep}a.k FROM a [NOW]",
        f"SELECT k FROM {'(SELECT k FROM ' * depth}a [NOW]",
        f"SELECT a.k FROM a [NOW] WHERE {'NOT ' * depth}a.k = 1",
        f"SELECT a.k FROM a [NOW] WHERE a.k IN (SELECT {'k FROM a [NOW] WHERE k IN (SELECT ' * depth}",
    ):
        with pytest.raises(ParseError):
            compile_query(text, CATALOG)


def test_a_secret_in_a_spec_is_in_no_error() -> None:
    document = copy.deepcopy(WHOLE)
    document["sink"]["options"] = {"password": ["hunter2"], "url": "jdbc:x"}
    with pytest.raises(SpecError) as refused:
        parse(yaml.safe_dump(document), folder=Path("/specs"))
    assert "hunter2" not in str(refused.value)
    with pytest.raises(SpecError) as refused:
        parse("sink: {options: {password: hunter2, url: [}}", folder=Path("/specs"))
    assert "hunter2" not in str(refused.value)
