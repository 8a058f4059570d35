"""A plan that does not compute its query is refused with what it has too much or too little."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from anabranch.errors import PlanError
from anabranch.lang.expr import AggregateCall, Call, Column, Literal
from anabranch.lang.schema import Schema
from anabranch.lang.window import CountWindow, Window
from anabranch.plan.check import validate
from anabranch.plan.join_graph import JoinGraph, KeyClass, Relation, Theta
from anabranch.plan.physical import JoinNode, Leaf, PreGroup, probe_order
from anabranch.plan.query import Grouping
from anabranch.plan.text import parse

LONG = pa.int64()


def relation(name: str) -> Relation:
    return Relation(name, f"s{name}", Schema(()), "ts", Window(1))


def key(name: str, *relations: str) -> KeyClass:
    return KeyClass(name, tuple((r, Column(r, name, LONG)) for r in relations), LONG)


def less(left: str, right: str) -> Theta:
    return Theta(
        Call("less", (Column(left, "v", LONG), Column(right, "v", LONG)), pa.bool_()), frozenset((left, right))
    )


CHAIN = JoinGraph(tuple(relation(name) for name in "abcd"), (key("x", "a", "b"), key("y", "b", "c")), (less("c", "d"),))

COUNT = Grouping((), (AggregateCall("count", None, LONG),), None, 1)

REFUSED = {
    "(a b)": "plan '(a b)' leaves out 'c'\nhint: name each of a, b, c, d once",
    "a": "plan 'a' leaves out 'b'\nhint: name each of a, b, c, d once",
    "(a b c d z)": (
        "plan '(a b c d z)' joins 'z', which the query does not have\nhint: the query's relations are a, b, c, d"
    ),
    "(A b c d)": (
        "plan '(A b c d)' joins 'A', which the query does not have\nhint: the query's relations are a, b, c, d"
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_plan_of_other_relations_is_refused(text: str) -> None:
    with pytest.raises(PlanError) as caught:
        validate(parse(text), CHAIN)
    assert str(caught.value) == REFUSED[text]


@pytest.mark.parametrize("text", ["(a b c d)", "((d c) (b a))", "((a b) c d | c>(a b)>d)"])
def test_a_plan_of_all_relations_passes_unchanged(text: str) -> None:
    plan = parse(text)
    assert validate(plan, CHAIN) is plan


def test_rows_are_merged_only_below_the_group_by_of_a_grouped_query() -> None:
    plan = parse("([a] b c d)")
    with pytest.raises(PlanError) as caught:
        validate(plan, CHAIN)
    assert str(caught.value).startswith("plan '([a] b c d)' merges rows in '[a]', which the query does not allow\n")
    assert validate(plan, CHAIN, COUNT) is plan
    with pytest.raises(PlanError, match="merges the rows of the whole query"):
        validate(PreGroup(parse("(a b c d)")), CHAIN, COUNT)
    with pytest.raises(PlanError, match="merges the same rows twice"):
        PreGroup(PreGroup(Leaf("a")))


def test_rows_that_would_have_to_agree_in_a_list_are_not_merged() -> None:
    size = Call("size", (Column("a", "tags", pa.list_(LONG)),), LONG)
    longer = Theta(Call("less", (size, Column("b", "v", LONG)), pa.bool_()), frozenset("ab"))
    graph = JoinGraph((relation("a"), relation("b")), (), (longer,))
    assert validate(parse("(a [b])"), graph, COUNT)
    with pytest.raises(PlanError) as caught:
        validate(parse("([a] b)"), graph, COUNT)
    assert "they would have to agree in 'a.tags'" in str(caught.value)


def test_a_join_with_too_few_orders_is_refused() -> None:
    with pytest.raises(PlanError, match="1 orders for 2 inputs"):
        JoinNode((Leaf("a"), Leaf("b")), ((1,),))


def test_rows_probe_along_keys_first_then_along_other_predicates() -> None:
    plan = parse("(a d c b)")
    assert isinstance(plan, JoinNode)
    names = [[plan.inputs[i].relations[0] for i in (start, *probe_order(plan, start, CHAIN))] for start in range(4)]
    assert names == [["a", "b", "c", "d"], ["d", "c", "b", "a"], ["c", "b", "a", "d"], ["b", "a", "c", "d"]]


def test_connected_and_unconnected_relations() -> None:
    assert [k.name for k in CHAIN.keys_between("a", "bc")] == ["x"]
    assert [k.name for k in CHAIN.keys_of("b")] == ["x", "y"]
    assert CHAIN.thetas_between("abc", "d") == (less("c", "d"),)
    assert CHAIN.thetas_between("ab", "d") == ()
    assert CHAIN.are_connected("c", "d")
    assert not CHAIN.are_connected("a", "cd")
    assert CHAIN.is_connected
    assert not JoinGraph(CHAIN.relations, CHAIN.keys).is_connected


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: JoinGraph((relation("a"), relation("a"))), "two relations of a join graph have the same name"),
        (
            lambda: JoinGraph((relation("a"),), (key("k", "a", "z"),)),
            "key class 'a.k = z.k' does not fit the relations a",
        ),
        (
            lambda: JoinGraph((relation("a"), relation("b")), (), (less("a", "z"),)),
            "predicate 'a.v < z.v' does not join relations of the graph",
        ),
        (
            lambda: JoinGraph((relation("a"),), (), (Theta(Literal(True, pa.bool_()), frozenset("a")),)),
            "predicate 'TRUE' does not join relations of the graph",
        ),
        (lambda: CHAIN.relation("z"), "no relation 'z' in the join graph\nit has a, b, c, d"),
    ],
)
def test_an_ill_formed_graph_is_refused(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(PlanError) as caught:
        build()
    assert str(caught.value) == message


def test_a_plan_that_keeps_rows_of_a_count_window_is_refused() -> None:
    counted = replace(
        CHAIN, relations=(replace(relation("a"), window=CountWindow(None, None, 3)), *CHAIN.relations[1:])
    )
    with pytest.raises(PlanError, match=r"'a', which has a count window, in state '\(a b\)'"):
        validate(parse("(((a b) c) d)"), counted)
    with pytest.raises(PlanError, match=r"count window, in state '\{a b c d\}'"):
        validate(parse("{a b c d}"), counted)
    with pytest.raises(PlanError, match="count window"):
        validate(JoinNode((PreGroup(Leaf("d")), Leaf("a"), Leaf("b"), Leaf("c"))), counted, COUNT)
    for text in ("(a b c d)", "((b c) a d)", "(((b c) d) a)"):
        assert str(validate(parse(text), counted)) == text
