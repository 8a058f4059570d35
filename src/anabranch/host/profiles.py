"""What a slot tells the driver about its operators, so that a mesh can be looked for.

A room of its own because every worker loads it: `host.meshing`, where the driver searches, brings the search along.
"""

from __future__ import annotations

from anabranch.engine.fabric.profile import profile
from anabranch.engine.query_engine import QueryEngine
from anabranch.stats.mesh.profiles import OperatorProfile

SAMPLED = 1_000
"""Rows of each relation that a mesh is learnt from."""


def take_profiles(engine: QueryEngine) -> list[OperatorProfile]:
    """What the operators do to the youngest rows of each relation; between two steps."""
    graph, turns = engine.query.graph, engine.turns
    return [profile(graph, name, engine.bases, rows=SAMPLED, turns=turns) for name in graph.names]
