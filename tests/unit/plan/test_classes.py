"""Class columns: what they tell apart, which ones a mesh needs, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.errors import PlanError, UnknownAttribute
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.plan.classes import MOST_CLASSES, MOST_CODES, REST, UNKNOWN, ClassColumn, merged
from anabranch.plan.classifier import attributes
from anabranch.plan.classify import assign_routes
from anabranch.plan.classing import carrying, classes_for, with_classes, without_sources
from anabranch.plan.describe import describe_mesh
from anabranch.plan.mesh import Mesh, check_mesh, parse_mesh, parse_plan, timed_columns
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, alone, together

COLUMNS = pa.schema(
    [
        ("ts", TIMESTAMP),
        ("k", pa.int64()),
        ("v", pa.int64()),
        ("region", pa.string()),
        ("price", pa.float64()),
        ("moment", TIMESTAMP),
        ("tags", pa.list_(pa.int64())),
    ]
)
NUMBERS = st.sampled_from([-2.5, -1.0, 0.0, 0.5, 1.0, 7.0, float("inf"), float("-inf")])


def the_catalog() -> Catalog:
    catalog = Catalog()
    for name in "abc":
        catalog.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts"))
    return catalog


def the_query(more: str = "") -> Query:
    windows = ", ".join(f"{name} [RANGE 10 SECONDS]" for name in "abc")
    return compile_query(f"SELECT a.v AS v{more} FROM {windows} WHERE a.k = b.k AND b.k = c.k", the_catalog())


@given(bounds=st.lists(NUMBERS, max_size=5), values=st.lists(NUMBERS | st.none() | st.just(float("nan")), min_size=1))
def test_a_threshold_at_a_bound_separates_the_same_rows(bounds: list[float], values: list[float | None]) -> None:
    column = ClassColumn("x", pa.float64(), tuple(bounds))
    classes = assign_routes(column.tree, {"x": pa.array(values, pa.float64())}, len(values))
    stands_for = np.array([np.nan, *column.values])[classes]
    for bound in bounds:
        for value, other in zip(values, stands_for, strict=True):
            if value is None or np.isnan(value) or value == float("-inf"):
                assert np.isnan(other)
            else:
                assert (value <= bound) == (other <= bound)


def test_texts_are_classes_and_all_others_are_one() -> None:
    column = ClassColumn("x", pa.string(), texts=("b", "a", "b", "o'clock"))
    rows = pa.array(["a", "b", None, "zz", "o'clock", ""])
    classes = assign_routes(column.tree, {"x": rows}, len(rows)).tolist()
    found = [None, *column.values]
    assert [found[each] for each in classes] == ["a", "b", None, REST, "o'clock", REST]
    assert classes[2] == UNKNOWN
    assert len(ClassColumn("x", pa.string()).values) == 1


def test_of_two_columns_the_first_keeps_its_classes() -> None:
    many = ClassColumn("x", pa.float64(), tuple(map(float, range(60))))
    few = ClassColumn("x", pa.float64(), (0.25, 0.5, 100.0, 5.0))
    both = merged(few, many)
    assert {*few.bounds} <= {*both.bounds}
    assert len(both.bounds) == MOST_CLASSES
    assert max(both.bounds) == 100.0
    assert both.digest != few.digest
    with pytest.raises(PlanError, match="attribute 'x' is tested by 200 values"):
        ClassColumn("x", pa.float64(), tuple(map(float, range(200))))


def test_a_mesh_names_the_columns_that_must_travel() -> None:
    query = the_query()
    mesh = parse_mesh(
        "mesh(a: b>c, c>b by (region in {'x'} ? 0 : (v <= 3.0 ? 1 : (hour(moment) <= 6.0 ? 0 : 1))); "
        "b: a>c, c>a by (hour(ts) <= 11.5 ? 0 : (k <= 5.0 ? 0 : 1)); c: a>b, b>a by (price <= 2.5 ? 0 : 1))"
    )
    assert attributes(mesh.of("b").classifier) == ("hour(ts)", "k")
    classes = classes_for(mesh, query.graph)
    assert classes == {
        "a": (ClassColumn("region", pa.string(), texts=("x",)), ClassColumn("hour(moment)", pa.int64(), (6.0,))),
        "b": (),
        "c": (ClassColumn("price", pa.float64(), (2.5,)),),
    }
    with pytest.raises(UnknownAttribute, match="attribute 'region' is not a column of relation 'a'"):
        check_mesh(mesh, query.graph)
    carried = replace(query, graph=with_classes(query.graph, classes))
    assert check_mesh(mesh, carried.graph) is mesh
    assert carried.fingerprint == query.fingerprint
    assert "rows travel with their classes: region, hour(moment)" in describe_mesh(mesh, query.graph)
    finer = carrying(
        alone(carried), [(ALONE, mesh)], lambda q, r, each: merged(each, ClassColumn("y", each.type, (9.0,)))
    )
    (price,) = finer.graph.relation("c").classes
    assert price.bounds == (2.5, 9.0)
    travelling = without_sources(finer)
    assert not any(each.source.fields for each in travelling.graph.relations)
    assert travelling.graph.relation("c").classes == (price,)


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("nothing <= 1.0", "'nothing' is not a column of stream 'a'"),
        ("hour(nothing) <= 1.0", "'nothing' is not a column of stream 'a'"),
        ("hour(region) <= 1.0", "'region' is of type string, not a timestamp, of stream 'a'"),
        ("region <= 1.0", "attribute 'region' is of type string, and its test needs a number"),
        ("price in {'x'}", "attribute 'price' is of type double, and its test needs text"),
        ("tags <= 1.0", "attribute 'tags' is of type list"),
    ],
)
def test_tests_that_do_not_fit_a_column_are_refused_by_name(test: str, message: str) -> None:
    mesh, query = parse_mesh(f"mesh(a: b>c, c>b by ({test} ? 0 : 1); b: a>c; c: a>b)"), the_query()
    with pytest.raises(PlanError, match=message):
        check_mesh(mesh, with_classes(query.graph, classes_for(mesh, query.graph)))


def test_queries_together_have_the_classes_of_all_their_plans() -> None:
    query = the_query()
    meshes = {
        "q": parse_mesh("mesh(a: b>c, c>b by (region in {'x'} ? 0 : 1); b: a>c; c: a>b)"),
        "r": parse_mesh("mesh(a: b>c, c>b by (region in {'y'} ? 0 : (price <= 2.5 ? 0 : 1)); b: a>c; c: a>b)"),
    }
    several = together({"q": query, "r": query, "s": query})
    carried = carrying(several, meshes.items())
    assert carried.fingerprint == several.fingerprint
    assert carried.graph.relation("a").classes == (
        ClassColumn("region", pa.string(), texts=("x", "y")),
        ClassColumn("price", pa.float64(), (2.5,)),
    )
    assert not carried.graph.relation("b").classes
    for member in carried.members:
        # Any query may route by what another one brought.
        assert member.query.graph.relations == carried.graph.relations
        for mesh in meshes.values():
            assert check_mesh(mesh, member.query.graph) is mesh
    assert carrying(several, [("q", parse_plan("(a b c)"))]) is several
    travelling = without_sources(carried)
    assert not any(each.source.fields for m in travelling.members for each in m.query.graph.relations)


def test_a_column_that_another_query_carries_needs_no_class() -> None:
    query, mesh = the_query(), parse_mesh("mesh(a: b>c, c>b by (price <= 2.5 ? 0 : 1); b: a>c; c: a>b)")
    other = the_query(", a.price AS price")
    both = carrying(together({"q": query, "r": other}), [("q", mesh)])
    assert not both.graph.relation("a").classes
    assert check_mesh(mesh, both.member("q").query.graph) is mesh
    (price,) = carrying(together({"q": query}), [("q", mesh)]).graph.relation("a").classes
    assert price.bounds == (2.5,)


def test_relations_of_sides_have_the_classes_too() -> None:
    """What is the side of one query is in the core of another, and both are the same rows."""
    mesh = parse_mesh("mesh(a: b>c; b: a>c; c: a>b, b>a by (region in {'x'} ? 0 : 1))")
    outer = compile_query(
        "SELECT a.v AS v, c.v AS w FROM a [RANGE 10 SECONDS] JOIN b [RANGE 10 SECONDS] ON a.k = b.k "
        "LEFT JOIN c [RANGE 10 SECONDS] ON b.k = c.k",
        the_catalog(),
    )
    several = carrying(together({"q": the_query(), "r": outer}), [("q", mesh)])
    (region,) = several.graph.relation("c").classes
    assert several.member("r").query.whole.relation("c").classes == (region,)
    assert [each.classes for each in several.member("r").query.sides[0].own] == [(region,)]


def test_classes_of_plans_precede_finer_classes() -> None:
    """Two plans with more bounds than a search takes: all are kept, and no finer ones."""
    query = the_query()

    def chain(bounds: list[float]) -> Mesh:
        tests = "0"
        for bound in bounds:
            tests = f"(price <= {bound} ? 1 : {tests})"
        return parse_mesh(f"mesh(a: b>c, c>b by {tests}; b: a>c; c: a>b)")

    def finer(query: str, relation: str, column: ClassColumn) -> ClassColumn:
        return merged(column, replace(column, bounds=(-1.0, *map(float, range(1_000, 1_050)))))

    one, other = [float(each) for each in range(40)], [each + 0.5 for each in range(40)]
    several = together({"q": query, "r": query})
    (price,) = carrying(several, [("q", chain(one)), ("r", chain(other))], finer).graph.relation("a").classes
    assert price.bounds == tuple(sorted([*one, *other]))
    (few,) = carrying(several, [("q", chain(one[:2])), ("r", chain(other[:2]))], finer).graph.relation("a").classes
    assert {0.0, 0.5, 1.0, 1.5, -1.0} < {*few.bounds}
    assert len(few.bounds) <= MOST_CLASSES
    # More than fit a byte: all of the last plan, and of the first as many as there is room for.
    most = [("q", chain([float(each) for each in range(100)])), ("r", chain([each + 0.5 for each in range(100)]))]
    (full,) = carrying(several, most).graph.relation("a").classes
    assert len(full.values) == MOST_CODES
    assert {each + 0.5 for each in range(100)} < {*full.bounds}


def test_the_event_time_of_a_result_has_no_hour() -> None:
    """Found by drawn schedules: a mesh over another query's results tested the hour of a column that no state has."""
    relation = the_query().graph.relation("a")
    assert timed_columns(relation) == ("ts",)
    assert timed_columns(replace(relation, is_result=True)) == ()
