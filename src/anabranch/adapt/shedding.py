"""How many keys a run keeps that cannot take all of its input.

With `overload: shed`, the share of keys whose rows are kept is halved when a slot comes within a tenth of its memory
limit, or when ever more rows wait at the inputs; it is raised by a quarter after ten batches without either. Between
two changes there are ten batches, because what was shed relieves a run only after some time.

Invariant: without trouble all keys are kept. Limit: the share does not follow from a model, so a run sheds more than it
must for some batches.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.adapt.records import KeysShed

REST = 10
"""Batches between two changes."""
LEAST = 1 / 64


@dataclass(frozen=True)
class Trouble:
    """Whether a run can take its input, as of a batch."""

    reason: str | None = None
    """The limit that is near, or how the backlog grew; None if neither."""
    is_over: bool = True
    """False while rows still wait that could not be taken in time."""


@dataclass(frozen=True)
class Shedding:
    """The share of keys that are kept, from 0 to 1."""

    share: float = 1.0
    quiet: int = REST
    """Batches since the last change."""

    def after(self, batch: int, trouble: Trouble) -> tuple[Shedding, KeysShed | None]:
        """Takes in a batch; returns the share from now on, and a record of a change."""
        quiet = self.quiet + 1
        share, reason = self.share, ""
        if quiet > REST and trouble.reason is not None:
            share, reason = max(LEAST, self.share / 2), trouble.reason
        elif quiet > REST and trouble.is_over and self.share < 1:
            share, reason = min(1.0, self.share * 1.25), f"no limit was near for {REST} batches"
        if share == self.share:
            return Shedding(share, quiet), None
        return Shedding(share, 0), KeysShed(batch, self.share, share, reason)
