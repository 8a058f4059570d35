"""One change of plan as a sequence of smaller ones.

A migration may change everything at once or box by box. Box by box each step computes, or runs twice, only the joins of
one box: the pauses of moving state are shorter and lie apart, and parallel tracks double less work at a time, at the
price of lasting longer together. Boxes of one change never overlap; steps that a rewriting optimizer took one after
another may, and any sequence of plans is an itinerary. (Zhu 2006, Section 26.2, asks for both and leaves them open.)
"""

from __future__ import annotations

from anabranch.plan.migration import Content, boxes
from anabranch.plan.physical import JoinNode, PhysicalPlan, nodes, pre_groups


def at_once(old: PhysicalPlan, new: PhysicalPlan) -> tuple[PhysicalPlan, ...]:
    """The itinerary of one step; none when the plans are the same."""
    return () if old == new else (new,)


def box_by_box(old: PhysicalPlan, new: PhysicalPlan) -> tuple[PhysicalPlan, ...]:
    """The plans on the way from one to the other, of which each changes one more box; the last is the new plan.

    >>> from anabranch.plan.text import parse
    >>> [str(plan) for plan in box_by_box(parse("(((a b) c) (d e f))"), parse("(((b c) a) ((d e) f))"))]
    ['(((b c) a) (d e f))', '(((b c) a) ((d e) f))']
    """
    if any(pre_groups(old)) or any(pre_groups(new)):
        # What is merged changes with everything above it.
        return at_once(old, new)
    reached: list[PhysicalPlan] = []
    before, after = _joins(old), _joins(new)
    changed: set[Content] = set()
    for box in boxes(old, new):
        changed.add(box.output)
        reached.append(_mixed(old, before, after, changed))
    return (*(plan for plan in reached if plan != new), *at_once(old, new))


def _mixed(
    plan: PhysicalPlan,
    before: dict[Content, JoinNode],
    after: dict[Content, JoinNode],
    changed: set[Content],
) -> PhysicalPlan:
    """The plan with the changed boxes made as the new plan makes them, everything else as the old one does."""
    if not isinstance(plan, JoinNode):
        return plan
    relations = frozenset(plan.relations)
    node = after[relations] if relations in changed or relations not in before else before[relations]
    return JoinNode(tuple(_mixed(child, before, after, changed) for child in node.inputs), node.orders)


def _joins(plan: PhysicalPlan) -> dict[Content, JoinNode]:
    return {frozenset(node.relations): node for node in nodes(plan)}
