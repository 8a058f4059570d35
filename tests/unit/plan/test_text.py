"""Plans as text: what is printed is read back, and what is not a plan is refused at its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import PlanError
from anabranch.plan.physical import (
    JoinNode,
    Leaf,
    PhysicalPlan,
    PreGroup,
    height,
    linear_tree,
    mjoin,
    nodes,
    shape,
)
from anabranch.plan.text import parse
from tests.support.strategies import plans

NAMES = st.lists(st.from_regex(r"[A-Za-z_][A-Za-z_0-9]{0,5}", fullmatch=True), min_size=1, max_size=6, unique=True)


@given(st.data())
def test_a_plan_is_read_back_as_it_was_printed(data: st.DataObject) -> None:
    plan = data.draw(plans(tuple(data.draw(NAMES)), merging=data.draw(st.booleans())))
    assert parse(str(plan)) == plan
    spaced = str(plan).replace(" ", "  ").replace(">", " > ")
    for bracket in "()[]":
        spaced = spaced.replace(bracket, f" {bracket} ")
    assert parse(f" {spaced} ") == plan
    assert shape(parse(shape(plan))) == shape(plan)


@given(st.data())
def test_a_plan_knows_its_parts(data: st.DataObject) -> None:
    names = tuple(data.draw(NAMES))
    plan = data.draw(plans(names, merging=data.draw(st.booleans())))
    assert sorted(plan.relations) == sorted(names)
    joins = list(nodes(plan))
    assert sum(len(join.inputs) - 1 for join in joins) == len(names) - 1
    assert height(plan) <= len(joins)
    for position, join in enumerate(joins):
        inner = [child for child in map(_unmerged, join.inputs) if isinstance(child, JoinNode)]
        assert all(child in joins[:position] for child in inner)


def _unmerged(plan: PhysicalPlan) -> PhysicalPlan:
    return plan.input if isinstance(plan, PreGroup) else plan


def test_the_extremes_have_their_texts() -> None:
    assert str(mjoin(("a", "b", "c"))) == "(a b c)"
    assert str(linear_tree(("a", "b", "c"))) == "((a b) c)"
    assert str(mjoin(("a",))) == str(linear_tree(("a",))) == "a"
    mixed = JoinNode((parse("(a b)"), Leaf("c"), Leaf("d")), ((), (0, 2), ()))
    assert str(mixed) == "((a b) c d | c>(a b)>d)"


HINT = "plans look like (a b c), ((a b) c), ([a] b), ((a b) c #0) or ((a b) c d | c>(a b)>d)"
MISPLACED = {
    "": (1, "a relation name or '('", "the end"),
    "(a b": (5, "a relation name or '('", "the end"),
    "(a b) c": (7, "the end of the plan", "'c'"),
    "(a 7)": (4, "a relation name or '('", "'7'"),
    "(a b | )": (8, "a relation name or '('", "')'"),
    "(a b | a>c)": (10, "one of the inputs a, b", "'c'"),
    "(a b | a>b": (11, "'>', ',' or ')'", "the end"),
    "(a b | a>b | b>a)": (12, "'>', ',' or ')'", "'|'"),
    "(a b | a>b, a>b)": (13, "one order for each input", "'a'"),
    "(a b c | a)": (11, "'>'", "')'"),
    "[a]": (1, "a relation name or '('", "'['"),
    "([a b)": (5, "']'", "'b'"),
    "([[a]] b)": (3, "a relation name or '('", "'['"),
    "([a] b | a>b)": (10, "one of the inputs [a], b", "'a'"),
}
REFUSED = {
    "(a)": "a join needs at least two inputs\nhint: write a plan such as '(a b)'",
    "(a (b a))": "relation 'a' occurs twice in plan '(a (b a))'",
    "(a b c | a>b)": "the order of input 'a' in plan '(a b c)' does not visit every other input once",
    "(a b c | a>b>b)": "the order of input 'a' in plan '(a b c)' does not visit every other input once",
}


@pytest.mark.parametrize("text", MISPLACED)
def test_an_error_points_at_its_place(text: str) -> None:
    position, expected, found = MISPLACED[text]
    with pytest.raises(PlanError) as caught:
        parse(text)
    assert str(caught.value).split("\n") == [
        f"plan text is wrong at character {position}: expected {expected}, found {found}",
        f"  {text}",
        f"  {' ' * (position - 1)}^",
        f"hint: {HINT}",
    ]


@pytest.mark.parametrize("text", REFUSED)
def test_texts_that_are_not_plans_are_refused(text: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse(text)
    assert str(caught.value) == REFUSED[text]


@given(st.text(alphabet="ab()[]|>, ", max_size=14))
def test_any_text_is_a_plan_or_a_plan_error(text: str) -> None:
    try:
        plan: PhysicalPlan | None = parse(text)
    except PlanError:
        plan = None
    if plan is not None:
        assert parse(str(plan)) == plan
