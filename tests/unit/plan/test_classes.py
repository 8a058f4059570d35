"""Class columns: what they tell apart, which ones a mesh needs, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.classify import assign_routes
from anabranch.cql import compile_query
from anabranch.errors import PlanError, UnknownAttribute
from anabranch.plan.classes import MOST_CLASSES, REST, UNKNOWN, ClassColumn, merged
from anabranch.plan.classifier import attributes
from anabranch.plan.classing import carrying, classes_for, with_classes, without_sources
from anabranch.plan.describe import describe_mesh
from anabranch.plan.mesh import check_mesh, parse_mesh, timed_columns
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, alone, together
from anabranch.schema import TIMESTAMP, Schema

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


def the_query() -> Query:
    catalog = Catalog()
    for name in "abc":
        catalog.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts"))
    windows = ", ".join(f"{name} [RANGE 10 SECONDS]" for name in "abc")
    return compile_query(f"SELECT a.v AS v FROM {windows} WHERE a.k = b.k AND b.k = c.k", catalog)


@given(bounds=st.lists(NUMBERS, max_size=5), values=st.lists(NUMBERS | st.none() | st.just(float("nan")), min_size=1))
def test_a_threshold_that_is_a_bound_tells_the_same_rows_apart(bounds: list[float], values: list[float | None]) -> None:
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
    carried = with_classes(query, classes)
    assert check_mesh(mesh, carried.graph) is mesh
    assert carried.fingerprint == query.fingerprint
    assert "rows travel with their classes: region, hour(moment)" in describe_mesh(mesh, query.graph)
    finer = carrying(alone(carried), [mesh], lambda _, column: merged(column, ClassColumn("y", column.type, (9.0,))))
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
def test_what_cannot_be_tested_is_refused_by_name(test: str, message: str) -> None:
    mesh, query = parse_mesh(f"mesh(a: b>c, c>b by ({test} ? 0 : 1); b: a>c; c: a>b)"), the_query()
    with pytest.raises(PlanError, match=message):
        check_mesh(mesh, with_classes(query, classes_for(mesh, query.graph)).graph)


def test_queries_together_have_no_class_columns() -> None:
    query = the_query()
    mesh = parse_mesh("mesh(a: b>c, c>b by (region in {'x'} ? 0 : 1); b: a>c; c: a>b)")
    several = together({"q": query, "r": query})
    assert carrying(several, [mesh]) is several
    assert carrying(alone(query), [mesh]).member(ALONE).query.graph.relation("a").classes


def test_the_event_time_of_a_result_has_no_hour() -> None:
    """Found by drawn schedules: a mesh over another query's results tested the hour of a column that no state has."""
    relation = the_query().graph.relation("a")
    assert timed_columns(relation) == ("ts",)
    assert timed_columns(replace(relation, is_result=True)) == ()
