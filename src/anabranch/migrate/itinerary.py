"""Divides one change of plan into a sequence of smaller changes.

A migration changes all boxes at once or one box after another. Box by box, each step computes, or runs twice, only the
joins of one box: the pauses of moving state are shorter and spread out, and parallel tracks duplicate less work at a
time, but the migration takes longer in total. (Zhu 2006, Section 26.2, mentions both as future work.) Invariant: the
boxes of one change do not overlap, and each step is a valid plan of the query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from anabranch.plan.content import Content
from anabranch.plan.difference import boxes, contents
from anabranch.plan.join_graph import Theta
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, input_operators, nodes, shape


def at_once(old: PhysicalPlan, new: PhysicalPlan) -> tuple[PhysicalPlan, ...]:
    """Returns the itinerary of one step; empty if the plans are the same."""
    return () if old == new else (new,)


def box_by_box(old: PhysicalPlan, new: PhysicalPlan, thetas: Sequence[Theta] = ()) -> tuple[PhysicalPlan, ...]:
    """Returns the intermediate plans from one to the other, each changing one more box; the last is the new plan.

    `thetas` are those of the query; they matter if a plan defers one.

    >>> from anabranch.plan.text import parse
    >>> [str(plan) for plan in box_by_box(parse("(((a b) c) (d e f))"), parse("(((b c) a) ((d e) f))"))]
    ['(((b c) a) (d e f))', '(((b c) a) ((d e) f))']
    """
    if any(input_operators(old)) or any(input_operators(new)):
        # The output of an input operator depends on everything above it.
        return at_once(old, new)
    reached: list[PhysicalPlan] = []
    before, after = _joins(old, thetas), _joins(new, thetas)
    changed: set[Content] = set()
    for box in boxes(old, new, thetas):
        changed.add(box.output)
        reached.append(_mixed(Content.of(old.relations), before, after, changed))
    return (*(plan for plan in reached if plan != new), *at_once(old, new))


_Joins: TypeAlias = dict[Content, tuple[JoinNode, tuple[Content, ...]]]
"""The joins of a plan by their output, each with the contents of its inputs."""


def _mixed(made: Content, before: _Joins, after: _Joins, changed: set[Content]) -> PhysicalPlan:
    """Returns the plan with the changed boxes from the new plan and everything else from the old one."""
    if made not in before and made not in after:
        (relation,) = made.relations
        return Leaf(relation)
    node, inputs = after[made] if made in changed or made not in before else before[made]
    return replace(node, inputs=tuple(_mixed(part, before, after, changed) for part in inputs))


def _joins(plan: PhysicalPlan, thetas: Sequence[Theta]) -> _Joins:
    made = contents(plan, thetas)
    return {made[node.shape]: (node, tuple(made[shape(child)] for child in node.inputs)) for node in nodes(plan)}
