"""Access to the engines of the in-process host, for tests that change an engine directly."""

from __future__ import annotations

from anabranch.engine.engine import Engine
from anabranch.run.local import LocalHost


def engines_of(host: LocalHost) -> list[Engine]:
    """Engines of a host, by slot."""
    return [host.engines[slot] for slot in sorted(host.engines)]
