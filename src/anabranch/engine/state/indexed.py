"""The common part of base and intermediate states: numbered rows in a ring, found through indexes over it."""

from __future__ import annotations

from anabranch.engine.state.ring import Index, Ring


class Indexed:
    """A state that plans look into, each by indexes of its own."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring

    @property
    def indexes(self) -> tuple[Index, ...]:
        return self.ring.indexes

    def retain(self, indexes: tuple[Index, ...]) -> None:
        """Keeps only these of its indexes."""
        self.ring.retain(indexes)
