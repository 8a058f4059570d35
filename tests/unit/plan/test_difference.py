"""Which states and boxes two plans differ in, and which strategies are refused for which change."""

from __future__ import annotations

import pytest
from hypothesis import given

from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.cql import compile_query
from anabranch.ddl import parse_schema
from anabranch.errors import AnabranchError, MigrationError, PlanError
from anabranch.plan.difference import boxes, check_migration, match_states
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import PhysicalPlan, nodes
from anabranch.plan.text import parse
from anabranch.testing.strategies import plans


def graph(windows: str = "[RANGE 5 SECONDS]") -> JoinGraph:
    catalog = Catalog()
    for name in "abc":
        catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint"), "ts"))
    text = f"SELECT a.k AS k FROM a {windows}, b [RANGE 5 SECONDS], c [RANGE 5 SECONDS] WHERE a.k = b.k AND b.k = c.k"
    return compile_query(text, catalog, allow_unbounded=True).graph


def test_states_match_by_their_relations_whatever_their_shape() -> None:
    found = match_states(parse("(((a b c) d) e)"), parse("((((c a) b) e) d)"))
    assert found.moved == (("(a b c)", "((c a) b)"),)
    assert found.recomputed == ("(c a)", "(((c a) b) e)")
    assert found.discarded == ("((a b c) d)",)


def test_a_box_ends_at_states_that_both_plans_have() -> None:
    (box,) = boxes(parse("((((a b) c) d) e)"), parse("((((a b) d) c) e)"))
    assert box.output == frozenset("abcd")
    assert set(box.inputs) == {frozenset("ab"), frozenset("c"), frozenset("d")}
    assert [node.shape for node in box.old] == ["((a b) c)", "(((a b) c) d)"]
    assert [node.shape for node in box.new] == ["((a b) d)", "(((a b) d) c)"]


def test_other_probe_orders_are_no_box() -> None:
    assert not boxes(parse("((a b c) d)"), parse("(d (c b a | c>a>b))"))


@given(old=plans(tuple("abcdef")), new=plans(tuple("abcdef")))
def test_boxes_hold_every_join_that_only_one_plan_has(old: PhysicalPlan, new: PhysicalPlan) -> None:
    found = boxes(old, new)
    inside = [node.shape for box in found for node in box.new[:-1]]
    assert sorted(inside) == sorted(match_states(old, new).recomputed)
    assert len({box.output for box in found}) == len(found)
    for box in found:
        assert frozenset().union(*box.inputs) == box.output
        assert sum(len(part) for part in box.inputs) == len(box.output)
    shared = {frozenset(node.relations) for node in nodes(new)} - {box.output for box in found}
    for node in nodes(old):
        if frozenset(node.relations) in shared:
            children = {frozenset(child.relations) for child in node.inputs}
            other = next(n for n in nodes(new) if set(n.relations) == set(node.relations))
            assert children == {frozenset(child.relations) for child in other.inputs}


@pytest.mark.parametrize(
    ("old", "new", "strategy", "named"),
    [
        ("((a b) c)", "((b c) a)", "none", r"\(b c\)"),
        ("(a b c)", "(c b a)", "pause-drain-resume", "keep state"),
        ("(a b c)", "((a b) c)", "teleport", "teleport"),
    ],
)
def test_a_strategy_that_cannot_serve_is_refused_by_name(old: str, new: str, strategy: str, named: str) -> None:
    with pytest.raises(MigrationError, match=named) as refused:
        check_migration(parse(old), parse(new), graph(), strategy)
    assert refused.value.hint


def test_old_rows_that_never_leave_forbid_parallel_tracks() -> None:
    unbounded = graph("[UNBOUNDED]")
    with pytest.raises(MigrationError, match="never end"):
        check_migration(parse("((a b) c)"), parse("((b c) a)"), unbounded, "parallel-track")
    check_migration(parse("((a b) c)"), parse("((b c) a)"), unbounded, "moving-state")


def test_a_plan_of_another_query_is_refused_whatever_the_strategy() -> None:
    with pytest.raises(PlanError, match="'d'"):
        check_migration(parse("(a b c)"), parse("(a b d)"), graph(), "moving-state")
    assert issubclass(MigrationError, AnabranchError)


def test_where_no_state_is_lacking_any_strategy_for_joins_serves() -> None:
    for strategy in ("none", "moving-state", "parallel-track"):
        check_migration(parse("((a b) c)"), parse("(c b a)"), graph("[UNBOUNDED]"), strategy)
