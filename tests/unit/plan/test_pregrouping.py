"""What rows must agree on to be merged: what anything above them reads, and nothing else."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.plan.content import Applied, Content
from anabranch.plan.difference import boxes, match_states
from anabranch.plan.physical import kept
from anabranch.plan.pregrouping import agreement
from anabranch.plan.text import parse

COLUMNS = pa.schema(
    [
        ("ts", TIMESTAMP),
        ("k", pa.int64()),
        ("g", pa.string()),
        ("v", pa.int32()),
        ("f", pa.float64()),
        ("s", pa.string()),
    ]
)
CASES = {
    # select list, condition, group keys: codes, values and carried parts of a
    ("COUNT(*) AS n", "a.k = b.k", "b.g"): (1, [], []),
    ("SUM(a.v) AS n", "a.k = b.k", "a.k"): (1, [], ["part0.sum"]),
    ("AVG(a.f) AS n, COUNT(a.s) AS m", "a.k = b.k", "b.g"): (1, [], ["part0.sum", "part0.count", "part1.count"]),
    ("SUM(b.v) AS n", "a.s = b.s", "b.g"): (1, ["a.s"], []),
    ("SUM(b.v) AS n", "a.k = b.k AND a.v < b.v", "b.g"): (1, ["a.v"], []),
    ("MIN(a.s) AS n, MAX(a.f) AS m", "a.k = b.k", "b.g"): (1, ["a.s"], ["part1.max"]),
    ("SUM(a.v * b.v) AS n", "a.k = b.k", "b.g"): (1, ["a.v"], []),
    ("SUM(a.v + a.k) AS n", "a.k = b.k", "b.g"): (1, ["a.v"], []),
    ("SUM(1) AS n", "a.k = b.k", "a.v % 2"): (1, ["CAST(a.v AS BIGINT) % 2"], []),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_agree_in_what_is_read_above_them(case: tuple[str, str, str]) -> None:
    selected, condition, keys = case
    catalog = Catalog()
    for name in ("s0", "s1"):
        catalog.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts", 0))
    window = "[RANGE 10 SECONDS SLIDE 5 SECONDS]"
    query = compile_query(
        f"SELECT {selected} FROM s0 {window} AS a, s1 {window} AS b WHERE {condition} GROUP BY {keys}", catalog
    )
    assert query.grouping is not None
    found = agreement(query.graph, query.grouping, ["a"])
    codes, values, carried = CASES[case]
    assert len(found.codes) == codes
    assert [str(value) for value in found.values] == values
    assert [part.name for part in found.carried] == carried


def test_a_state_is_known_by_what_was_merged_in_it() -> None:
    plan = parse("(([a] b) [(c d)] e)")
    assert [inner.shape for inner in kept(plan)] == ["[a]", "([a] b)", "[(c d)]"]
    a, cd = frozenset("a"), frozenset("cd")
    assert [inner.content for inner in kept(plan)] == [
        Content(a, frozenset({Applied("merge", a)})),
        Content(frozenset("ab"), frozenset({Applied("merge", a)})),
        Content(cd, frozenset({Applied("merge", cd)})),
    ]


def test_states_with_the_same_rows_merged_are_handed_over() -> None:
    matching = match_states(parse("((([a] b) [(c d)]) e)"), parse("([a] b [(d c)] e)"))
    assert matching.moved == (("[a]", "[a]"), ("[(c d)]", "[(d c)]"))
    assert matching.recomputed == ()
    assert matching.discarded == ("([a] b)", "(([a] b) [(c d)])")
    assert match_states(parse("((a b) c)"), parse("(([a] b) c)")).recomputed == ("[a]", "([a] b)")


def test_merging_an_input_is_a_box_up_to_the_root() -> None:
    (box,) = boxes(parse("((a b) c)"), parse("(([a] b) c)"))
    assert box.output == Content.of("abc")
    assert sorted(sorted(part.relations) for part in box.inputs) == [["a"], ["b"], ["c"]]
    (inner,) = boxes(parse("([(a b)] c)"), parse("([([a] b)] c)"))
    assert inner.output == Content(frozenset("ab"), frozenset({Applied("merge", frozenset("ab"))}))
    assert [node.shape for node in inner.new] == ["([a] b)"]
