"""Which keys of tables filter streams before the shuffle."""

from __future__ import annotations

import pytest

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.plan.query_set import alone
from anabranch.run.prefilter import Shared, shared_keys

ONE = "FROM a, t WHERE a.k = t.k"
TWO = "FROM a [RANGE {w}] AS a, b [RANGE {w}] AS b, t WHERE a.k = t.k AND a.v = b.v"


@pytest.mark.parametrize(
    ("text", "filtered"),
    [
        (f"SELECT a.v AS v {ONE}", ["a"]),
        # A row may wait for a row of the other stream, and then meet a later version.
        (f"SELECT a.v AS v {TWO}".format(w="5 SECONDS"), []),
        # With groups, and with sides that wait, the first version stays for ever.
        (f"SELECT COUNT(*) AS n {TWO}".format(w="5 SECONDS SLIDE 1 SECOND"), ["a"]),
        (
            f"SELECT a.v AS v {TWO} AND NOT EXISTS (SELECT 1 FROM b [NOW] AS c WHERE c.k = a.k)".format(w="5 SECONDS"),
            ["a"],
        ),
        # Rows without a match come out, or are counted.
        ("SELECT a.v AS v FROM a [NOW] AS a LEFT JOIN t ON a.k = t.k", []),
        ("SELECT a.v AS v FROM a [ROWS 2] AS a, t WHERE a.k = t.k", []),
        ("SELECT a.v AS v FROM a [NOW] AS a, t WHERE a.k < t.k", []),
    ],
)
def test_a_table_filters_streams_where_no_later_version_could_match(text: str, filtered: list[str]) -> None:
    catalog = Catalog()
    for name in "ab":
        catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint, v bigint"), "ts"))
    catalog.register_table(TableDeclaration("t", parse_schema("k bigint, w bigint")))
    found = shared_keys(alone(compile_query(text, catalog)))
    assert [each.stream for each in found] == filtered
    assert all(each == Shared(each.stream, "t", each.code) for each in found)
