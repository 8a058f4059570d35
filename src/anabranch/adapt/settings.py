"""The settings of adaptation, and the reader of an `adapt:` block.

Invariant: an unknown or invalid entry is refused by name. Limit: the thresholds of the gate have no entry in a spec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from anabranch.adapt.facts import REMEMBERED, Interval
from anabranch.adapt.gate import Gate
from anabranch.adapt.policy import DataDriven, MemoryDriven, Periodic, Policy, RefinedMemoryDriven
from anabranch.migrate.strategies.registry import strategy_names
from anabranch.settings.entries import Entry, optional

POLICIES: dict[str, Callable[..., Policy]] = {
    Periodic.name: Periodic,
    DataDriven.name: DataDriven,
    MemoryDriven.name: MemoryDriven,
    RefinedMemoryDriven.name: RefinedMemoryDriven,
}


@dataclass(frozen=True)
class Settings:
    """How a query adapts."""

    policy: Policy = field(default_factory=DataDriven)
    gate: Gate = field(default_factory=Gate)
    strategy: str = "auto"
    """The migration strategy; `auto` takes the cheapest."""
    freeze: bool = False
    """Record decisions, but never change the plan."""
    remember: int = REMEMBERED
    """The number of batches that are measured together."""
    foresight: bool = True
    """Whether plans are selected by their payback before the statistics change again. Without it, the plan that is best
    now is chosen if it passes the gate. Experiments turn it off; a spec cannot."""

    @classmethod
    def from_mapping(cls, entries: Mapping[str, object]) -> Settings:
        """Reads an `adapt:` block that is given as a mapping.

        >>> Settings.from_mapping({"policy": "periodic", "every": "10 seconds"}).policy
        Periodic(every=Interval(batches=0, seconds=10.0))
        """
        return cls.read(Entry("adapt", entries))

    @classmethod
    def read(cls, block: Entry) -> Settings:
        """Reads an `adapt:` block; raises a SpecError that names a wrong entry and valid values."""
        policy = POLICIES[
            optional(block.named(), "policy", lambda entry: entry.choice(tuple(POLICIES)), DataDriven.name)
        ]
        own = [name for name in _READ if name in signature(policy).parameters]
        entries = block.mapping(" ".join(["policy strategy freeze", *own]))
        return cls(
            policy=policy(**{name: _READ[name](entries[name]) for name in own if name in entries}),
            strategy=optional(entries, "strategy", lambda entry: entry.choice(_strategies()), "auto"),
            freeze=optional(entries, "freeze", Entry.flag, False),
        )


def _interval(entry: Entry) -> Interval:
    """Reads a number of batches, or a duration of event time."""
    if isinstance(entry.value, str):
        return Interval(seconds=entry.seconds())
    return Interval(batches=entry.count("write a number of batches of at least 1, or a duration such as 10 seconds"))


def _strategies() -> tuple[str, ...]:
    """Returns the strategies that a user may require; 'none' is excluded, because it does not support every change."""
    return ("auto", *(name for name in strategy_names() if name != "none"))


_READ: dict[str, Callable[[Entry], Any]] = {"every": _interval, "eager": Entry.flag}
"""The entries of policies, and their readers."""
