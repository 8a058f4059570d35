"""Profiles the operators of a slot, for the driver's search of a mesh.

A module of its own because every worker loads it; the search (`mesh.profiled`) is loaded by the driver only.
"""

from __future__ import annotations

from anabranch.engine.fabric.profile import profile
from anabranch.engine.query_engine import QueryEngine
from anabranch.stats.mesh.profiles import OperatorProfile

SAMPLED = 1_000
"""Rows of each relation that a mesh is learnt from."""


def take_profiles(engine: QueryEngine, *, evenly: bool = False) -> list[OperatorProfile]:
    """Runs the operators on the youngest rows of each relation, between two steps, and measures them.

    `evenly` takes rows of any age instead: for states that were filled from a sample, and not turn by turn.
    """
    graph, turns = engine.query.graph, engine.turns
    return [profile(graph, name, engine.bases, rows=SAMPLED, turns=turns, evenly=evenly) for name in graph.names]
