"""Rewriting and the normal form keep the meaning of a query; the driver notices rules that do not."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import cql
from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.engine.evaluate import evaluate
from anabranch.errors import InvariantBroken, PlanError
from anabranch.expr import Expr, conjunction, conjuncts
from anabranch.plan.logical import Filter, Join, LogicalPlan, Output, Project
from anabranch.plan.normal_form import normal_form
from anabranch.plan.query import Query
from anabranch.rewrite.pipeline import RULES, rewrite
from anabranch.schema import TIMESTAMP, Field, Schema

TYPES = {"ts": TIMESTAMP, "x": pa.int64(), "y": pa.int32(), "f": pa.float64()}
RELATIONS = ("a", "b", "c")
FROM = ", ".join(f"s [RANGE 1 MINUTE] AS {name}" for name in RELATIONS)

numbers = st.one_of(st.none(), st.integers(-3, 3))
columns = st.builds("{}.{}".format, st.sampled_from(RELATIONS), st.sampled_from(["x", "y", "f"]))
terms = st.one_of(
    columns,
    st.integers(-3, 3).map(str),
    st.builds("({} {} {})".format, columns, st.sampled_from("+-"), st.integers(0, 3)),
)
comparisons = st.builds("{} {} {}".format, terms, st.sampled_from(["=", "=", "=", "<", "<=", ">", ">=", "<>"]), terms)
conditions = st.one_of(
    comparisons,
    comparisons,
    st.builds("ABS({} - {}) <= {}".format, columns, columns, st.integers(0, 2)),
    st.builds("{} BETWEEN {} - {} AND {} + 1".format, columns, columns, st.integers(0, 2), columns),
    st.builds("({} OR NOT {})".format, comparisons, comparisons),
    st.builds("{} IS NULL".format, columns),
    st.sampled_from(["1 = 1", "1 = 2", "NULL", "a.x = 2", "b.f = 1", "(a.x = b.x OR 2 < 1)"]),
)
rows = st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=3)


def catalog() -> Catalog:
    known = Catalog()
    schema = Schema(tuple(Field(name, kind, nullable=name != "ts") for name, kind in TYPES.items()))
    known.register(StreamDeclaration("s", schema, "ts"))
    return known


class Combinations:
    """All combinations of one row per relation, as columns."""

    def __init__(self, streams: dict[str, list[tuple[int | None, int | None, int | None]]]) -> None:
        combined = list(product(*(streams[name] for name in RELATIONS)))
        self.length = len(combined)
        self.columns = {
            (relation, name): pa.array([row[position][index] for row in combined], TYPES[name])
            for position, relation in enumerate(RELATIONS)
            for index, name in enumerate(["x", "y", "f"])
        }

    def values(self, expr: Expr) -> list[object]:
        found = evaluate(expr, lambda column: self.columns[column.relation, column.name], self.length)
        return list(found.to_pylist())

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


@given(st.lists(conditions, min_size=1, max_size=5), st.fixed_dictionaries(dict.fromkeys(RELATIONS, rows)))
def test_the_graph_admits_what_the_text_says(
    wanted: list[str], streams: dict[str, list[tuple[int | None, int | None, int | None]]]
) -> None:
    combinations = Combinations(streams)
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


@given(st.lists(conditions, min_size=1, max_size=5))
def test_a_rewritten_plan_is_not_rewritten_again(wanted: list[str]) -> None:
    plan = rewrite(cql.bind(f"SELECT a.x FROM {FROM} WHERE {' AND '.join(wanted)}", catalog()))
    assert rewrite(plan) == plan


def bound() -> LogicalPlan:
    return cql.bind(f"SELECT a.x FROM {FROM} WHERE a.x = b.x", catalog())


def test_rules_that_undo_each_other_are_noticed() -> None:
    def there(plan: LogicalPlan) -> LogicalPlan | None:
        return replace(plan, predicates=plan.predicates[::-1]) if isinstance(plan, Join) else None

    plan = cql.bind("SELECT a.x FROM s [NOW] a JOIN s [NOW] b ON a.x = b.x AND a.y = b.y", catalog())
    with pytest.raises(InvariantBroken, match="round in circles at rule 'there'"):
        rewrite(plan, (there,))


def test_a_rule_that_changes_the_answer_is_noticed() -> None:
    def rename(plan: LogicalPlan) -> LogicalPlan | None:
        if not isinstance(plan, Project) or plan.outputs[0].name == "z":
            return None
        return replace(plan, outputs=(Output("z", plan.outputs[0].expression),))

    with pytest.raises(InvariantBroken, match="'rename' changed what the query means"):
        rewrite(bound(), (rename,))


def test_a_plan_that_was_not_rewritten_has_no_normal_form() -> None:
    with pytest.raises(PlanError, match="no normal form"):
        normal_form("", bound())


def test_rules_are_named_after_their_files() -> None:
    for rule in RULES:
        assert rule.__module__ == f"anabranch.rewrite.{rule.__name__}"
