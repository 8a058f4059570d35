"""Rewriting and the normal form keep the meaning of a query; the driver notices rules that do not."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch import cql
from anabranch.engine.evaluate.expression import evaluate
from anabranch.errors import InvariantBroken, PlanError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.expr import Expr, conjunction, conjuncts
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.plan.logical import Filter, Join, LogicalPlan, Output, Project
from anabranch.plan.normal_form import normal_form
from anabranch.plan.query import Query
from anabranch.rewrite.pipeline import RULES, rewrite

TYPES = {"ts": TIMESTAMP, "x": pa.int64(), "y": pa.int32(), "f": pa.float64()}
RELATIONS = ("a", "b", "c")
FROM = ", ".join(f"s [RANGE 1 MINUTE] AS {name}" for name in RELATIONS)

# Few columns, so that conditions meet: the invariants of rewriting are about what several conditions say of one column.
columns = st.sampled_from(["a.x", "b.x", "c.x", "a.x", "b.x", "a.y", "b.f"])
constants = st.integers(-2, 2)
terms = st.one_of(
    columns, constants.map(str), st.builds("({} {} {})".format, columns, st.sampled_from("+-"), constants)
)
comparisons = st.builds("{} {} {}".format, terms, st.sampled_from(["=", "<", "<=", ">", ">=", "<>"]), terms)
equalities = st.builds("{} = {}".format, columns, st.one_of(columns, columns, columns, constants.map(str)))
distances = st.one_of(
    st.builds("ABS({0} - {1}) <= {2}".format, columns, columns, constants),
    st.builds("{0} BETWEEN {1} - {2} AND {1} + {3}".format, columns, columns, constants, constants),
    st.builds("({0} >= {1} - {2} AND {1} + {3} > {0})".format, columns, columns, constants, constants),
    st.builds("({0} - {1} <= {2} AND {1} - {3} <= {0})".format, columns, columns, constants, constants),
    st.builds("({0} <= {2} + {1} AND {1} <= {0} + {3})".format, columns, columns, constants, constants),
)
others = st.one_of(
    comparisons,
    st.builds("({} OR NOT {})".format, comparisons, comparisons),
    st.builds("{} IS NULL".format, columns),
    st.sampled_from(["1 = 1", "1 = 2", "NULL", "(a.x = b.x OR 2 < 1)"]),
)
several = st.permutations(["a.x", "b.x", "c.x", "a.y"])
chains = several.map(lambda names: [f"{names[0]} = {names[1]}", f"{names[2]} = {names[1]}"])
pinned = st.builds(
    lambda names, value: [f"{names[0]} = {names[1]}", f"{names[0]} = {value}"], several, st.integers(0, 1)
)
conditions = st.one_of(
    chains,
    pinned,
    st.lists(equalities, min_size=1, max_size=4),
    st.lists(distances, min_size=1, max_size=2),
    st.lists(st.one_of(equalities, distances, others), min_size=1, max_size=4),
)


def catalog() -> Catalog:
    known = Catalog()
    schema = Schema(tuple(Field(name, kind, nullable=name != "ts") for name, kind in TYPES.items()))
    known.register(StreamDeclaration("s", schema, "ts"))
    return known


class Combinations:
    """All combinations of rows that the conditions above can tell apart, as columns."""

    def __init__(self) -> None:
        values: dict[str, list[float | None]] = {
            "a.x": [None, -1, 0, 1, 3],
            "a.y": [None, 0, 1],
            "b.x": [None, -2, 0, 1, 2],
            "b.f": [None, 0.0, 1.5],
            "c.x": [None, 0, 1, 2],
        }
        combined = list(product(*values.values()))
        self.length = len(combined)
        self.columns = {
            name: pa.array([row[position] for row in combined], TYPES[name[-1]]) for position, name in enumerate(values)
        }

    def values(self, expr: Expr) -> list[object]:
        return list(evaluate(expr, lambda column: self.columns[str(column)], self.length).to_pylist())

    def where(self, expr: Expr) -> list[bool]:
        return [value is True for value in self.values(expr)]


def answer(query: Query, rows: Combinations) -> list[bool]:
    """Which combinations the graph admits: filters, keys that agree, thetas."""
    parts = [relation.filter for relation in query.graph.relations if relation.filter is not None]
    parts += [theta.predicate for theta in query.graph.thetas]
    condition = conjunction(tuple(part for predicate in parts for part in conjuncts(predicate)))
    kept = [True] * rows.length if condition is None else rows.where(condition)
    for key in query.graph.keys:
        members = zip(*(rows.values(expression) for _, expression in key.members), strict=True)
        agree = [None not in values and len(set(values)) == 1 for values in members]
        kept = [one and other for one, other in zip(kept, agree, strict=True)]
    return kept


@example(["a.x = b.x", "a.y = b.x"])
@example(["a.x = b.x", "a.x = b.f", "c.x = b.x"])
@example(["a.x >= b.x - 1", "a.x <= b.x + 2"])
@example(["b.x - 2 < a.x", "a.x - b.x <= 1"])
@example(["ABS(a.x - b.x + 1) <= 1"])
@example(["b.f BETWEEN a.x - 0.5 AND a.x + 1"])
@given(conditions)
def test_the_graph_admits_what_the_text_says(wanted: list[str]) -> None:
    combinations = Combinations()
    text = f"SELECT a.x FROM {FROM} WHERE {' AND '.join(wanted)}"
    plan = cql.bind(text, catalog())
    assert isinstance(plan, Project)
    assert isinstance(plan.input, Filter)
    query = normal_form(text, rewrite(plan))
    truth = combinations.where(plan.input.predicate)
    assert answer(query, combinations) == truth
    for band in (theta.band for theta in query.graph.thetas if theta.band is not None):
        assert band.left.type == band.right.type
        pairs = zip(combinations.values(band.left), combinations.values(band.right), truth, strict=True)
        for left, right, admitted in pairs:
            if admitted:
                assert isinstance(left, int | float)
                assert isinstance(right, int | float)
                assert band.low <= left - right <= band.high


@given(conditions)
def test_a_rewritten_plan_is_not_rewritten_again(wanted: list[str]) -> None:
    plan = rewrite(cql.bind(f"SELECT a.x FROM {FROM} WHERE {' AND '.join(wanted)}", catalog()))
    assert rewrite(plan) == plan


def bound() -> LogicalPlan:
    return cql.bind(f"SELECT a.x FROM {FROM} WHERE a.x = b.x", catalog())


def test_rules_that_undo_each_other_are_noticed() -> None:
    def there(plan: LogicalPlan) -> LogicalPlan | None:
        return replace(plan, predicates=plan.predicates[::-1]) if isinstance(plan, Join) else None

    plan = cql.bind("SELECT a.x FROM s [NOW] a JOIN s [NOW] b ON a.x = b.x AND a.y = b.y", catalog())
    with pytest.raises(InvariantBroken, match="rule 'there' repeats a plan"):
        rewrite(plan, (there,))


def test_a_rule_that_changes_the_answer_is_noticed() -> None:
    def rename(plan: LogicalPlan) -> LogicalPlan | None:
        if not isinstance(plan, Project) or plan.outputs[0].name == "z":
            return None
        return replace(plan, outputs=(Output("z", plan.outputs[0].expression),))

    with pytest.raises(InvariantBroken, match="'rename' changed the meaning of the query"):
        rewrite(bound(), (rename,))


def test_a_plan_that_was_not_rewritten_has_no_normal_form() -> None:
    with pytest.raises(PlanError, match="no normal form"):
        normal_form("", bound())


def test_rules_are_named_after_their_files() -> None:
    for rule in RULES:
        assert rule.__module__ == f"anabranch.rewrite.{rule.__name__}"


def test_a_literal_is_not_copied_to_a_key_it_cannot_be_compared_with() -> None:
    """Each comparison of the text fits 38 digits; the one that was inferred did not, and a bare ValueError came out."""
    known = Catalog()
    sizes = {"x": pa.int64(), "long": pa.decimal128(38, 0), "fine": pa.decimal128(38, 18)}
    schema = Schema((Field("ts", TIMESTAMP), *(Field(name, kind) for name, kind in sizes.items())))
    known.register(StreamDeclaration("s", schema, "ts"))
    text = f"SELECT a.x FROM {FROM} WHERE a.x = b.long AND a.x = c.fine AND c.fine = 1.5"
    query = normal_form(text, rewrite(cql.bind(text, known)))
    filters = {relation.name: str(relation.filter) for relation in query.graph.relations}
    assert "1.5" in filters["a"]
    assert "1.5" in filters["c"]
    assert "1.5" not in filters["b"]


def test_a_null_test_of_a_cast_that_makes_null_is_kept() -> None:
    """What is not a number has no decimal: the cast of a column without NULLs may be NULL. It was folded to FALSE."""
    known = Catalog()
    known.register(StreamDeclaration("s", Schema((Field("ts", TIMESTAMP), Field("f", pa.float64(), False))), "ts"))
    text = "SELECT a.f FROM s AS a WHERE CAST(a.f AS DECIMAL(10, 2)) IS NULL"
    (relation,) = normal_form(text, rewrite(cql.bind(text, known, allow_unbounded=True))).graph.relations
    assert relation.filter is not None
    rows = pa.array([1.5, float("nan")])
    assert evaluate(relation.filter, lambda _: rows, 2).to_pylist() == [False, True]


def test_keys_that_a_cast_makes_null_are_dropped_early() -> None:
    known = Catalog()
    known.register(StreamDeclaration("s", Schema((Field("ts", TIMESTAMP), Field("f", pa.float64(), False))), "ts"))
    sides = " = ".join(f"CAST({name}.f AS DECIMAL(10, 2))" for name in ("a", "b"))
    text = f"SELECT a.f FROM s [RANGE 1 MINUTE] AS a, s [RANGE 1 MINUTE] AS b WHERE {sides}"
    for relation in normal_form(text, rewrite(cql.bind(text, known))).graph.relations:
        assert str(relation.filter) == f"CAST({relation.name}.f AS DECIMAL(10,2)) IS NOT NULL"
