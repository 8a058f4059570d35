"""Placeholders: rows that were kept without a column get values with which the tests that they passed pass again."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.engine.evaluate.expression import evaluate_mask
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.expr import conjuncts
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.run.placeholders import placeholders_for

FIELDS = (
    Field("k", pa.int64()),
    Field("s", pa.string()),
    Field("f", pa.float64()),
    Field("d", pa.decimal128(9, 2)),
    Field("at", TIMESTAMP),
    Field("b", pa.bool_()),
)


@pytest.mark.parametrize(
    "condition",
    [
        "a.k IS NOT NULL AND a.s IS NOT NULL",
        "a.k IS NULL AND a.b IS NULL",
        "a.k > 17 AND a.k <> 18 AND a.k < 21",
        "a.k IN (3, 4) AND a.f <= -0.5",
        "a.s LIKE 'ab%c' AND a.s <> 'ab'",
        "a.d = 1.50 AND a.b",
        "a.at > TIMESTAMP '2024-02-03 04:05:06' AND NOT a.b",
        "a.k < a.f AND a.k = 5",
        "COALESCE(a.k, 7) = 7",
    ],
)
def test_the_tests_pass_again(condition: str) -> None:
    catalog = Catalog()
    catalog.register(StreamDeclaration("a", Schema((Field("ts", TIMESTAMP, False), *FIELDS)), "ts"))
    query = compile_query(f"SELECT a.ts FROM a [NOW] WHERE {condition}", catalog)
    test = query.graph.relations[0].filter
    assert test is not None
    found = placeholders_for(FIELDS, conjuncts(test))
    assert found is not None
    assert evaluate_mask(test, lambda column: pa.array([found[column.name].as_py()], column.type), 1).all()


def test_conditions_without_known_passing_values_have_no_placeholders() -> None:
    catalog = Catalog()
    catalog.register(StreamDeclaration("a", Schema((Field("ts", TIMESTAMP, False), *FIELDS)), "ts"))

    def tests(condition: str) -> tuple[object, ...]:
        test = compile_query(f"SELECT a.ts FROM a [NOW] WHERE {condition}", catalog).graph.relations[0].filter
        assert test is not None
        return conjuncts(test)

    assert placeholders_for(FIELDS[:1], tests("a.k < a.f")) is None  # type: ignore[arg-type]
    assert placeholders_for(FIELDS[:1], tests("a.k > 5 AND a.k < 3")) is None  # type: ignore[arg-type]
    assert placeholders_for(FIELDS[:1], tests("a.f > 5")) == {"k": pa.scalar(None, pa.int64())}  # type: ignore[arg-type]
