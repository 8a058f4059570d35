from __future__ import annotations

import pytest

from anabranch.cost.units import UnitCosts
from anabranch.errors import PlanError, SpecError
from anabranch.optimize import Budget, Choice, Hints, Infeasible, Objective, Proposal, choose
from anabranch.optimize.problem import Problem
from anabranch.optimize.proposals import UNLIMITED, kind
from anabranch.plan.physical import JoinNode, nodes
from anabranch.stats.view import FixedStatistics
from tests.unit.optimize.graphs import chain_graph

GRAPH = chain_graph("abcd", seconds=50)
NESTED_LIKE = UnitCosts(insert=2e-7, delete=2e-7, probe=0.0, compare=0.0, match=2.2e-6)
NO_HINTS = Hints()
SEEN = FixedStatistics(
    rates=dict.fromkeys("abcd", 20.0), selectivities={"a b": 0.02, "b c": 0.2, "c d": 0.05}, costs=NESTED_LIKE.by_name()
)


def answer(budget: Budget = UNLIMITED, objective: str = "qualified", hints: Hints = NO_HINTS) -> Choice:
    return choose(Problem(GRAPH, SEEN, budget, Objective.parse(objective), hints))


def proposal(choice: Choice) -> Proposal:
    assert isinstance(choice.answer, Proposal)
    return choice.answer


def test_the_chosen_plan_is_among_the_considered_and_every_loser_has_a_reason() -> None:
    chosen = proposal(answer(Budget(memory=5e6)))
    assert chosen.considered[0].plan == chosen.plan
    assert chosen.considered[0].reason == "chosen"
    assert len(chosen.considered) >= 3
    assert all(c.reason for c in chosen.considered)


@pytest.mark.parametrize(("objective", "resource"), [("cpu", "cpu"), ("memory", "memory")])
def test_an_objective_is_met_best_by_the_chosen_plan(objective: str, resource: str) -> None:
    chosen = proposal(answer(objective=objective))
    least = min(getattr(c.cost, resource) for c in chosen.considered)
    assert getattr(chosen.cost, resource) == least


def test_memory_below_the_tree_forces_states_away() -> None:
    free = proposal(answer(objective="cpu"))
    tight = proposal(answer(Budget(memory=free.cost.memory * 0.6), objective="cpu"))
    assert tight.cost.memory <= free.cost.memory * 0.6
    assert tight.cost.cpu > free.cost.cpu
    assert any("memory" in c.reason and "over" in c.reason for c in tight.considered)


def test_slots_share_the_work() -> None:
    total = proposal(answer(objective="cpu")).cost
    assert isinstance(answer(Budget(cpu=total.cpu / 2)).answer, Infeasible)
    assert isinstance(answer(Budget(cpu=total.cpu / 2 * 1.001, slots=2)).answer, Proposal)


def test_an_infeasible_budget_names_its_bound_and_the_nearest_plan() -> None:
    for budget, bound in ((Budget(cpu=1e-9), "cpu"), (Budget(memory=10.0), "memory")):
        failed = answer(budget).answer
        assert isinstance(failed, Infeasible)
        assert failed.bound == bound
        assert getattr(failed.cost, bound) == min(getattr(c.cost, bound) for c in failed.considered)
    least = proposal(answer(objective="cpu")).cost.cpu, proposal(answer(objective="memory")).cost.memory
    both = answer(Budget(least[0] * 1.000001, least[1] * 1.000001)).answer
    assert isinstance(both, Infeasible)
    assert both.bound == "cpu and memory together"


def test_rate_objectives_tell_saturated_plans_apart() -> None:
    cores = Budget(slots=1)
    by_time = proposal(answer(cores, "rate@100 seconds"))
    by_count = proposal(answer(cores, "first@1000000"))
    assert "results" in by_time.reason
    assert "first to 1e+06 results" in by_count.reason
    assert "there after" in by_count.considered[0].reason


def test_a_forced_plan_is_taken_and_its_orders_are_completed() -> None:
    chosen = proposal(answer(hints=Hints.parse(GRAPH, force="((a b) c d | c>d>(a b))")))
    assert isinstance(chosen.plan, JoinNode)
    assert chosen.plan.shape == "((a b) c d)"
    assert chosen.plan.orders[1] == (2, 0)
    assert all(chosen.plan.orders)
    over = answer(Budget(cpu=1e-9), hints=Hints.parse(GRAPH, force="((a b) c d)")).answer
    assert isinstance(over, Infeasible)


