"""Shared joins: the weakest demands of their users, what each asks beyond, and what cannot be shared."""

from __future__ import annotations

import pytest

from anabranch.cql import compile_query
from anabranch.errors import BundleError, PlanError
from anabranch.plan.check import validate
from anabranch.plan.difference import match_states
from anabranch.plan.mesh import parse_plan
from anabranch.plan.physical import shared_parts, unshared
from anabranch.plan.query_set import QuerySet, together
from anabranch.plan.sharing import CommonJoin, common_joins, shared_join, shares
from anabranch.plan.text import parse
from tests.support.scripted import read_script

SCRIPT = read_script("\n".join(f"stream {name} (k bigint, j bigint, v bigint, s string)" for name in "abcd"))


def sets(**texts: str) -> QuerySet:
    return together({name: compile_query(text, SCRIPT.catalog) for name, text in texts.items()})


def common(queries: QuerySet, **plans: str) -> CommonJoin:
    (found,) = common_joins(queries, {name: parse_plan(text) for name, text in plans.items()}).values()
    return found


def joined(windows: str = "9 9", where: str = "", more: str = "") -> str:
    first, second = windows.split()
    source = f"a [RANGE {first} SECONDS], b [RANGE {second} SECONDS]{more}"
    return f"SELECT a.v AS x FROM {source} WHERE a.k = b.k{where}"


@pytest.mark.parametrize("text", ["{a b}", "({a b} c)", "{(a b) c}", "({a b c | a>c>b} d e | d>{a b c}>e)"])
def test_a_shared_join_is_written_in_braces(text: str) -> None:
    assert str(parse(text)) == text
    assert shares(parse(text))
    assert not shares(unshared(parse(text)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{[a] b}", "'[a]' cannot be part of the shared join '{[a] b}'"),
        ("{a b #0}", "the shared join '{a b #0}' defers a predicate"),
        ("{{a b} c}", "'{a b}' cannot be part of the shared join '{{a b} c}'"),
        ("{a b)", "plan text is wrong at character 5: expected a relation name or '(', found ')'"),
    ],
)
def test_joins_that_cannot_be_shared_are_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError) as refused:
        parse(text)
    assert refused.value.message == message


def test_a_name_alone_is_no_join() -> None:
    with pytest.raises(PlanError, match="'a' is not a join that can be shared"):
        shared_join("a")
    assert shared_join("(a b)") == shared_join("{a b}")


def test_a_plan_cannot_merge_rows_and_share() -> None:
    query = compile_query(
        "SELECT COUNT(*) AS n FROM a [RANGE 9 SECONDS SLIDE 3 SECONDS], b [RANGE 9 SECONDS SLIDE 3 SECONDS], "
        "c [RANGE 9 SECONDS SLIDE 3 SECONDS] WHERE a.k = b.k AND b.k = c.k",
        SCRIPT.catalog,
    )
    with pytest.raises(PlanError, match="merges rows and shares a join"):
        validate(parse("({a b} [c])"), query.graph, query.grouping)


def test_to_its_plan_a_shared_join_is_a_source() -> None:
    plan = parse("(({a b} c) d)")
    assert match_states(parse("(((a b) c) d)"), plan).moved == (("((a b) c)", "({a b} c)"),)
    assert match_states(plan, parse("(((a b) c) d)")).recomputed == ("(a b)",)
    assert [str(part) for part in shared_parts(plan)] == ["{a b}"]


def test_the_longest_window_and_the_common_filters() -> None:
    queries = sets(
        long=joined("30 30"),
        one=joined("9 3", " AND a.v > 1 AND b.v > 5"),
        other=joined("5 3", " AND a.v > 1 AND b.v > 6"),
    )
    found = common(queries, long="(a b)", one="{a b}", other="{a b}")
    demands = {
        residual.relation: (residual.range, residual.is_shorter, str(residual.filter))
        for residual in found.member.residuals
    }
    assert demands == {"a": (9_000_000, True, "a.v > 1"), "b": (3_000_000, True, "None")}
    rest = {
        name: [(residual.relation, residual.is_shorter, str(residual.filter)) for residual in each.residuals]
        for name, each in found.rests.items()
    }
    assert rest == {"one": [("b", False, "b.v > 5")], "other": [("a", True, "None"), ("b", False, "b.v > 6")]}


def test_predicates_of_one_user_alone_are_its_rest() -> None:
    queries = sets(one=joined(where=" AND a.v < b.v"), other=joined(where=" AND a.j = b.j"))
    found = common(queries, one="{a b}", other="{a b}")
    assert [str(key) for key in found.member.query.graph.keys] == ["a.k = b.k"]
    assert not found.member.query.graph.thetas
    assert found.rests["one"].thetas == (0,)
    assert [(each.left, each.right) for each in found.rests["other"].equalities] == [("a", "b")]


def test_a_key_of_more_relations_in_one_query() -> None:
    three = "SELECT a.v AS x FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS], c [RANGE 9 SECONDS] "
    queries = sets(
        all=f"{three} WHERE a.k = b.k AND b.k = c.k",
        some=f"{three} WHERE a.k = b.k AND b.v < c.v",
    )
    found = common(queries, all="{a b c}", some="{a b c}")
    assert [(each.left, each.right) for each in found.rests["all"].equalities] == [("a", "c")]
    assert not found.rests["some"].equalities


def test_users_that_compare_different_relations_by_one_key_cannot_share() -> None:
    three = "SELECT a.v AS x FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS], c [RANGE 9 SECONDS] WHERE"
    queries = sets(one=f"{three} a.k = c.k AND a.v < b.v", other=f"{three} b.k = c.k AND a.v < b.v")
    with pytest.raises(BundleError) as refused:
        common(queries, one="({a b} c)", other="({a b} c)")
    assert refused.value.message == "join '{a b}' cannot be shared by 'one', 'other'"


def test_a_predicate_that_may_fail_is_not_shared() -> None:
    queries = sets(one=joined(where=" AND a.v * b.v > 1"), other=joined())
    with pytest.raises(BundleError) as refused:
        common(queries, one="{a b}", other="{a b}")
    assert refused.value.message == "query 'one' cannot share join '{a b}'"
    assert refused.value.hint == "remove the braces"


def test_a_join_at_work_serves_users_that_ask_no_more() -> None:
    queries = sets(one=joined(), other=joined(), third=joined("9 9", " AND b.j = c.j", ", c [RANGE 9 SECONDS]"))
    both = common(queries, one="{a b}", other="{a b}", third="(a b c)")
    alone = common(queries, one="{a b}", other="(a b)", third="(a b c)")
    with_more = common(queries, one="{a b}", other="(a b)", third="({a b} c)")
    assert alone.is_served_by(both)
    assert both.is_served_by(alone)
    assert not with_more.is_served_by(both), "nobody has kept the combinations for rows of c"
