"""Reaching into the in-process host, for tests that change an engine behind its back."""

from __future__ import annotations

from anabranch.engine.engine import Engine
from anabranch.host.local import LocalHost


def engines_of(host: LocalHost) -> list[Engine]:
    """The engines of a query that runs alone, by slot."""
    engines = [engine for engine in host._engines if isinstance(engine, Engine)]
    assert len(engines) == len(host._engines), "queries that run together have no engine of this kind"
    return engines
