from __future__ import annotations

import pyarrow as pa

from anabranch.lang.expr import Call, Column
from anabranch.lang.schema import Field, Schema
from anabranch.lang.window import Window
from anabranch.plan.describe import conditions, describe
from anabranch.plan.join_graph import JoinGraph, KeyClass, Relation, Theta
from anabranch.plan.text import parse

SCHEMA = Schema((Field("k", pa.int64()), Field("p", pa.int64())))


def column(relation: str, name: str) -> Column:
    return Column(relation, name, pa.int64())


GRAPH = JoinGraph(
    tuple(Relation(name, f"s{name}", SCHEMA, "ts", Window(10_000_000)) for name in "abc"),
    (KeyClass("k0", tuple((name, column(name, "k")) for name in "abc"), pa.int64()),),
    (Theta(Call("less", (column("a", "p"), column("c", "p")), pa.bool_()), frozenset("ac")),),
)


def test_each_predicate_is_added_by_exactly_one_join_of_a_tree() -> None:
    assert conditions(parse("((a b) c)"), GRAPH) == {"(a b)": ("a.k = b.k",), "((a b) c)": ("a.k = c.k", "a.p < c.p")}


def test_a_deferred_predicate_is_described_where_it_is_checked() -> None:
    assert conditions(parse("((a c) b #0)"), GRAPH) == {
        "(a c)": ("a.k = c.k",),
        "((a c) b #0)": ("a.k = b.k", "a.p < c.p (#0, deferred)"),
    }


def test_an_mjoin_adds_all_predicates_at_once() -> None:
    assert conditions(parse("(a b c)"), GRAPH) == {"(a b c)": ("a.k = b.k = c.k", "a.p < c.p")}


def test_the_description_names_joins_orders_states_and_relations() -> None:
    assert describe(parse("((a b) c)"), GRAPH).split("\n") == [
        "plan ((a b) c)",
        "  join (a b) kept as state",
        "    on a.k = b.k",
        "    probe a > b",
        "    probe b > a",
        "  join ((a b) c)",
        "    on a.k = c.k AND a.p < c.p",
        "    probe (a b) > c",
        "    probe c > (a b)",
        "  relation a = sa [RANGE 10 SECONDS]",
        "  relation b = sb [RANGE 10 SECONDS]",
        "  relation c = sc [RANGE 10 SECONDS]",
        "  #0 is a.p < c.p",
    ]


def test_merged_inputs_are_named_and_what_is_only_merged_is_not_kept() -> None:
    lines = describe(parse("([(a b)] c)"), GRAPH).split("\n")
    assert lines[:3] == ["plan ([(a b)] c)", "  merge [(a b)] kept as state", "  join (a b)"]


def test_a_join_without_predicates_is_described() -> None:
    assert "nothing: every pair within the windows" in describe(parse("(a b)"), JoinGraph(GRAPH.relations[:2]))
