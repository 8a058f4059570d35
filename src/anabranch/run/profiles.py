"""Profiles the operators of a slot, for the driver's search of a mesh.

It is a separate module because every worker loads it; only the driver loads the search (`mesh.profiled`).
"""

from __future__ import annotations

from anabranch.engine.fabric.profile import profile
from anabranch.engine.query_engine import QueryEngine
from anabranch.stats.mesh.profiles import OperatorProfile

SAMPLED = 1_000
"""The number of rows of each relation from which a mesh is learnt."""


def take_profiles(engine: QueryEngine, *, evenly: bool = False) -> list[OperatorProfile]:
    """Runs the operators on the youngest rows of each relation, between two steps, and measures them.

    With `evenly`, it takes rows of all ages instead, for states that were filled from a sample and not batch by batch.
    """
    graph, batch_starts = engine.query.graph, engine.batch_starts
    return [
        profile(graph, name, engine.bases, rows=SAMPLED, batch_starts=batch_starts, evenly=evenly)
        for name in graph.names
    ]
