"""Costs of operators by counting, for tests in which a mesh is learnt.

A mesh is searched from what operators cost, which `engine.fabric.profile` measures as processor time. A test that asks
which mesh was found must not depend on a measurement: on a busy machine another mesh may win.
"""

from __future__ import annotations

from collections.abc import Iterator

from anabranch.engine.batch import Combinations

TIMED = "anabranch.engine.fabric.profile.timed"
"""The function that measures; `counted` takes its place."""
CALL, ROW = 5e-6, 5e-8
"""Seconds of a call, and of a combination that enters or leaves an operator: about those of a quiet machine."""


def counted(work: Iterator[Combinations], entered: int) -> tuple[list[Combinations], float]:
    """Does the work, and says what it would take if every combination took the same time."""
    blocks = list(work)
    return blocks, CALL + ROW * (entered + sum(len(block) for block in blocks))
