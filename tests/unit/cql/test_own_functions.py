"""Functions of one's own: types, NULLs, guards, errors, and what a checkpoint knows of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anabranch.cost.estimates import from_statistics
from anabranch.cost.units import ENGINE
from anabranch.cql import compile_query
from anabranch.engine.evaluate.own import call_own
from anabranch.errors import BindError, CatalogError, FunctionError, StatisticsError
from anabranch.functions import own_function
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.expr import can_fail, own_functions
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.plan.physical import Leaf, mjoin
from anabranch.plan.query import Query
from anabranch.run.local import LocalHost
from anabranch.stats.view import FixedStatistics

COLUMNS = pa.schema([("ts", TIMESTAMP), ("x", pa.int64()), ("f", pa.float64()), ("s", pa.string())])
PAIR = "SELECT a.x FROM s0 [RANGE 9 SECONDS] AS a, s1 [RANGE 9 SECONDS] AS b WHERE "


def catalog(**functions: Callable[..., Any]) -> Catalog:
    found = Catalog()
    for name in ("s0", "s1"):
        found.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts"))
    for name, code in functions.items():
        found.define(own_function(name, code, "bigint", takes=["bigint"]))
    return found


def rows(*values: int | None, start: int = 0) -> pa.Table:
    times = pa.array(range(start, start + len(values)), pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
    empty = pa.nulls(len(values))
    columns = [times, pa.array(values, pa.int64()), empty.cast(pa.float64()), empty.cast(pa.string())]
    return pa.table(columns, schema=COLUMNS)


def compiled(text: str, **functions: Callable[..., Any]) -> Query:
    return compile_query(text, catalog(**functions))


def test_it_is_used_in_select_where_and_on() -> None:
    def double(values: pa.Array) -> pa.Array:
        return pc.multiply(values, 2)

    query = compiled(
        "SELECT double(a.x) AS twice, b.x FROM s0 [RANGE 9 SECONDS] AS a JOIN s1 [RANGE 9 SECONDS] AS b "
        "ON DOUBLE(a.x) = b.x WHERE double(b.x) > 4",
        double=double,
    )
    host = LocalHost(query, mjoin(("a", "b")))
    answer = host.step({"s0": rows(1, 2, None, 4), "s1": rows(2, 4, 8, None)})
    assert sorted(answer.to_pylist(), key=str) == [{"twice": 4, "x": 4}, {"twice": 8, "x": 8}]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("arrow", lambda values: pc.add(values, 1)),
        ("arrow", lambda values: values.to_numpy() + 1),
        ("arrow", lambda values: pa.chunked_array([pc.add(values, 1)])),
        ("pandas", lambda values: values + 1),
        ("scalar", lambda value: value + 1),
    ],
)
def test_rows_with_a_null_are_not_seen_unless_asked(kind: str, code: Callable[..., Any]) -> None:
    values = pa.array([1, None, 3])
    own = own_function("plus", code, "bigint", kind=kind)
    assert call_own(own, [values], 3).to_pylist() == [2, None, 4]
    assert call_own(own, [pa.nulls(2, pa.int64())], 2).to_pylist() == [None, None]
    assert call_own(own, [values.slice(0, 0)], 0).to_pylist() == []
    seen = own_function("seen", lambda given: pc.is_null(given), "boolean", nulls="pass")
    assert call_own(seen, [values], 3).to_pylist() == [False, True, False]


@pytest.mark.parametrize(
    ("code", "returns", "message"),
    [
        (lambda values: [1, 2], "bigint", "gave list, not an Arrow array"),
        (lambda values: values.slice(1), "bigint", "gave 1 values for 2 rows"),
        (lambda values: np.array(["a", "b"]), "bigint", "returned values that are not of type bigint"),
        (lambda values: pc.divide(1, values), "bigint", "function 'bad' failed"),
    ],
)
def test_the_result_of_a_function_is_checked(code: Callable[..., Any], returns: str, message: str) -> None:
    with pytest.raises(FunctionError, match=message):
        call_own(own_function("bad", code, returns), [pa.array([0, 1])], 2)


def test_an_exception_names_function_stream_and_batch() -> None:
    def picky(values: pa.Array) -> pa.Array:
        if pc.any(pc.equal(values, 7)).as_py():
            raise LookupError("seven is not known")
        return values

    for text, place in (
        ("SELECT picky(a.x) AS v FROM s0 AS a", "stream 's0'"),
        ("SELECT a.x FROM s0 AS a WHERE picky(a.x) > 0", "stream 's0'"),
        (PAIR + "a.s = b.s AND picky(a.x + b.x) = 0", "stream 's0' and stream 's1'"),
    ):
        query = compiled(text, picky=picky)
        plan = mjoin(query.graph.names) if len(query.graph.names) > 1 else Leaf("a")
        host = LocalHost(query, plan)
        texts = pa.array(["k", "k", "k"])
        host.step({name: rows(1, 2, 2).set_column(3, "s", texts) for name in query.graph.streams})
        with pytest.raises(FunctionError) as caught:
            host.step({name: rows(7, 4, 3, start=9).set_column(3, "s", texts) for name in query.graph.streams})
        assert caught.value.message == f"function 'picky' failed on rows of {place} in batch 1"
        assert caught.value.detail == "LookupError: seven is not known"


def test_it_takes_part_in_the_rules_of_guards() -> None:
    """It does not see rows that an earlier condition rejects, and no filter that guards it is deferred."""

    def small(values: pa.Array) -> pa.Array:
        assert pc.all(pc.less(values, 10)).as_py()
        return values

    query = compiled("SELECT a.x FROM s0 AS a WHERE a.x < 10 AND small(a.x) > 1", small=small)
    host = LocalHost(query, Leaf("a"))
    assert host.step({"s0": rows(1, 2, 30, None)}).to_pylist() == [{"x": 2}]
    (own,) = own_functions(query.graph.relations[0].filter)  # type: ignore[arg-type]
    assert own.name == "small"
    assert can_fail(query.graph.relations[0].filter)  # type: ignore[arg-type]


def test_a_checkpoint_knows_it_by_name_and_version() -> None:
    def query(version: str, code: Callable[..., Any]) -> Query:
        found = catalog()
        found.define(own_function("score", code, "double", version=version))
        return compile_query("SELECT score(a.x) AS v FROM s0 AS a", found)

    one = query("1", lambda values: values)
    assert one.fingerprint == query("1", lambda values: pc.add(values, 1)).fingerprint
    assert one.fingerprint != query("2", lambda values: values).fingerprint
    assert str(one.outputs[0].expression) == "score@1(a.x)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "2x"}, "'2x' is not a valid function name"),
        ({"name": "Sum"}, "'Sum' is a function of the language"),
        ({"name": "upper"}, "'upper' is a function of the language"),
        ({"code": 5}, "function 'f' cannot be called"),
        ({"kind": "numpy"}, "'kind' of function 'f' is 'numpy'"),
        ({"nulls": "drop"}, "'nulls' of function 'f' is 'drop'"),
        ({"returns": "money"}, "'returns' of function 'f' is 'money', which is not a type"),
        ({"returns": "array<int>"}, "'returns' of function 'f' is array<int>, which expressions cannot compute with"),
        ({"takes": ["int", "int int"]}, "'takes' of function 'f' is 'int int', which is not a type"),
    ],
)
def test_a_wrong_description_is_refused(arguments: dict[str, Any], message: str) -> None:
    given = {"name": "f", "code": lambda values: values, "returns": "double", **arguments}
    with pytest.raises(CatalogError) as caught:
        own_function(given.pop("name"), given.pop("code"), given.pop("returns"), **given)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("SELECT f(a.x, a.x) FROM s0 AS a", "'f' expects (bigint), found (bigint, bigint)", "f(a.x, a.x)"),
        ("SELECT f(a.s) FROM s0 AS a", "'F' expects (bigint), found (string)", "f(a.s)"),
        ("SELECT f(*) FROM s0 AS a", "'f' does not take *", "f(*)"),
        ("SELECT any(NULL, a.x) FROM s0 AS a", "'any' cannot tell the type of a bare NULL", "any(NULL, a.x)"),
        ("SELECT any(1) FROM s0 AS a", "'any' needs a column among its arguments", "any(1)"),
        ("SELECT g(a.x) FROM s0 AS a", "function 'g' does not exist", "g"),
    ],
)
def test_a_wrong_call_is_refused_with_its_place(text: str, message: str, place: str) -> None:
    found = catalog(f=lambda values: values)
    found.define(own_function("any", lambda *values: values[0], "bigint"))
    with pytest.raises(BindError) as caught:
        compile_query(text, found)
    assert caught.value.message == message
    assert text[caught.value.span.start : caught.value.span.end] == place


def test_its_cost_is_known_to_the_optimizer() -> None:
    graph = compiled(PAIR + "dear(a.x - b.x) = 0", dear=lambda values: values).graph
    (assumed,) = from_statistics(graph, FixedStatistics()).thetas
    (given,) = from_statistics(graph, FixedStatistics(functions={"dear": 1e-3})).thetas
    assert given.weight == pytest.approx(1 + 1e-3 / ENGINE.check)
    assert 1 < assumed.weight < given.weight
    used = {each.what: each for each in from_statistics(graph, FixedStatistics(functions={"dear": 1e-3})).used}
    assert (used["cost of dear"].value, used["cost of dear"].provenance) == (1e-3, "given")
    with pytest.raises(StatisticsError, match=r"entry 'stats\.functions\.cheap' names something"):
        FixedStatistics(functions={"cheap": 1.0}).check_names(graph)
