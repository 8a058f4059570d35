"""Rewrites a plan step by step and records the fate of its states, so that states need not be matched afterwards.

Every state of the first plan has a number, and each step records its effect on the states: that a predicate is now
checked at or below a state (its rows will have to be filtered), or no longer is (nothing will have to be done, see
`plan.difference`). An optimizer that starts from scratch has no such record; for it `plan.difference.match_states`
propagates deferred predicates through both plans. The two agree on every state that both know; the comparison also
knows states that one step gave up and a later step made again. (Zhu 2006, Section 13.3; its steps for projections are
not needed where states hold row numbers.)

A step that does not apply returns None. Plans that merge inputs are not rewritten here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from anabranch.plan.difference import FilteredState, StateMatching
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import JoinNode, PhysicalPlan, kept, nodes, shape
from anabranch.plan.selections import checked_in, deferred_thetas, guarded_by

Relations: TypeAlias = frozenset[str]


@dataclass(frozen=True)
class CheckChange:
    """Predicates that a state's rows have newly passed since the start, and those that they no longer have."""

    applied: frozenset[int] = frozenset()
    undone: frozenset[int] = frozenset()

    def apply(self, predicate: int) -> CheckChange:
        if predicate in self.undone:
            return replace(self, undone=self.undone - {predicate})
        return replace(self, applied=self.applied | {predicate})

    def undo(self, predicate: int) -> CheckChange:
        if predicate in self.applied:
            return replace(self, applied=self.applied - {predicate})
        return replace(self, undone=self.undone | {predicate})


@dataclass(frozen=True)
class Recording:
    """The first plan and the present one, the number of each present state, and the changes to those of the first."""

    graph: JoinGraph
    start: PhysicalPlan
    plan: PhysicalPlan
    numbers: Mapping[Relations, int]
    changes: Mapping[int, CheckChange]

    @classmethod
    def of(cls, plan: PhysicalPlan, graph: JoinGraph) -> Recording:
        numbers = {frozenset(state.relations): number for number, state in enumerate(kept(plan), start=1)}
        return cls(graph, plan, plan, numbers, {number: CheckChange() for number in numbers.values()})

    @property
    def matching(self) -> StateMatching:
        """The fate of the states when the present plan replaces the first."""
        first = dict(enumerate((state.shape for state in kept(self.start)), start=1))
        moved, recomputed, filtered = [], [], []
        for state in kept(self.plan):
            number = self.numbers[frozenset(state.relations)]
            if number not in first:
                recomputed.append(state.shape)
            elif newly := self.changes[number].applied:
                filtered.append(FilteredState(first[number], state.shape, tuple(sorted(newly))))
            else:
                moved.append((first[number], state.shape))
        useful = {source for source, _ in moved}
        discarded = tuple(name for name in first.values() if name not in useful)
        return StateMatching(tuple(moved), tuple(recomputed), discarded, tuple(filtered))

    # --- steps --------------------------------------------------------------------------------------------------------

    def check_later(self, predicate: int) -> Recording | None:
        """Defers the predicate from the join that checks it to the join above, unless it may guard another."""
        others = [theta.predicate for other, theta in enumerate(self.graph.thetas) if other != predicate]
        if guarded_by(self.graph.thetas[predicate].predicate, others) is not None:
            return None
        node = self._checking(predicate)
        above = next((other for other in self._above(node)), None)
        if above is None:
            return None
        noted = self._noted(node, lambda change: change.undo(predicate))
        return noted._placed(predicate, frozenset(above.relations))

    def check_sooner(self, predicate: int) -> Recording | None:
        """Lets the join below check a deferred predicate; the first join that can check it need not name it."""
        node = self._checking(predicate)
        wanted = self.graph.thetas[predicate].relations
        below = next((c for c in node.inputs if isinstance(c, JoinNode) and wanted <= frozenset(c.relations)), None)
        if below is None:
            return self._placed(predicate, None) if predicate in node.checks else None
        noted = self._noted(below, lambda change: change.apply(predicate))
        is_first = predicate in checked_in(below, self.graph, {})
        return noted._placed(predicate, None if is_first else frozenset(below.relations))

    def dissolve(self, state: Relations) -> Recording | None:
        """Merges the join that keeps the state into the join above, which takes over its deferred predicates."""
        node = self._join(state)
        above = None if node is None else next(self._above(node), None)
        if node is None or above is None:
            return None
        inputs = tuple(part for child in above.inputs for part in (node.inputs if child == node else (child,)))
        merged = JoinNode(inputs, checks=(*above.checks, *node.checks))
        return replace(
            self._exchanged(above, merged), numbers={name: n for name, n in self.numbers.items() if name != state}
        )

    def gather(self, join: Relations, inputs: Relations) -> Recording | None:
        """Some inputs of a join, which together have these relations, are joined first: a state with a new number."""
        node = self._join(join)
        if node is None:
            return None
        inner = tuple(child for child in node.inputs if frozenset(child.relations) <= inputs)
        if len(inner) in (0, 1, len(node.inputs)) or {*inputs} != {name for c in inner for name in c.relations}:
            return None
        others = tuple(child for child in node.inputs if child not in inner)
        number = max(self.changes, default=0) + 1
        return replace(
            self._exchanged(node, JoinNode((JoinNode(inner), *others), checks=node.checks)),
            numbers={**self.numbers, inputs: number},
            changes={**self.changes, number: CheckChange()},
        )

    # --- inside -------------------------------------------------------------------------------------------------------

    def _checking(self, predicate: int) -> JoinNode:
        deferred = deferred_thetas(self.plan)
        return next(node for node in nodes(self.plan) if predicate in checked_in(node, self.graph, deferred))

    def _join(self, relations: Relations) -> JoinNode | None:
        return next((node for node in nodes(self.plan) if frozenset(node.relations) == relations), None)

    def _above(self, node: JoinNode) -> Iterator[JoinNode]:
        return (other for other in nodes(self.plan) if node in other.inputs)

    def _noted(self, node: JoinNode, change: Callable[[CheckChange], CheckChange]) -> Recording:
        number = self.numbers[frozenset(node.relations)]
        return replace(self, changes={**self.changes, number: change(self.changes[number])})

    def _placed(self, predicate: int, at: Relations | None) -> Recording:
        """The recording with the predicate deferred to the join of those relations, or not deferred."""

        def checked(node: JoinNode) -> JoinNode:
            rest = tuple(other for other in node.checks if other != predicate)
            return replace(node, checks=(*rest, predicate) if frozenset(node.relations) == at else rest)

        return replace(self, plan=_rebuilt(self.plan, checked))

    def _exchanged(self, node: JoinNode, other: JoinNode) -> Recording:
        here = shape(node)
        return replace(self, plan=_rebuilt(self.plan, lambda each: other if shape(each) == here else each))


def _rebuilt(plan: PhysicalPlan, change: Callable[[JoinNode], JoinNode]) -> PhysicalPlan:
    """The plan with every join exchanged, from the root down; orders, which name inputs, are left to be chosen anew."""
    if not isinstance(plan, JoinNode):
        return plan
    changed = change(plan)
    return replace(changed, inputs=tuple(_rebuilt(child, change) for child in changed.inputs), orders=())