@pytest.mark.parametrize("family", ["mjoin", "tree", "jtree"])
def test_a_family_can_be_forced_or_forbidden(family: str) -> None:
    assert kind(proposal(answer(hints=Hints.parse(GRAPH, force=family))).plan) == family
    chosen = proposal(answer(hints=Hints.parse(GRAPH, forbid=[family])))
    assert kind(chosen.plan) != family
    assert any("excluded by 'plan' or 'hints'" in c.reason for c in chosen.considered)


def test_a_join_can_be_kept_or_forbidden() -> None:
    kept = proposal(answer(hints=Hints.parse(GRAPH, keep=["b c"])))
    assert {"b", "c"} in [set(node.relations) for node in nodes(kept.plan)]
    free = proposal(answer(objective="cpu")).plan
    inner = [node for node in nodes(free) if len(node.relations) < 4]
    assert inner
    without = proposal(answer(objective="cpu", hints=Hints.parse(GRAPH, forbid=[node.shape for node in inner]))).plan
    assert not {frozenset(n.relations) for n in inner} & {frozenset(n.relations) for n in nodes(without)}


def test_an_order_can_be_forbidden() -> None:
    mjoin = proposal(answer(hints=Hints.parse(GRAPH, force="mjoin"))).plan
    assert isinstance(mjoin, JoinNode)
    taken = ">".join("abcd"[position] for position in (0, *mjoin.orders[0]))
    other = proposal(answer(hints=Hints.parse(GRAPH, force="mjoin", forbid=[f"(a b c d | {taken})"]))).plan
    assert isinstance(other, JoinNode)
    assert other.orders[0] != mjoin.orders[0]
    assert other.orders[1:] == mjoin.orders[1:]


@pytest.mark.parametrize("names", ["abcdefghij", "abcdefghijklm"])
def test_hints_are_obeyed_within_and_beyond_the_exhaustive_search(names: str) -> None:
    graph = chain_graph(names)
    hints = Hints.parse(graph, keep=["a b c", "a b", "i j"], forbid=["mjoin"])
    plan = proposal(choose(Problem(graph, FixedStatistics(), hints=hints))).plan
    joined = [set(node.relations) for node in nodes(plan)]
    assert {"a", "b"} in joined
    assert {"a", "b", "c"} in joined
    assert {"i", "j"} in joined


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"force": "(a b)"}, PlanError, "leaves out 'c'"),
        ({"force": "(a b c d z)"}, PlanError, "'z'"),
        ({"forbid": ["(a z)"]}, PlanError, "names 'z', which the query does not have"),
        ({"keep": ["a z"]}, PlanError, "names 'z', which the query does not have"),
        ({"keep": ["a"]}, SpecError, "names no join"),
        ({"forbid": ["mjoin", "tree", "jtree"]}, SpecError, "forbid every family"),
    ],
)
def test_bad_hints_are_named(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Hints.parse(GRAPH, **arguments)  # type: ignore[arg-type]


def test_hints_that_leave_no_plan_are_refused() -> None:
    with pytest.raises(SpecError, match="exclude every plan"):
        choose(Problem(chain_graph("abc"), FixedStatistics(), hints=Hints.parse(chain_graph("abc"), force="jtree")))
    with pytest.raises(SpecError, match="overlapping"):
        answer(hints=Hints.parse(GRAPH, keep=["a b", "b c"]))


@pytest.mark.parametrize("text", ["", "fast", "rate", "rate@", "rate@-3 seconds", "rate@3", "first@soon", "cpu@3"])
def test_an_unknown_objective_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="unknown objective"):
        Objective.parse(text)


def test_objectives_are_read() -> None:
    assert Objective.parse("rate@1 minute") == Objective("rate", 60.0)
    assert str(Objective.parse("rate@90 seconds")) == "rate@90 seconds"
    assert str(Objective.parse("first@1000")) == "first@1000"
    assert str(Objective.parse("memory")) == "memory"


def test_one_relation_and_two_need_no_search() -> None:
    alone = choose(Problem(chain_graph("a"), FixedStatistics()))
    assert str(proposal(alone).plan) == "a"
    assert str(proposal(choose(Problem(chain_graph("ab"), FixedStatistics()))).plan) == "(a b)"
