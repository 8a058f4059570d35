"""Operator costs by counting, for tests that learn a mesh.

The search for a mesh uses operator costs, which `engine.fabric.profile` measures as CPU time. A test of which mesh is
found must not depend on a measurement: on a busy machine another mesh may win.
"""

from __future__ import annotations

from collections.abc import Iterator

from anabranch.engine.batch import Combinations

TIMED = "anabranch.engine.fabric.profile.timed"
"""The measuring function, which `counted` replaces."""
CALL, ROW = 5e-6, 5e-8
"""Seconds of a call, and of a combination that enters or leaves an operator: about those of an idle machine."""


def counted(work: Iterator[Combinations], entered: int) -> tuple[list[Combinations], float]:
    """Runs the work, and returns the time it would take if every combination took the same time."""
    blocks = list(work)
    return blocks, CALL + ROW * (entered + sum(len(block) for block in blocks))
