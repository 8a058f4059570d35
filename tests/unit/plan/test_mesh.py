"""Meshes as text and as values: what is printed is read back, and what does not compute the query is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.errors import PlanError, UnknownAttribute
from anabranch.plan.classing import classes_for, with_classes
from anabranch.plan.describe import describe_mesh
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import check_mesh, check_plan, one_route, parse_mesh, parse_plan
from anabranch.plan.physical import mjoin
from tests.support.meshes import meshes
from tests.support.scripted import read_script
from tests.support.strategies import arrivals, join_queries


def graph_of(where: str) -> JoinGraph:
    script = read_script("\n".join(f"stream {name} (k bigint, v bigint, w string)" for name in "abc"))
    windows = ", ".join(f"{name} [RANGE 10 SECONDS]" for name in "abc")
    text = f"SELECT a.v AS x, b.v AS y, c.v AS z, a.w AS w FROM {windows} WHERE {where}"
    return compile_query(text, script.catalog).graph


GRAPH = graph_of("a.k = b.k AND b.k = c.k AND a.v < b.v")


@given(data=st.data(), relations=st.integers(1, 5))
def test_a_mesh_is_read_back_as_it_was_printed(data: st.DataObject, relations: int) -> None:
    rows = data.draw(arrivals(relations, most_rows=0))
    graph = compile_query(data.draw(join_queries(relations, relations)).cql, rows.catalog).graph
    mesh = data.draw(meshes(graph))
    assert check_mesh(mesh, with_classes(graph, classes_for(mesh, graph))) == mesh
    assert parse_mesh(str(mesh)) == mesh
    assert parse_plan(f"  {str(mesh).replace(' ', '  ')} ") == mesh


def test_a_route_of_two_digits_is_read_back() -> None:
    text = f"mesh(a: {', '.join(['b'] * 13)} by 12; b: a)"
    assert str(parse_mesh(text)) == text


def test_the_mesh_of_one_route_each_is_the_mjoin_with_its_default_orders() -> None:
    chain = graph_of("a.k = b.k AND b.v = c.v")
    assert str(one_route(chain)) == "mesh(a: b>c; b: c>a; c: b>a)"
    assert str(one_route(chain, {"b": ("c", "a")})) == "mesh(a: b>c; b: c>a; c: b>a)"


def test_a_text_that_is_no_mesh_is_a_plan() -> None:
    assert parse_plan("(a b c)") == mjoin(("a", "b", "c"))
    assert check_plan(parse_plan("(a b c)"), GRAPH) == mjoin(("a", "b", "c"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("mesh(a: b>c; b: a>c)", "no route for 'c'"),
        ("mesh(a: b>c; b: a>c; c: a>b; d: a>b)", "'d', which the query does not have"),
        ("mesh(a: b; b: a>c; c: a>b)", "does not probe every other relation once"),
        ("mesh(a: a>b>c; b: a>c; c: a>b)", "does not probe every other relation once"),
        ("mesh(a: b>c>d; b: a>c; c: a>b)", "takes 'd', which the query does not have"),
        ("mesh(a: b>#1>c; b: a>c; c: a>b)", "takes '#1', which the query does not have"),
        ("mesh(a: c>#0>b; b: a>c; c: a>b)", "checks '#0' before 'b' is bound"),
        ("mesh(a: b>b?>c; b: a>c; c: a>b)", "checks for 'b' after joining it"),
        ("mesh(a: a?>b>c; b: a>c; c: a>b)", "checks for 'a' after joining it"),
        ("mesh(a: c?>b; b: a>c; c: a>b)", "does not probe every other relation once"),
    ],
)
def test_a_mesh_that_does_not_compute_the_query_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        check_mesh(parse_mesh(text), GRAPH)


def test_a_predicate_that_may_keep_another_from_failing_is_not_put_off() -> None:
    """Plans refused it and meshes did not: pairs that the first rejects overflowed in the second."""
    graph = graph_of("a.k = b.k AND b.k = c.k AND ABS(a.v - b.v) <> 2 AND (a.v - b.v) * 9000000000000000000 > 0")
    with pytest.raises(PlanError, match="route 'b>c>#0' of relation 'a' cannot defer '#0'"):
        check_mesh(parse_mesh("mesh(a: b>c>#0; b: a>c; c: a>b)"), graph)
    assert check_mesh(one_route(graph), graph)


def test_a_classifier_may_only_ask_for_columns_that_the_relation_has() -> None:
    mesh = parse_mesh("mesh(a: b>c, c>b by (price <= 1.0 ? 0 : 1); b: a>c; c: a>b)")
    with pytest.raises(UnknownAttribute, match="attribute 'price' is not a column of relation 'a'"):
        check_mesh(mesh, GRAPH)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("mesh(a: b>b)", "takes 'b' twice"),
        ("mesh(a: c?>b?>c?>b>c)", r"takes 'c\?' twice"),
        ("mesh(a: #0?>b)", "expected ',', ';', '>'"),
        ("mesh(a: b; a: b)", "relation 'a' occurs twice"),
        ("mesh(a: b, b by (k <= 1.0 ? 0 : 2))", "assigns route 2, and there are only 2"),
        ("mesh(a: b, c)", "character 13: expected 'by' and a classifier for the 2 routes of 'a'"),
        ("mesh(a b)", "character 8: expected ':'"),
        ("mesh(a: b>)", "character 11: expected a relation or a predicate"),
        ("mesh(a: b|c; b: a>c; c: b>a)", "expected ',', ';', '>', 'by' or '\\)', found '\\|'"),
        ("mesh(a: b", "expected ',', ';', '>', 'by' or '\\)', found the end"),
        ("mesh(a: b) c", "expected the end of the mesh, found 'c'"),
        ("mesh(#0: b)", "expected a relation, found '#0'"),
        ("mesh(a: b by (k < 1 ? 0 : 0))", "classifier text is wrong"),
        ("mesh(a: b by", "classifier text is wrong"),
    ],
)
def test_a_text_that_is_not_a_mesh_is_refused_at_its_place(text: str, complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        parse_mesh(text)


def test_a_mesh_is_described_with_its_classifier_and_its_routes() -> None:
    mesh = parse_mesh("mesh(a: b>#0>c, c>b by (v <= 1.0 ? 0 : 1); b: a>c; c: b?>a>b)")
    assert describe_mesh(mesh, GRAPH).split("\n")[1:8] == [
        "  rows of a by v",
        "    classifier (v <= 1.0 ? 0 : 1)",
        "    route 0: b > [a.v < b.v] > c",
        "    route 1: c > b",
        "  rows of b",
        "    route 0: a > c",
        "  rows of c",
    ]
    assert "    route 0: any b? > a > b" in describe_mesh(mesh, GRAPH).split("\n")
