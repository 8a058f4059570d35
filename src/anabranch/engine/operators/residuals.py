"""Residual predicates (`ResidualPredicates`): a query's restrictions on a shared relation beyond those of all queries.

A shared relation keeps rows for the longest window of its queries and applies only the filter that all of them share. A
query with a shorter window or its own filter drops the rest here.

Invariant: an input operator may merge several rows into one that represents all of them, so residual predicates are
applied before it. Afterwards, one row would be tested in place of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from anabranch.engine.batch import Combinations
from anabranch.engine.evaluate.expression import evaluate_mask
from anabranch.engine.operators.inputs import InputWork
from anabranch.engine.operators.join import keep, read_column
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.plan.query_set import ResidualPredicates


def demanded(
    several: Iterable[ResidualPredicates], found: Combinations, bases: Mapping[str, BaseState]
) -> Combinations:
    """Returns the combinations that pass the residual predicates, with their shortened deadlines."""
    for residual in several:
        found = passing(residual, within(residual, found, bases), bases)
    return found


def within(residual: ResidualPredicates, found: Combinations, bases: Mapping[str, BaseState]) -> Combinations:
    """Returns the combinations that are valid in the query's own, shorter window of a relation."""
    if not residual.is_shorter or not len(found):
        return found
    times = bases[residual.relation].times(found.rows[residual.relation])
    deadline = np.minimum(found.deadline, residual.window.deadline(times))
    return keep(replace(found, deadline=deadline), found.newest <= deadline)


def passing(residual: ResidualPredicates, found: Combinations, bases: Mapping[str, BaseState]) -> Combinations:
    """Returns the combinations that pass the query's own filter of a relation."""
    if residual.filter is None or not len(found):
        return found
    return keep(found, evaluate_mask(residual.filter, lambda column: read_column(bases, column, found), len(found)))


@dataclass(frozen=True)
class Demanding:
    """An input operator behind residual predicates."""

    inner: InputWork
    residuals: tuple[ResidualPredicates, ...]
    bases: Mapping[str, BaseState]

    def work(self, found: Combinations) -> Combinations:
        return self.inner.work(demanded(self.residuals, found, self.bases))

    def compact(self, state: IntermediateState, low: int) -> None:
        self.inner.compact(state, low)

    def tell_apart(self, marks: Mapping[str, int]) -> None:
        self.inner.tell_apart(marks)
