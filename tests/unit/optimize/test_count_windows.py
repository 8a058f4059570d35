"""No optimizer proposes a plan that keeps rows of a count window in a state; costs know how many rows it holds."""

from __future__ import annotations

import pytest

from anabranch.cost.estimates import from_statistics
from anabranch.cql import compile_query
from anabranch.errors import SpecError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.optimize.optimizers import OPTIMIZERS
from anabranch.optimize.problem import Problem
from anabranch.optimize.proposals import Proposal
from anabranch.plan.check import validate
from anabranch.plan.query import Query
from anabranch.planning.choosing import decide, first_plan
from anabranch.planning.options import PlanOptions
from anabranch.stats.view import FixedStatistics

NAMES = [f"r{number}" for number in range(13)]


def query(relations: int, counted: dict[int, str]) -> Query:
    catalog = Catalog()
    for name in NAMES:
        catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint, v bigint"), "ts"))
    windows = [counted.get(number, "[RANGE 10 SECONDS]") for number in range(relations)]
    names = NAMES[:relations]
    sources = ", ".join(f"{name} {window}" for name, window in zip(names, windows, strict=True))
    keys = " AND ".join(f"r0.k = {name}.k" for name in names[1:])
    return compile_query(f"SELECT r0.v AS v FROM {sources} WHERE {keys}", catalog)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    ("relations", "counted"), [(3, {1: "[ROWS 5]"}), (4, {0: "[ROWS 5]", 2: "[PARTITION BY k ROWS 2]"})]
)
def test_an_optimizer_proposes_what_can_run_or_nothing(name: str, relations: int, counted: dict[int, str]) -> None:
    graph = query(relations, counted).graph
    answer = OPTIMIZERS[name](Problem(graph, FixedStatistics()))
    if isinstance(answer, Proposal):
        validate(answer.plan, graph)
    else:
        assert name == "min-state", "only the tree of small states has no other plan to offer"
        assert answer.bound == "hints"


@pytest.mark.parametrize("relations", [2, 3, 5, 13])
def test_a_plan_is_found_for_any_number_of_relations(relations: int) -> None:
    found = query(relations, {relations - 1: "[ROWS 100]"})
    validate(first_plan(decide(found, PlanOptions())), found.graph)  # type: ignore[arg-type]


def test_a_tree_that_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match="the hints exclude every plan"):
        decide(query(4, {0: "[ROWS 5]", 1: "[ROWS 5]"}), PlanOptions(plan="tree"))


def test_a_state_is_as_large_as_its_window_counts() -> None:
    known = FixedStatistics(rates={"r0": 50.0, "r1": 1000.0, "r2": 10.0})
    graph = query(3, {0: "[ROWS 200]", 1: "[RANGE 1 SECOND ROWS 5000]", 2: "[PARTITION BY k ROWS 3]"}).graph
    estimates = from_statistics(graph, known)
    assert estimates.windows == (4.0, 1.0, 30.0)
