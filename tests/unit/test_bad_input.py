"""Wrong queries, plans and limits are refused by name: rows of docs/internals/bad-input.md that need no Spark."""

from __future__ import annotations

import pytest

from anabranch.cql import compile_query
from anabranch.errors import BindError, CqlError, NoFeasiblePlan, ParseError, PlanError, UnboundedJoin, Unsupported
from anabranch.lang.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.planning.choosing import decide, proposal
from anabranch.planning.options import AUTO, PlanOptions

CATALOG = Catalog()
for _name in "ab":
    CATALOG.register(StreamDeclaration(_name, parse_schema("ts timestamp, k bigint, v string"), "ts"))
CATALOG.register_table(TableDeclaration("t", parse_schema("k bigint, name string")))
PAIR = "FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS]"


@pytest.mark.parametrize(
    ("text", "kind", "at", "says"),
    [
        ("SELECT", ParseError, "", "expected an expression, found the end"),
        (f"SELECT a.v {PAIR} WHERE a.k = ,", ParseError, ",", "expected an expression, found ','"),
        (f"SELECT a.q {PAIR} WHERE a.k = b.k", BindError, "a.q", "relation 'a' has ts, k, v"),
        ("SELECT z.v FROM z [NOW]", BindError, "z", "the streams are a, b; the tables are t"),
        (f"SELECT LENGTHS(a.v) {PAIR} WHERE a.k = b.k", BindError, "LENGTHS", "did you mean length"),
        (f"SELECT k {PAIR} WHERE a.k = b.k", BindError, "k", "write 'a.k' or 'b.k'"),
        (f"SELECT a.v {PAIR}, a [NOW]", BindError, "a", "relation 'a' occurs twice"),
        (f"SELECT a.v {PAIR} WHERE a.k = b.v", BindError, "a.k = b.v", "types bigint and string"),
        ("SELECT a.v FROM a [RANGE -5 SECONDS]", BindError, "-5 SECONDS", "RANGE must be more than zero"),
        ("SELECT a.v FROM a [RANGE 0 SECONDS]", BindError, "0 SECONDS", "write [NOW]"),
        ("SELECT a.k FROM a [RANGE 5 SECONDS SLIDE 0 SECONDS]", BindError, "0 SECONDS", "SLIDE must be more than zero"),
        ("SELECT a.k FROM a [RANGE 5 SECONDS] GROUP BY a.k", BindError, "[RANGE 5 SECONDS]", "needs a SLIDE"),
        ("SELECT a.v FROM a [ROWS 0], b [NOW]", BindError, "0", "ROWS must be between 1 and"),
        ("SELECT a.v FROM a [PARTITION BY q ROWS 1]", BindError, "q", "the stream has"),
        ("SELECT a.v FROM a [ROWS 5] LEFT JOIN b [NOW] ON a.k = b.k", Unsupported, "[ROWS 5]", "write [RANGE"),
        ("SELECT a.v FROM a [NOW], t [NOW] WHERE a.k = t.k", BindError, "[NOW]", "table 't' cannot have a window"),
        ("SELECT a.v FROM a JOIN t FOR SYSTEM_TIME AS OF a.ts ON a.k = t.k", Unsupported, "a.ts", "as a stream"),
        ("SELECT t.name FROM t", Unsupported, "t", "rows of table 't' cannot come out without a row of a stream"),
        ("SELECT a.v FROM a RIGHT JOIN t ON a.k = t.k", Unsupported, "RIGHT JOIN", "join the table to a stream"),
        ("SELECT a.v FROM a [NOW] FULL JOIN t ON a.k = t.k", Unsupported, "FULL JOIN", "join the table to a stream"),
        ("SELECT t.name FROM t LEFT JOIN a [NOW] ON a.k = t.k", Unsupported, "t", "join the table to a stream"),
        ("SELECT a.v FROM a [UNBOUNDED], b [NOW]", UnboundedJoin, "[UNBOUNDED]", "relation 'a' is unbounded"),
        ("SELECT a.v FROM a [NOW], b", UnboundedJoin, "b", "relation 'b' is unbounded"),
    ],
)
def test_a_wrong_query_is_refused_with_its_place(text: str, kind: type[CqlError], at: str, says: str) -> None:
    with pytest.raises(kind) as caught:
        compile_query(text, CATALOG)
    error = caught.value
    assert text[error.span.start : error.span.end] == at
    assert says in str(error)


@pytest.mark.parametrize(
    ("plan_options", "says"),
    [
        (PlanOptions("(a"), "plan text is wrong at character 3"),
        (PlanOptions("((a b) c)"), "joins 'c', which the query does not have"),
        (PlanOptions("a"), "leaves out 'b'"),
        (PlanOptions("mjion"), "did you mean 'mjoin'?"),
        (AUTO.with_hints(forbid=("(a z)",)), "'z'"),
    ],
)
def test_a_wrong_plan_is_refused(plan_options: PlanOptions, says: str) -> None:
    query = compile_query(f"SELECT a.v {PAIR} WHERE a.k = b.k", CATALOG)
    with pytest.raises(PlanError) as caught:
        proposal(decide(query, plan_options))
    assert says in str(caught.value)
    assert caught.value.hint


def test_limits_that_no_plan_keeps_are_named() -> None:
    query = compile_query(f"SELECT a.v {PAIR} WHERE a.k = b.k", CATALOG)
    with pytest.raises(NoFeasiblePlan, match=r"no plan fits within 'limits\.cpu'") as caught:
        proposal(decide(query, AUTO.with_limits(cpu=1e-9)))
    assert "write 'limits: {cpu:" in caught.value.hint


@pytest.mark.parametrize("plan", ["auto", "mjoin", "tree", "mesh"])
def test_a_join_without_an_equality_is_not_bad_input(plan: str) -> None:
    query = compile_query(f"SELECT a.v {PAIR} WHERE a.k < b.k", CATALOG)
    assert str(proposal(decide(query, PlanOptions(plan))).plan).startswith("(a b")
