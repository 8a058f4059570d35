"""What every picture owes its reader: boxes that stay on the page and apart."""

from __future__ import annotations

from xml.etree import ElementTree

import pyarrow as pa

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.plan.query import Query

SVG = "{http://www.w3.org/2000/svg}"


def boxes_apart(svg: str) -> int:
    """Checks that no box of the picture leaves the page or lies upon another; gives their number."""
    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    boxes = [
        tuple(float(rect.get(name, "0")) for name in ("x", "y", "width", "height"))
        for rect in root.iter(f"{SVG}rect")
        if rect.get("x") is not None and rect.get("fill-opacity") is None
    ]
    for index, (x, y, wide, tall) in enumerate(boxes):
        assert x >= 0
        assert y >= 0
        assert x + wide <= width
        assert y + tall <= height
        for other_x, other_y, other_wide, other_tall in boxes[:index]:
            beside = x + wide <= other_x or other_x + other_wide <= x
            above = y + tall <= other_y or other_y + other_tall <= y
            assert beside or above
    return len(boxes)


def with_catalog() -> Catalog:
    """Streams `stream_a` to `stream_c` and a table `table_t`, of numbers k and p."""
    catalog, columns = Catalog(), (Field("k", pa.int64()), Field("p", pa.int64()))
    for name in "abc":
        catalog.register(StreamDeclaration(f"stream_{name}", Schema((Field("ts", TIMESTAMP, False), *columns)), "ts"))
    catalog.register_table(TableDeclaration("table_t", Schema(columns)))
    return catalog


def with_sides() -> Query:
    """A query that joins a and b, leaves c out, and adds what a table says."""
    return compile_query(
        "SELECT a.p, t.p AS q FROM stream_a [NOW] AS a JOIN stream_b [NOW] AS b ON a.k = b.k "
        "LEFT ANTI JOIN stream_c [RANGE 1 MINUTE] AS c ON c.k = a.k AND c.p > 7 LEFT JOIN table_t AS t ON t.k = b.k",
        with_catalog(),
    )
