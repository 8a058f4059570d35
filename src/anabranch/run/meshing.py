"""Learns a mesh from sampled rows, before a query runs.

The operators of the query run on the sample as on live rows, and their matches are scaled to the size of the states.
While a query runs, its slots profile their own rows instead. Limit: a sample that is much smaller than the states does
not show which rows have no match, so existence probes are not proposed for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from anabranch.engine.batch import RelationBatch, deadlines
from anabranch.engine.engine import Engine
from anabranch.mesh.profiled import learn_mesh
from anabranch.mesh.training import LEAST_HOURS
from anabranch.plan.classifier import HOUR
from anabranch.plan.physical import PhysicalPlan, mjoin
from anabranch.plan.query import Query
from anabranch.plan.query_set import by_itself, partitioning_of
from anabranch.run.profiles import take_profiles
from anabranch.run.sample import Kin
from anabranch.run.wire import wire_layout
from anabranch.stats.mesh.learnt import LearntMesh
from anabranch.stats.mesh.operators import OperatorMatrix
from anabranch.stats.mesh.profiles import OperatorProfile

SEED = 1
"""The seed of the search."""
THICK = 1.5
"""The largest ratio of a state to its sample at which a row without a match in the sample counts as having none."""


def learn_from_rows(
    query: Query,
    rows: Mapping[str, RelationBatch],
    held: Mapping[str, float],
    rival: PhysicalPlan | None = None,
    *,
    kin: Kin | None = None,
) -> LearntMesh:
    """Searches the best mesh for sampled rows (see `profiles_of_rows`).

    If the best plan without routes is an mjoin, relations that gain nothing from routes keep its probe orders.
    Existence probes are proposed only if the sample is dense enough (see `THICK`).
    """
    profiles, is_thick = profiles_of_rows(query, rows, held, kin)
    return learn_mesh(query.graph, profiles, SEED, rival, with_existence_probes=is_thick)


def profiles_of_rows(
    query: Query, rows: Mapping[str, RelationBatch], held: Mapping[str, float], kin: Kin | None = None
) -> tuple[list[OperatorProfile], bool]:
    """Returns profiles of the operators on sampled rows, and whether the sample is dense enough for existence probes.

    `held` has the expected number of rows of each state. A sample has fewer rows, so a row has fewer matches in it than
    in the states; the matches are scaled up in proportion. Co-sampled rows (`kin`) replace those of `rows`.
    """
    rows = rows if kin is None else {**rows, **kin.rows}
    layout = wire_layout(by_itself(query), partitioning_of(by_itself(query), 1))
    engine = Engine.alone(
        replace(query, grouping=None, sides=(), condition=None), mjoin(query.graph.names), codes=layout.codes
    )
    alive = _alive(query, rows)
    engine.restore(alive, None)
    live = {name: base.ring.live for name, base in engine.bases.items() if base.ring.live}
    factors = {name: {other: _factor(name, other, held, live, kin) for other in live} for name in live}
    # Rows of a whole day may depend on the hour, and the youngest thousand are of one hour.
    is_long = any(len(batch) and np.ptp(batch.times) >= LEAST_HOURS * HOUR for batch in alive.values())
    profiles = take_profiles(engine.only, evenly=is_long)
    seen = [_in_proportion(each, factors.get(each.relation, {})) for each in profiles]
    is_thick = all(
        factor <= THICK
        for name, others in factors.items()
        for other, factor in others.items()
        if name != other and query.graph.keys_between([name], [other])
    )
    return seen, is_thick


def _factor(relation: str, other: str, held: Mapping[str, float], live: Mapping[str, int], kin: Kin | None) -> float:
    """Returns the ratio of a row's matches in a relation's state to its matches in the sample.

    For two relations co-sampled by their shared key, the sample has all matches of a row.
    """
    share = kin.share if kin is not None and {relation, other} <= kin.key.relations else 1.0
    return share * held[other] / live[other]


def _alive(query: Query, rows: Mapping[str, RelationBatch]) -> dict[str, RelationBatch]:
    """Returns the rows that states would hold at the last time that all samples cover; none if a sample is empty."""
    every = [rows.get(name, ()) for name in query.graph.names]
    if not all(len(batch) for batch in every):
        return {}
    end = min(int(rows[name].times.max()) for name in query.graph.names)
    alive = {}
    for relation in query.graph.relations:
        batch = rows[relation.name]
        is_alive = (batch.times <= end) & (deadlines(relation, batch) >= end)
        alive[relation.name] = batch.take(np.flatnonzero(is_alive))
    return alive


def _in_proportion(seen: OperatorProfile, factors: Mapping[str, float]) -> OperatorProfile:
    matrix = seen.matrix
    factor = np.array([factors.get(operator, 1.0) for operator in matrix.operators])
    selectivity = matrix.selectivity * factor
    # A lookup costs its probe and its matches, as `engine.fabric.profile` counts them.
    cost = matrix.cost * (1 + selectivity) / (1 + matrix.selectivity)
    return replace(seen, matrix=OperatorMatrix(matrix.operators, selectivity, cost))
