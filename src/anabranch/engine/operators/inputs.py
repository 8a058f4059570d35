"""Operators between an input and the join that reads it, as the engine runs them: one factory per kind of plan node.

To add a kind, write its operator in a separate module and register it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Protocol

from anabranch.engine.batch import CarriedColumn, Combinations
from anabranch.engine.operators.pregroup import Merger, merged_columns
from anabranch.engine.ownership import Ownership
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.errors import InvariantBroken
from anabranch.plan.physical import InputOperator, PhysicalPlan, PreGroup
from anabranch.plan.query import Query


class InputWork(Protocol):
    """The work on the rows of one input before they enter their state."""

    def work(self, found: Combinations) -> Combinations:
        """Returns the combinations that enter the state, given those that arrive."""

    def compact(self, state: IntermediateState, low: int) -> None:
        """Shrinks the state if that pays; may drop what expires before `low`.

        The state must not be shared by two tracks.
        """

    def tell_apart(self, marks: Mapping[str, int]) -> None:
        """Keeps rows below these numbers of their relations separate from later ones; no numbers end the separation."""


@singledispatch
def make_work(node: InputOperator, query: Query, bases: Mapping[str, BaseState], owns: Ownership | None) -> InputWork:
    """Creates the operator of a node over the base states that row numbers refer to."""
    raise InvariantBroken(f"the engine has no operator for '{node}'")


@singledispatch
def carried_columns(plan: PhysicalPlan, query: Query) -> dict[CarriedColumn, tuple[str, int]]:
    """The columns that combinations of a plan carry besides row numbers: numpy kind, and values per row."""
    return {name: form for child in plan.inputs for name, form in carried_columns(child, query).items()}


@make_work.register
def _(node: PreGroup, query: Query, bases: Mapping[str, BaseState], owns: Ownership | None) -> InputWork:
    assert query.grouping is not None
    return Merger(query.graph, query.grouping, node.relations, bases, owns)


@carried_columns.register
def _(plan: PreGroup, query: Query) -> dict[CarriedColumn, tuple[str, int]]:
    return merged_columns(plan, query)
