"""Which states and boxes two plans differ in."""

from __future__ import annotations

from hypothesis import given

from anabranch.plan.content import Content
from anabranch.plan.difference import boxes, match_states
from anabranch.plan.physical import PhysicalPlan, nodes
from anabranch.plan.text import parse
from tests.support.strategies import plans


def test_states_match_by_their_relations_whatever_their_shape() -> None:
    found = match_states(parse("(((a b c) d) e)"), parse("((((c a) b) e) d)"))
    assert found.moved == (("(a b c)", "((c a) b)"),)
    assert found.recomputed == ("(c a)", "(((c a) b) e)")
    assert found.discarded == ("((a b c) d)",)


def test_a_box_ends_at_states_that_both_plans_have() -> None:
    (box,) = boxes(parse("((((a b) c) d) e)"), parse("((((a b) d) c) e)"))
    assert box.output == Content.of("abcd")
    assert set(box.inputs) == {Content.of("ab"), Content.of("c"), Content.of("d")}
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
        assert frozenset().union(*(part.relations for part in box.inputs)) == box.output.relations
        assert sum(len(part.relations) for part in box.inputs) == len(box.output.relations)
    shared = {frozenset(node.relations) for node in nodes(new)} - {box.output.relations for box in found}
    for node in nodes(old):
        if frozenset(node.relations) in shared:
            children = {frozenset(child.relations) for child in node.inputs}
            other = next(n for n in nodes(new) if set(n.relations) == set(node.relations))
            assert children == {frozenset(child.relations) for child in other.inputs}
