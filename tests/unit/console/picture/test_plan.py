from __future__ import annotations

from xml.etree import ElementTree

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.console.picture import OUTPUT, plan_svg
from anabranch.cql import compile_query
from anabranch.lang.expr import GROUPED, AggregateCall, Call, Column, Expr, Literal
from anabranch.lang.schema import Field, Schema
from anabranch.lang.window import Window
from anabranch.plan.join_graph import JoinGraph, KeyClass, Relation, Theta
from anabranch.plan.logical import Output
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, linear_tree, mjoin, nodes
from anabranch.plan.query import Grouping, Query
from anabranch.plan.text import parse
from tests.unit.console.picture.pages import SVG, boxes_apart, with_catalog, with_sides

SCHEMA = Schema((Field("k", pa.int64()), Field("p", pa.int64())))


def column(relation: str, name: str = "k") -> Column:
    return Column(relation, name, pa.int64())


def comparison(function: str, left: Expr, right: Expr) -> Call:
    return Call(function, (left, right), pa.bool_())


def make_query(names: str, *, grouping: Grouping | None = None, theta: bool = False) -> Query:
    """A query on one key over relations of one letter each; with a theta between the first two if asked."""
    relations = tuple(
        Relation(
            name,
            f"stream_{name}",
            SCHEMA,
            "ts",
            Window((index + 1) * 10_000_000),
            filter=comparison("greater", column(name, "p"), Literal(7, pa.int64())) if index % 2 else None,
        )
        for index, name in enumerate(names)
    )
    keys = (KeyClass("k0", tuple((name, column(name)) for name in names), pa.int64()),) if len(names) > 1 else ()
    predicate = comparison("less", column(names[0], "p"), column(names[-1], "p"))
    thetas = (Theta(predicate, frozenset({names[0], names[-1]})),) if theta else ()
    outputs = tuple(Output(f"p_{name}", column(name, "p")) for name in names)
    return Query("", JoinGraph(relations, keys, thetas), outputs, grouping)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def drums(svg: str) -> int:
    """Stores drawn, the legend's left out."""
    root = ElementTree.fromstring(svg)
    return sum(element.get("rx") == "15" for element in root.iter(f"{SVG}ellipse"))


def test_sources_carry_window_and_filter() -> None:
    found = texts(plan_svg(make_query("ab"), parse("(a b)")))
    assert "a = stream_a" in found
    assert "[RANGE 20 SECONDS]" in found
    assert "b.p > 7" in found


def test_every_join_states_what_it_adds() -> None:
    found = texts(plan_svg(make_query("abc", theta=True), parse("((a b) c)")))
    assert "a.k = b.k" in found
    assert "a.k = c.k" in found
    assert found.count("a.p < c.p") == 1


def test_probe_orders_stand_at_the_inputs() -> None:
    found = texts(plan_svg(make_query("abc"), parse("(a b c | a>c>b)")))
    assert "a → c → b" in found
    assert "b → c → a" in found


def test_a_join_without_a_predicate_says_so() -> None:
    query = make_query("ab")
    graph = JoinGraph(query.graph.relations)
    assert "every pair within the windows" in texts(plan_svg(Query("", graph, query.outputs), parse("(a b)")))


def test_grouping_and_having_are_spelled_in_the_users_words() -> None:
    count = AggregateCall("count", None, pa.int64())
    having = comparison("greater", Column(GROUPED, "aggregate0", pa.int64()), Literal(3, pa.int64()))
    found = texts(
        plan_svg(make_query("ab", grouping=Grouping((column("a"),), (count,), having, 5_000_000)), parse("(a b)"))
    )
    assert "group by a.k" in found
    assert "HAVING COUNT(*) > 3" in found
    assert "every 5 SECONDS" in found


def test_notes_are_written_at_their_nodes() -> None:
    svg = plan_svg(
        make_query("abc"), parse("((a b) c)"), notes={"(a b)": "9 rows/s", "c": "2 MB", OUTPUT: "done & <dusted>"}
    )
    assert {"9 rows/s", "2 MB", "done & <dusted>"} <= set(texts(svg))


def test_a_single_relation_needs_no_join() -> None:
    svg = plan_svg(make_query("a"), Leaf("a"))
    assert "a = stream_a" in texts(svg)
    assert drums(svg) == 0


def test_the_same_plan_gives_the_same_bytes() -> None:
    query, plan = make_query("abcd"), parse("((a b) c d)")
    assert plan_svg(query, plan) == plan_svg(query, plan)


@pytest.mark.parametrize("count", range(2, 9))
def test_an_mjoin_keeps_base_states_only_and_a_tree_every_intermediate_result(count: int) -> None:
    names = "abcdefgh"[:count]
    query = make_query(names)
    assert drums(plan_svg(query, mjoin(tuple(names)))) == count
    assert drums(plan_svg(query, linear_tree(tuple(names)))) == count + (count - 2)


@st.composite
def plans(draw: st.DrawFn) -> PhysicalPlan:
    parts: list[PhysicalPlan] = [Leaf(name) for name in "abcdefgh"[: draw(st.integers(2, 8))]]
    while len(parts) > 1:
        arity = draw(st.integers(2, len(parts)))
        start = draw(st.integers(0, len(parts) - arity))
        parts[start : start + arity] = [JoinNode(tuple(parts[start : start + arity]))]
    return parts[0]


@given(plans())
def test_boxes_stay_on_the_page_and_apart(plan: PhysicalPlan) -> None:
    svg = plan_svg(make_query("".join(sorted(plan.relations)), theta=True), plan)
    assert boxes_apart(svg) == len(plan.relations) + len(list(nodes(plan))) + 1


def test_a_merged_input_enters_through_a_store_of_its_own() -> None:
    found = texts(plan_svg(make_query("ab"), parse("([a] b)")))
    assert "[a]" in found
    assert "intermediate results kept as state" in found


def test_streams_and_tables_of_sides_enter_through_stores_of_their_own() -> None:
    """Only the join was drawn, and nothing of what it reads."""
    query = with_sides()
    picture = plan_svg(query, mjoin(("a", "b")), notes={"c": "12 rows in"})
    assert {"anti join c", "left join t", "c = stream_c", "t = table_t", "[RANGE 1 MINUTE]", "12 rows in"} <= {
        *texts(picture)
    }
    assert "c.p > 7" in "".join(texts(picture))
    assert drums(picture) == 4
    assert boxes_apart(picture) == len("abct") + 1 + len(query.sides) + 1


def test_a_single_relation_with_a_side_needs_no_join() -> None:
    catalog = with_catalog()
    text = "SELECT a.p FROM stream_a [NOW] AS a LEFT ANTI JOIN stream_c [NOW] AS c ON c.k = a.k"
    picture = plan_svg(compile_query(text, catalog), Leaf("a"))
    assert "c = stream_c" in texts(picture)
    assert boxes_apart(picture) == 4


def test_a_shared_join_is_drawn_as_one() -> None:
    plan = parse("({a b} c)")
    picture = plan_svg(make_query("abc"), plan, notes={"(a b)": "once for q0, q1"})
    assert "shared join" in texts(picture)
    assert "once for q0, q1" in texts(picture)
    assert "shared join" not in texts(plan_svg(make_query("abc"), parse("((a b) c)")))
