"""Reaching into the in-process host, for tests that change an engine behind its back."""

from __future__ import annotations

from anabranch.engine.engine import Engine
from anabranch.host.local import LocalHost


def engines_of(host: LocalHost) -> list[Engine]:
    """The engines, by slot."""
    return host._engines
