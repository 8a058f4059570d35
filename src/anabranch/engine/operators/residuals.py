"""Terms at work: what a query demands of a shared relation beyond what all queries do.

A shared relation keeps rows as long as the longest window of its queries and filters by what all of them ask for. A
query with a shorter window, or a filter of its own, leaves out the rest here.

Law: an input operator may fold several rows into one that stands for all of them, so it gets only what the query asks
for. After it, one row would be asked in the place of the others.
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
from anabranch.plan.query_set import Terms


def demanded(several: Iterable[Terms], found: Combinations, bases: Mapping[str, BaseState]) -> Combinations:
    """The combinations that the terms leave, with the deadlines that they give."""
    for terms in several:
        found = passing(terms, within(terms, found, bases), bases)
    return found


def within(terms: Terms, found: Combinations, bases: Mapping[str, BaseState]) -> Combinations:
    """The combinations that are valid by the query's own window of a relation whose rows stay for longer."""
    if not terms.is_shorter or not len(found):
        return found
    times = bases[terms.relation].times(found.rows[terms.relation])
    deadline = np.minimum(found.deadline, terms.window.deadline(times))
    return keep(replace(found, deadline=deadline), found.newest <= deadline)


def passing(terms: Terms, found: Combinations, bases: Mapping[str, BaseState]) -> Combinations:
    """The combinations that pass the query's own filter of a relation."""
    if terms.filter is None or not len(found):
        return found
    return keep(found, evaluate_mask(terms.filter, lambda column: read_column(bases, column, found), len(found)))


@dataclass(frozen=True)
class Demanding:
    """An input operator that gets what the terms leave."""

    inner: InputWork
    terms: tuple[Terms, ...]
    bases: Mapping[str, BaseState]

    def work(self, found: Combinations) -> Combinations:
        return self.inner.work(demanded(self.terms, found, self.bases))

    def compact(self, state: IntermediateState, low: int) -> None:
        self.inner.compact(state, low)

    def tell_apart(self, marks: Mapping[str, int]) -> None:
        self.inner.tell_apart(marks)
