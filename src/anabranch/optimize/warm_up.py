"""Compiles the searches of large queries ahead of time, for `anabranch prepare`."""

from __future__ import annotations

from itertools import pairwise

from anabranch.cost.estimates import from_edges
from anabranch.cost.resources import ResourceModel
from anabranch.cost.units import ENGINE
from anabranch.optimize.jtree_finder import INTERPRETED, find_jtrees
from anabranch.optimize.ranking import ranked_orderer


def compile_searches() -> None:
    """Runs each compiled search once on a small chain; numba caches the code on disk."""
    names = [f"r{number}" for number in range(INTERPRETED + 1)]
    model = ResourceModel(from_edges(dict.fromkeys(names, 1.0), 1.0, dict.fromkeys(pairwise(names), 0.5)), ENGINE)
    find_jtrees(model)
    orderer = ranked_orderer(model)
    orderer.order(orderer.leaves)
