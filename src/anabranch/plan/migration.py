"""What changes when one plan of a query takes over from another: its states, its boxes, the strategies for it.

Every inner join of a plan keeps its results as a state. The state of a set of relations holds the valid combinations of
their rows that pass every predicate among them, whatever the shape of the joins below. So two plans of one query have
the same state exactly where they join the same set of relations somewhere below their roots, and such a state can be
handed over as it is.

A *box* is a stretch of the plan that really differs: a set of relations that both plans make (its output), made from
sets that both plans have (its inputs), by joins that only one of them has. Outside the boxes nothing changes. Boxes
never overlap: where one ends another may begin, at a state that both plans share. (Zhu 2006, Sections 12.1.1 and 26.2,
draws boxes by hand; here they follow from the plans.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from anabranch.errors import MigrationError
from anabranch.plan.check import validate
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, nodes

Strategy: TypeAlias = Literal["none", "pause-drain-resume", "moving-state", "parallel-track"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
Relations: TypeAlias = frozenset[str]


@dataclass(frozen=True)
class Box:
    """A set of relations that two plans make differently from the same inputs; joins stand inputs first."""

    output: Relations
    inputs: tuple[Relations, ...]
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
        tuple((before[relations].shape, node.shape) for relations, node in after.items() if relations in before),
        tuple(node.shape for relations, node in after.items() if relations not in before),
        tuple(node.shape for relations, node in before.items() if relations not in after),
    )


def boxes(old: PhysicalPlan, new: PhysicalPlan) -> tuple[Box, ...]:
    """The stretches in which two plans over the same relations differ, inner ones first.

    >>> from anabranch.plan.text import parse
    >>> [(sorted(box.output), [sorted(part) for part in box.inputs]) for box in boxes(
    ...     parse("(((a b) c) (d e f))"), parse("(((b c) a) ((d e) f))"))]
    [(['a', 'b', 'c'], [['b'], ['c'], ['a']]), (['d', 'e', 'f'], [['d'], ['e'], ['f']])]
    """
    before, after = _all(old), _all(new)
    common = [relations for relations in after if relations in before]
    found = []
    for output in common:
        one, other = before[output], after[output]
        if {frozenset(child.relations) for child in one.inputs} == {
            frozenset(child.relations) for child in other.inputs
        }:
            continue
        leaves = [frozenset({name}) for name in other.relations]
        inside = [part for part in (*leaves, *common) if part < output]
        inputs = tuple(part for part in inside if not any(part < larger for larger in inside))
        found.append(Box(output, inputs, _between(one, inputs), _between(other, inputs)))
    return tuple(found)


def check_migration(old: PhysicalPlan, new: PhysicalPlan, graph: JoinGraph, strategy: str) -> None:
    """Refuses a change that the strategy cannot serve, or a plan of another query."""
    validate(new, graph)
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
            for box in boxes(old, new):
                for part in box.inputs:
                    if all(graph.relation(name).window.range is None for name in part):
                        raise MigrationError(
                            f"strategy 'parallel-track' would never end for plan '{new}'",
                            detail=f"rows of '{' '.join(sorted(part))}' are kept for ever, so old ones never leave",
                            hint="use 'moving-state'",
                        )
        case "moving-state":
            pass
        case _:
            raise MigrationError(f"no migration strategy '{strategy}'", hint=f"one of {', '.join(STRATEGIES)}")


def _all(plan: PhysicalPlan) -> dict[Relations, JoinNode]:
    return {frozenset(node.relations): node for node in nodes(plan)}


def _inner(plan: PhysicalPlan) -> dict[Relations, JoinNode]:
    return {relations: node for relations, node in _all(plan).items() if node is not plan}


def _between(node: JoinNode, inputs: Iterable[Relations]) -> tuple[JoinNode, ...]:
    """The joins from the inputs up to the node, which is the last."""
    return tuple(inner for inner in nodes(node) if not any(frozenset(inner.relations) <= part for part in inputs))
