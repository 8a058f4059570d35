"""Sides: what makes a key, which rows go where, and what belongs to the fingerprint."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query import Query
from anabranch.plan.query_set import alone, partitioning_of

COLUMNS = Schema(
    (Field("ts", TIMESTAMP, False), Field("k", pa.int64()), Field("v", pa.int64()), Field("i", pa.int32()))
)


def query_of(joins: str, select: str = "a.v AS x") -> Query:
    catalog = Catalog()
    for stream in "abcd":
        catalog.register(StreamDeclaration(stream, COLUMNS, "ts"))
    for stream in "abcd":
        joins = joins.replace(f"<{stream}>", f"{stream} [RANGE 5 SECONDS] AS {stream}")
    return compile_query(f"SELECT {select} FROM {joins}", catalog)


def axes(query: Query, slots: int = 4) -> dict[str, set[str]]:
    """The relations of each axis along which rows are spread."""
    return {d.code: set(d.relations) for d in partitioning_of(alone(query), slots).dimensions if d.share > 1}


def test_a_side_follows_the_key_that_it_compares() -> None:
    assert axes(query_of("<a> LEFT JOIN <b> ON a.k = b.k")) == {"k0": {"a", "b"}}
    assert axes(query_of("<a> LEFT JOIN <b> ON a.k = b.k LEFT JOIN <c> ON b.k = c.k")) == {"k0": {"a", "b", "c"}}
    assert axes(query_of("<a> JOIN <b> ON a.k = b.k LEFT ANTI JOIN <c> ON b.k = c.k")) == {"k0": {"a", "b", "c"}}


def test_a_side_is_copied_along_the_axes_that_it_lacks() -> None:
    """A key between two sides spreads neither: a combination would not meet all rows of the second in one slot."""
    spread = partitioning_of(alone(query_of("<a> LEFT JOIN <b> ON a.v < b.v LEFT JOIN <c> ON b.k = c.k")), 4)
    assert {d.code: set(d.relations) for d in spread.dimensions if d.share > 1} == {"row.a": {"a"}}
    for side in "bc":
        assert spread.copies([side]) == 4
    assert spread.copies("a") == 1


@pytest.mark.parametrize("joins", ["<a> FULL JOIN <b> ON a.v < b.v", "<a> FULL JOIN <b> ON a.k + b.k = 3"])
def test_a_full_join_without_an_equality_has_one_group(joins: str) -> None:
    spread = partitioning_of(alone(query_of(joins)), 4)
    assert isinstance(spread, Partitioning)
    assert (spread.groups, spread.working) == (1, (0,))


def test_a_full_join_is_spread_by_its_own_key_only() -> None:
    assert axes(query_of("<a> JOIN <b> ON a.v = b.v FULL JOIN <c> ON a.k = c.k")) == {"k1": {"a", "c"}}


def test_two_keys_of_the_core_that_a_side_compares_are_not_one() -> None:
    """They need not be equal in a combination that meets nothing."""
    (side,) = query_of("<a> JOIN <b> ON a.v = b.v LEFT JOIN <c> ON c.k = a.k AND c.k = b.k").sides
    assert [str(key) for key in side.graph.keys] == ["a.k = c.k"]
    assert [str(theta) for theta in side.graph.thetas] == ["c.k = b.k"]


def test_only_the_side_loses_its_null_keys() -> None:
    query = query_of("<a> LEFT JOIN <b> ON a.k = b.k")
    assert query.whole.relation("a").filter is None
    assert str(query.whole.relation("b").filter) == "b.k IS NOT NULL"
    assert str(query.sides[0].ready) == "a.k IS NOT NULL"


def test_sides_and_conditions_behind_them_decide_the_fingerprint() -> None:
    joins = "<a> {} JOIN <b> ON a.k = b.k{}"
    kinds = [("LEFT", ""), ("FULL", ""), ("RIGHT", ""), ("LEFT", " AND a.v > 1"), ("LEFT", " WHERE b.v IS NULL")]
    kinds += [("LEFT SEMI", ""), ("LEFT ANTI", "")]
    assert len({query_of(joins.format(*each)).fingerprint for each in kinds}) == len(kinds)


def test_keys_of_other_types_have_codes_of_their_own() -> None:
    query = query_of("<a> JOIN <b> ON a.i = b.i LEFT JOIN <c> ON CAST(c.k AS DECIMAL(9, 2)) = a.i")
    assert {key.name: str(key.type) for key in query.whole.keys} == {"k0": "int64", "k1": "decimal128(12, 2)"}
