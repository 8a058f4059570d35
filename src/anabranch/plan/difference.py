"""The difference between two plans of a query: which states they share, and the boxes in which they differ.

Every inner join of a plan keeps its results as a state, identified by its *content* (`plan.content`). Two plans share a
state if and only if the contents are equal; such a state is handed over unchanged.

States that differ only in their deferred predicates can be moved as well, by the invariant in `plan.selections`: a
state must hold every combination that passes all predicates, and none that fails one checked at or below it. If the new
plan has checked more, the old state is *filtered* by the missing predicates. If it has checked less, the old state is
moved unchanged: the combinations that it lacks fail a predicate that is checked above, so no result needs them.
Selections never have to be undone. No column can be missing, because a state holds row numbers. (Zhu 2006, Section
13.2, filters, projects and stuffs states of rows; only filtering is needed here.)

A *box* is a region in which the plans differ: both compute its output, from inputs that both have, by joins that only
one of them has. Outside the boxes nothing changes. Boxes never overlap; one may begin where another ends, at a shared
state. The roots of both plans have equal content, merged or not: results, or input of the query's group-by. (Zhu 2006,
Sections 12.1.1 and 26.2, draws boxes by hand; here they are derived from the plans. The group-by above both plans is
its SGB operator, Section 14.1.2.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from anabranch.plan.content import Content
from anabranch.plan.join_graph import Theta
from anabranch.plan.physical import (
    InputOperator,
    JoinNode,
    Leaf,
    PhysicalPlan,
    Shared,
    kept,
    nodes,
    shape,
    shared_parts,
    subplans,
)
from anabranch.plan.selections import deferred_thetas, still_unchecked


@dataclass(frozen=True)
class Box:
    """A content that two plans compute differently from the same inputs; joins are listed inputs first."""

    output: Content
    inputs: tuple[Content, ...]
    old: tuple[JoinNode, ...]
    new: tuple[JoinNode, ...]


@dataclass(frozen=True)
class FilteredState:
    """A state of the old plan that the new plan has with more predicates checked: shapes, and positions of thetas."""

    old: str
    new: str
    predicates: tuple[int, ...]


@dataclass(frozen=True)
class StateMatching:
    """The intermediate states of two plans, by shape: those in both, and those in only one."""

    moved: tuple[tuple[str, str], ...]
    """Old and new shapes of states that are handed over unchanged."""
    recomputed: tuple[str, ...]
    """States that only the new plan keeps, inputs first."""
    discarded: tuple[str, ...]
    """States of the old plan that the new one does not need, after filtering."""
    filtered: tuple[FilteredState, ...] = ()
    """States that are copied without the combinations that the new plan would already have rejected."""

    @property
    def is_trivial(self) -> bool:
        """True if no state has to be filtered or computed."""
        return not self.recomputed and not self.filtered


def match_states(old: PhysicalPlan, new: PhysicalPlan, thetas: Sequence[Theta] = ()) -> StateMatching:
    """Returns which states of the old plan the new plan can use; `thetas` of the query matter if a plan defers one.

    >>> from anabranch.plan.text import parse
    >>> match_states(parse("((a b c) d)"), parse("(((b c) a) d)"))
    StateMatching(moved=(('(a b c)', '((b c) a)'),), recomputed=('(b c)',), discarded=(), filtered=())
    """
    in_old, in_new = contents(old, thetas), contents(new, thetas)
    before = {state.content: state.shape for state in kept(old)}
    moved, recomputed, filtered = [], [], []
    for state in kept(new):
        source = before.get(state.content)
        if source is None:
            recomputed.append(state.shape)
        elif newly := tuple(sorted(in_old[source].unchecked - in_new[state.shape].unchecked)):
            filtered.append(FilteredState(source, state.shape, newly))
        else:
            moved.append((source, state.shape))
    useful = {source for source, _ in moved}
    discarded = tuple(name for name in before.values() if name not in useful)
    return StateMatching(tuple(moved), tuple(recomputed), discarded, tuple(filtered))


def boxes(old: PhysicalPlan, new: PhysicalPlan, thetas: Sequence[Theta] = ()) -> tuple[Box, ...]:
    """Returns the boxes of two plans over the same relations, inner ones first.

    >>> from anabranch.plan.text import parse
    >>> [(sorted(box.output.relations), [sorted(part.relations) for part in box.inputs]) for box in boxes(
    ...     parse("(((a b) c) (d e f))"), parse("(((b c) a) ((d e) f))"))]
    [(['a', 'b', 'c'], [['b'], ['c'], ['a']]), (['d', 'e', 'f'], [['d'], ['e'], ['f']])]
    """
    in_old, in_new = contents(old, thetas), contents(new, thetas)
    before, after = _all(old, in_old), _all(new, in_new)
    common = before.keys() & after.keys()
    found = []
    for output, other in after.items():
        if output not in common:
            continue
        one = before[output]
        if {in_old[shape(child)] for child in one.inputs} == {in_new[shape(child)] for child in other.inputs}:
            continue
        inputs = tuple(part for child in other.inputs for part in _highest(child, in_new, common))
        found.append(Box(output, inputs, _between(one, inputs), _between(other, inputs)))
    return tuple(found)


def contents(plan: PhysicalPlan, thetas: Sequence[Theta] = ()) -> dict[str, Content]:
    """Returns the content of every part of a plan, by its shape; the root has all relations, merged or not."""
    deferred = deferred_thetas(plan)
    made = {
        shape(part): replace(part.content, unchecked=still_unchecked(part, thetas, deferred))
        for part in subplans(plan)
        if not isinstance(part, Leaf | Shared)
    }
    shared = {part.shape: part.content for part in shared_parts(plan)}
    leaves = {name: Content.of([name]) for name in plan.relations}
    return leaves | shared | made | {shape(plan): Content.of(plan.relations)}


def _all(plan: PhysicalPlan, made: Mapping[str, Content]) -> dict[Content, JoinNode | InputOperator]:
    return {made[inner.shape]: inner for inner in (*kept(plan), plan) if not isinstance(inner, Leaf | Shared)}


def _highest(plan: PhysicalPlan, made: Mapping[str, Content], common: Set[Content]) -> Iterator[Content]:
    """Returns the highest contents at or below a plan that two plans share."""
    if isinstance(plan, Leaf | Shared) or made[shape(plan)] in common:
        yield made[shape(plan)]
    else:
        for child in plan.inputs:
            yield from _highest(child, made, common)


def _between(plan: JoinNode | InputOperator, inputs: Iterable[Content]) -> tuple[JoinNode, ...]:
    """Returns the joins from the inputs up to the plan, the topmost last."""
    parts = list(inputs)
    return tuple(
        inner for inner in nodes(plan) if not any(frozenset(inner.relations) <= part.relations for part in parts)
    )
