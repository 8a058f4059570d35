"""What changes when one plan of a query takes over from another: its states, its boxes, the strategies for it.

Every inner join of a plan keeps its results as a state. The state of a set of relations holds the valid combinations of
their rows that pass every predicate among them, whatever the shape of the joins below. So two plans of one query have
the same state exactly where they join the same set of relations somewhere below their roots, and such a state can be
handed over as it is. Where rows are merged before they join (grouped queries alone), it also counts which: a state is
known by its *content*, the relations of its combinations and, in brackets, the inputs that were merged.

A *box* is a stretch of the plan that really differs: a content that both plans make (its output), made from contents
that both plans have (its inputs), by joins that only one of them has. Outside the boxes nothing changes. Boxes never
overlap: where one ends another may begin, at a state that both plans share. The roots of both plans make the same,
merged or not: results, or what the group-by of the query takes either way. (Zhu 2006, Sections 12.1.1 and 26.2, draws
boxes by hand; here they follow from the plans. The group-by above both plans is its SGB operator, Section 14.1.2.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from anabranch.errors import MigrationError
from anabranch.plan.check import validate
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, PreGroup, content, kept, nodes, relations_of
from anabranch.plan.query import Grouping

Strategy: TypeAlias = Literal["none", "pause-drain-resume", "moving-state", "parallel-track"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
Content: TypeAlias = frozenset[str]
"""What a state or a box is known by; without merged inputs, simply its relations."""


@dataclass(frozen=True)
class Box:
    """A content that two plans make differently from the same inputs; joins stand inputs first."""

    output: Content
    inputs: tuple[Content, ...]
    old: tuple[JoinNode, ...]
    new: tuple[JoinNode, ...]


@dataclass(frozen=True)
class StateMatching:
    """The intermediate states of two plans, by shape: those that both have, and those of one alone."""

    moved: tuple[tuple[str, str], ...]
    """Old and new shape of a state that both plans keep."""
    recomputed: tuple[str, ...]
    """States that only the new plan keeps, inputs first."""
    discarded: tuple[str, ...]
    """States that only the old plan keeps."""


def match_states(old: PhysicalPlan, new: PhysicalPlan) -> StateMatching:
    """Which states of the old plan serve the new one.

    >>> from anabranch.plan.text import parse
    >>> match_states(parse("((a b c) d)"), parse("(((b c) a) d)"))
    StateMatching(moved=(('(a b c)', '((b c) a)'),), recomputed=('(b c)',), discarded=())
    """
    before, after = _inner(old), _inner(new)
    return StateMatching(
        tuple((before[made].shape, plan.shape) for made, plan in after.items() if made in before),
        tuple(plan.shape for made, plan in after.items() if made not in before),
        tuple(plan.shape for made, plan in before.items() if made not in after),
    )


def boxes(old: PhysicalPlan, new: PhysicalPlan) -> tuple[Box, ...]:
    """The stretches in which two plans over the same relations differ, inner ones first.

    >>> from anabranch.plan.text import parse
    >>> [(sorted(box.output), [sorted(part) for part in box.inputs]) for box in boxes(
    ...     parse("(((a b) c) (d e f))"), parse("(((b c) a) ((d e) f))"))]
    [(['a', 'b', 'c'], [['b'], ['c'], ['a']]), (['d', 'e', 'f'], [['d'], ['e'], ['f']])]
    """
    before, after = _all(old), _all(new)
    common = {made for made in after if made in before}
    found = []
    for output, other in after.items():
        if output not in common:
            continue
        one = before[output]
        if {content(child) for child in _inputs(one)} == {content(child) for child in _inputs(other)}:
            continue
        inputs = tuple(part for child in _inputs(other) for part in _highest(child, common))
        found.append(Box(output, inputs, _between(one, inputs), _between(other, inputs)))
    return tuple(found)


def check_migration(
    old: PhysicalPlan, new: PhysicalPlan, graph: JoinGraph, strategy: str, grouping: Grouping | None = None
) -> None:
    """Refuses a change that the strategy cannot serve, or a plan of another query."""
    validate(new, graph, grouping)
    check_strategy(old, new, graph, strategy)


def check_strategy(old: PhysicalPlan, new: PhysicalPlan, graph: JoinGraph, strategy: str) -> None:
    """Refuses a change between two plans of a query that the strategy cannot serve."""
    match strategy:
        case "none":
            if lacking := match_states(old, new).recomputed:
                raise MigrationError(
                    f"strategy 'none' cannot change plan '{old}' into '{new}'",
                    detail=f"the state '{lacking[0]}' is not there and would have to be computed",
                    hint="use 'moving-state' or 'parallel-track'",
                )
        case "pause-drain-resume":
            if not isinstance(old, Leaf):
                raise MigrationError(
                    f"strategy 'pause-drain-resume' cannot change plan '{old}'",
                    detail="its joins keep state, which pausing does not carry over",
                    hint="use 'moving-state' or 'parallel-track'",
                )
        case "parallel-track":
            if not match_states(old, new).recomputed:
                return  # nothing is lacking, so the change is made at once
            for box in boxes(old, new):
                for names in map(relations_of, box.inputs):
                    if all(graph.relation(name).window.range is None for name in names):
                        raise MigrationError(
                            f"strategy 'parallel-track' would never end for plan '{new}'",
                            detail=f"rows of '{' '.join(sorted(names))}' are kept for ever, so old ones never leave",
                            hint="use 'moving-state'",
                        )
        case "moving-state":
            pass
        case _:
            raise MigrationError(f"no migration strategy '{strategy}'", hint=f"one of {', '.join(STRATEGIES)}")


def made_by(plan: PhysicalPlan, root: PhysicalPlan) -> Content:
    """What a plan below a root makes; the root makes combinations of all relations, merged or not."""
    return frozenset(root.relations) if plan is root else content(plan)


def _all(plan: PhysicalPlan) -> dict[Content, JoinNode | PreGroup]:
    return _inner(plan) | ({} if isinstance(plan, Leaf) else {made_by(plan, plan): plan})


def _inner(plan: PhysicalPlan) -> dict[Content, JoinNode | PreGroup]:
    return {content(inner): inner for inner in kept(plan)}


def _inputs(plan: JoinNode | PreGroup) -> tuple[PhysicalPlan, ...]:
    return plan.inputs if isinstance(plan, JoinNode) else (plan.input,)


def _highest(plan: PhysicalPlan, common: set[Content]) -> Iterator[Content]:
    """The contents that two plans have in common, at a plan or as far up below it as there are some."""
    if isinstance(plan, Leaf) or content(plan) in common:
        yield content(plan)
    else:
        for child in _inputs(plan):
            yield from _highest(child, common)


def _between(plan: JoinNode | PreGroup, inputs: Iterable[Content]) -> tuple[JoinNode, ...]:
    """The joins from the inputs up to the plan, of which the topmost is the last."""
    parts = [relations_of(part) for part in inputs]
    return tuple(inner for inner in nodes(plan) if not any(frozenset(inner.relations) <= part for part in parts))
