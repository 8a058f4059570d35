"""The common part of base and intermediate states: numbered rows in a ring, with indexes over it."""

from __future__ import annotations

from anabranch.engine.state.ring import Index, Ring


class Indexed:
    """A state that plans probe, each with its own indexes."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring

    @property
    def indexes(self) -> tuple[Index, ...]:
        return self.ring.indexes

    def retain(self, indexes: tuple[Index, ...]) -> None:
        """Keeps only these indexes."""
        self.ring.retain(indexes)
