"""Rows that come after all their partners: of those without a partner, none is kept, and most are not even sent.

A band over event times may say that a row of one relation is always so much newer than its partner in another:

    v.ts BETWEEN s.ts + INTERVAL 1 DAY AND s.ts + INTERVAL 7 DAYS          visits a day to a week after a sign-up

By the time such a row comes, the stream of its partners has passed the time at which they came. So they are in the
states by then, or nowhere. Slots report the keys of such a state while they are few; a row of the next batch that has
none of them, and is old enough, is left out: on Spark before the shuffle, and in any host before it enters a state.

Law: a row is left out only if no row with its key is in the state of its partners after the batch before, and no row
still to come, in this batch or later, can be its partner. Late rows are counted as ever. What is not known (after a
restart, or of a state with many keys) leaves nothing out.

Limits: inner joins on equal keys of a query that runs alone, over streams. Where rows wait for the watermark they are
in no state yet, so nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from anabranch.engine.batch import RelationBatch
from anabranch.engine.engine import Engine
from anabranch.plan.execution import ExecutionModel
from anabranch.plan.pairwise import Lag, lags
from anabranch.plan.query_set import ALONE, QuerySet
from anabranch.stats.report import SlotReports, StateKeys

MOST_KEYS = 1_000
"""A state with more keys leaves nothing out: they are part of the plan of a micro-batch."""
MOST_ROWS = 4 * MOST_KEYS
"""The keys of a state with more rows are not looked at."""


@dataclass(frozen=True)
class Partners:
    """The keys that rows of a relation may have, of those that are older than some time; others are part of nothing."""

    relation: str
    code: str
    keys: tuple[int, ...]
    before: int

    def lacking(self, batch: RelationBatch) -> np.ndarray:
        """True of the rows that have no partner."""
        lacks: np.ndarray = (batch.times < self.before) & ~np.isin(batch.codes[self.code], self.keys)
        return lacks


def lags_of(queries: QuerySet, execution: ExecutionModel) -> tuple[Lag, ...]:
    """The streams of which rows may be left out: of a query that runs alone and takes rows as they come."""
    if queries.names != (ALONE,) or execution.rows_wait:
        return ()
    return lags(queries.member(ALONE).query)


def state_keys(several: Iterable[Lag], engine: Engine) -> tuple[StateKeys, ...]:
    """The keys in the states of partners after a step, where they are few."""
    found = []
    for relation, code in dict.fromkeys((lag.partner, lag.code) for lag in several):
        base = engine.bases[relation]
        keys: tuple[int, ...] | None = None
        if base.ring.live <= MOST_ROWS:
            live = range(base.ring.first, base.ring.next)
            keys = tuple(np.unique(base.code(code, live)).tolist()) if live else ()
        found.append(StateKeys(relation, code, None if keys is None or len(keys) > MOST_KEYS else keys))
    return tuple(found)


def partners(several: Iterable[Lag], reports: SlotReports, floors: Mapping[str, int]) -> tuple[Partners, ...]:
    """What leaves rows of the next batch out, by the reports of the last one and the floors after it."""
    known = []
    for lag in several:
        states = [
            state.keys
            for report in reports.values()
            for state in report.state_keys
            if (state.relation, state.code) == (lag.partner, lag.code)
        ]
        keys = {key for some in states for key in some or ()}
        if states and None not in states and len(keys) <= MOST_KEYS:
            known.append(Partners(lag.relation, lag.code, tuple(sorted(keys)), floors[lag.partner] + lag.least))
    return tuple(known)


def with_partners(batch: RelationBatch, relation: str, several: Iterable[Partners]) -> RelationBatch:
    """The rows of a batch of a relation that may have partners."""
    for each in several:
        if each.relation == relation and len(batch):
            lacks = each.lacking(batch)
            if lacks.any():
                batch = batch.take(np.flatnonzero(~lacks))
    return batch
