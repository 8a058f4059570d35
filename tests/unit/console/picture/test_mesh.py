from __future__ import annotations

from xml.etree import ElementTree

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from anabranch import cql
from anabranch.console.picture import RouteNote, mesh_svg
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.plan.classifier import leaves
from anabranch.plan.mesh import Mesh, parse_mesh
from anabranch.plan.query import Query
from tests.support.meshes import meshes
from tests.unit.console.picture.pages import SVG, boxes_apart, with_sides


def make_query() -> Query:
    catalog = Catalog()
    for name in ("trades", "news", "posts"):
        fields = (Field("ts", TIMESTAMP, False), Field("k", pa.int64()), Field("sector", pa.string()))
        catalog.register(StreamDeclaration(name, Schema(fields), "ts"))
    return cql.compile_query(
        "SELECT t.sector AS a, n.sector AS b FROM trades [RANGE 9 SECONDS] AS t, news [RANGE 5 SECONDS] AS n,"
        " posts [RANGE 5 SECONDS] AS p WHERE t.k = n.k AND n.k = p.k AND t.sector <> p.sector",
        catalog,
    )


QUERY = make_query()
MESH = parse_mesh(
    "mesh(t: n>p, p>n, n>p by (k <= 1500000.5 ? 0 : (sector in {'food', 'it'} or null ? 1 : 2)); n: t>p>#0; p: n>t)"
)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def lines(svg: str) -> dict[str, list[float]]:
    """The widths of the lines from left to right, by colour and in the order they are drawn."""
    found: dict[str, list[float]] = {}
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        if path.get("stroke-linecap") == "round":
            found.setdefault(path.get("stroke", ""), []).append(float(path.get("stroke-width", "0")))
    return found


def test_the_classifier_the_routes_and_the_single_lines_are_drawn_in_this_order() -> None:
    assert texts(mesh_svg(QUERY, MESH)) == [
        "mesh: rows of t by 3 routes, of n, p by one each",
        *("t = trades", "[RANGE 9 SECONDS]"),
        *("k ≤ 1,500,000", "yes", "sector in food, it or none", "no", "yes", "no"),
        *("n", "p", "p", "n", "n", "p"),
        *("n = news", "t", "p", "#0"),
        *("p = posts", "n", "t"),
        "results",
    ]


def test_a_question_is_a_white_stop_that_tells_what_it_drops() -> None:
    drawn = mesh_svg(QUERY, parse_mesh("mesh(t: p?>n>p; n: t>p; p: n>t)"))
    assert "p?" in texts(drawn)
    assert "drops rows without a match in p = posts" in drawn


def test_shares_and_remarks_stand_at_the_routes_and_notes_at_the_relations() -> None:
    known = {("t", 0): RouteNote(0.6, "2 µs a row"), ("t", 1): RouteNote(0.3), ("t", 2): RouteNote(0.1)}
    found = texts(mesh_svg(QUERY, MESH, routes=known, notes={"t": "5,000 rows"}))
    assert {"60%", "30%", "10%", "2 µs a row", "5,000 rows", "a line is as thick as the rows on it"} <= set(found)


def test_a_line_is_as_thick_as_the_rows_on_it() -> None:
    known = {
        ("t", 0): RouteNote(0.81, left=(0.01, 0.04)),
        ("t", 1): RouteNote(0.09),
        ("t", 2): RouteNote(0.04),
    }
    drawn = mesh_svg(QUERY, MESH, routes=known)
    grey, first, second, third = lines(drawn).values()
    assert first == [9, 9, 9, 1.6, 1.8]
    assert set(second) == {3}
    assert set(third) == {2}
    assert set(grey) == {3, 1.6}
    assert {"1", "4", "a line is as thick as the rows on it; below it, what is left of a hundred rows"} <= set(
        texts(drawn)
    )


def test_a_long_list_of_categories_is_shortened_and_told_whole_when_pointed_at() -> None:
    sectors = ", ".join(f"'sector {number}'" for number in range(9))
    mesh = parse_mesh(f"mesh(t: n>p, p>n by (sector in {{{sectors}}} ? 0 : 1); n: t>p; p: n>t)")
    drawn = mesh_svg(QUERY, mesh)
    assert "sector in sector 0, sector 1, sec…" in texts(drawn)
    titles = [element.text for element in ElementTree.fromstring(drawn).iter(f"{SVG}title")]
    assert f"sector is one of {', '.join(f'sector {number}' for number in range(9))}" in titles


def test_branches_that_lead_to_one_route_come_together_before_it() -> None:
    mesh = parse_mesh("mesh(t: n>p, p>n by (k <= 1 ? 0 : (k <= 2 ? 1 : 0)); n: t>p; p: n>t)")
    _, first, second = lines(mesh_svg(QUERY, mesh)).values()
    assert len(first) == len(second) + 2
    assert texts(mesh_svg(QUERY, mesh)).count("n") == texts(mesh_svg(QUERY, mesh)).count("p")


@given(meshes(QUERY.graph), st.booleans())
def test_boxes_of_any_mesh_stay_on_the_page_and_apart(mesh: Mesh, are_known: bool) -> None:
    known = {
        (way.relation, number): RouteNote(1 / len(way.routes), "words", (0.5,) * len(way.routes[number].operators))
        for way in mesh.ways
        for number in range(len(way.routes))
    }
    tests = sum(len(leaves(way.classifier)) - 1 for way in mesh.ways if len(way.routes) > 1)
    found = boxes_apart(mesh_svg(QUERY, mesh, routes=known if are_known else {}))
    assert found >= len(mesh.ways) + tests + 1


def test_streams_and_tables_of_sides_enter_the_bars_before_the_results() -> None:
    """Nothing of them was drawn."""
    query = with_sides()
    drawn = mesh_svg(query, parse_mesh("mesh (a: b by 0; b: a, a by (k <= 3.5 ? 0 : 1))"))
    assert {"c = stream_c", "t = table_t", "anti join c", "left join t"} <= set(texts(drawn))
    assert "anti c ON" in drawn
    heads, stops, bars = len("abct"), 3, len(query.sides)
    assert boxes_apart(drawn) == heads + stops + bars + len(["test", "results"])
