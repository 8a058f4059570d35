"""The joint choice of a set: what is shared, who is left out, joint limits, and fairness."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from itertools import combinations

import pytest

from anabranch.cql import compile_query
from anabranch.errors import NoFeasiblePlan
from anabranch.optimize.joint import FAIR, JointChoice
from anabranch.plan.query import Query
from anabranch.plan.query_set import together
from anabranch.planning.choosing import decide
from anabranch.planning.explain import explain_joint
from anabranch.planning.options import AUTO, PlanOptions, SetPlanOptions
from anabranch.planning.together import RunChoice, decide_together
from tests.support.scripted import read_script

SCRIPT = read_script("\n".join(f"stream {name} (k bigint, j bigint, v bigint)" for name in "abcd"))
MANY = {"rates": {"a": 2000.0, "b": 2000.0, "c": 2000.0}, "selectivities": {"a b": 1e-5, "b c": 1e-5, "a c": 1e-5}}


SHARING = SetPlanOptions(share="auto")


def query(window: int = 60, *where: str, names: str = "abc") -> Query:
    sources = ", ".join(f"{name} [RANGE {window} SECONDS]" for name in names)
    keys = [f"{one}.k = {other}.k" for one, other in itertools.pairwise(names)]
    text = f"SELECT {', '.join(f'{n}.v AS {n}v' for n in names)} FROM {sources} WHERE {' AND '.join([*keys, *where])}"
    return compile_query(text, SCRIPT.catalog)


def of(one: Query, stats: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The statistics of the relations that a query has."""
    known = set(one.graph.names)
    return {
        section: {name: value for name, value in entries.items() if set(name.split()) <= known}
        for section, entries in stats.items()
    }


def joint(
    queries: Mapping[str, Query],
    plan_options: Mapping[str, PlanOptions] | None = None,
    of_set: SetPlanOptions | None = None,
    stats: Mapping[str, Mapping[str, float]] = MANY,
) -> JointChoice:
    each = {name: (plan_options or {}).get(name, AUTO).with_stats(of(one, stats)) for name, one in queries.items()}
    choices = {name: decide(one, each[name]) for name, one in queries.items()}
    found = decide_together(together(queries), choices, each, of_set or SHARING)
    assert found is not None
    assert set(RunChoice(choices, found).plans) == set(queries)
    return found


def test_equal_joins_are_shared_and_the_saving_is_explained() -> None:
    found = joint({"one": query(), "other": query(60, "a.v > 10"), "short": query(30)})
    (shared,) = found.shared
    assert shared.users == ("one", "other", "short")
    assert shared.saved_cpu > 0
    assert all(plan == shared.shared for plan in found.plans.values())
    text = explain_joint(found)
    assert f"shared 1: {shared.shared}  used by one, other, short: saves " in text


def test_a_query_with_more_relations_shares_what_it_has_in_common() -> None:
    pairs = [f"{one} {other}" for one, other in combinations("abcd", 2)]
    stats = {"rates": dict.fromkeys("abcd", 2000.0), "selectivities": dict.fromkeys(pairs, 1e-5)}
    found = joint({"one": query(), "more": query(names="abcd"), "two": query()}, stats=stats)
    assert found.shared[0].users == ("more", "one", "two")
    assert {*found.shared[0].shared.relations} == {*"abc"}
    assert "d" in found.plans["more"].relations


def test_a_selective_query_is_left_out() -> None:
    """A filter that lets one row in a thousand of each relation pass: its own lookups cost next to nothing."""
    selective = query(60, "a.v = 1", "b.v = 2", "c.v = 3")
    stats = {**MANY, "filters": {"a": 0.001, "b": 0.001, "c": 0.001}}
    queries = {"one": query(), "other": query(), "rare": selective}
    each = {name: AUTO.with_stats(stats if name == "rare" else MANY) for name in queries}
    choices = {name: decide(one, each[name]) for name, one in queries.items()}
    found = decide_together(together(queries), choices, each, SHARING)
    assert found is not None
    assert [shared.users for shared in found.shared] == [("one", "other")]


def test_a_written_plan_hints_and_off_are_kept() -> None:
    queries = {"one": query(), "other": query()}
    assert not joint(queries, of_set=SetPlanOptions(share="off")).shared
    assert not joint(queries, {"one": PlanOptions(plan="((a b) c)")}).shared
    assert not joint(queries, {"one": AUTO.with_hints(keep=["a b"])}).shared
    written = {name: PlanOptions(plan="({a b} c)") for name in queries}
    assert {str(plan) for plan in joint(queries, written).plans.values()} == {"({a b} c)"}


def test_joint_limits_are_kept_fairly() -> None:
    """Trees are quicker and need more memory; a limit between makes some queries, not all, take a smaller plan."""
    stats = {
        "rates": {"a": 33.0, "b": 440.0, "c": 1300.0},
        "selectivities": {"a b": 1.1e-4, "b c": 4.9e-6, "a c": 9.4e-6},
    }
    queries = {f"q{i}": query(60 - i, names="bca") for i in range(3)}
    free = joint(queries, of_set=SetPlanOptions(share="off"), stats=stats)
    least = joint(
        queries, {name: AUTO.with_objective("memory") for name in queries}, SetPlanOptions(share="off"), stats=stats
    )
    assert least.cost.memory < free.cost.memory, "the scenario needs plans to trade"
    limit = (free.cost.memory + least.cost.memory) / 2
    found = joint(queries, of_set=SetPlanOptions(share="off", memory=limit), stats=stats)
    assert found.cost.memory <= limit < free.cost.memory
    assert any(found.plans[name] != free.plans[name] for name in queries)
    for name in queries:
        if name not in found.unfair:
            assert found.costs[name].cpu <= FAIR * free.costs[name].cpu


def test_limits_that_no_plans_keep_are_refused() -> None:
    with pytest.raises(NoFeasiblePlan) as refused:
        joint({"one": query(), "other": query()}, of_set=SetPlanOptions("auto", memory=1000.0))
    assert refused.value.message == "no plans found for the queries together fit within their joint 'limits'"
    assert refused.value.hint is not None
    assert "memory:" in refused.value.hint
