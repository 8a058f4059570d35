"""The settings of adaptation, and the reader of an `adapt:` block.

Invariant: an unknown or invalid entry is refused by name. Limit: the thresholds of the gate have no entry in a spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anabranch.adapt.facts import REMEMBERED, TEN_BATCHES, Interval
from anabranch.adapt.gate import Gate
from anabranch.adapt.policy import DataDriven, MemoryDriven, Periodic, Policy, RefinedMemoryDriven
from anabranch.migrate.strategies.registry import strategy_names
from anabranch.settings.entries import Entry, optional

POLICIES = {
    "periodic": "every",
    "data-driven": "every eager",
    "memory-driven": "",
    "refined memory-driven": "",
}
"""The policies, and the entries of each."""
_OF_EVERY_POLICY = "policy strategy freeze"


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
        policy = optional(block.named(), "policy", lambda entry: entry.choice(tuple(POLICIES)), "data-driven")
        entries = block.mapping(f"{_OF_EVERY_POLICY} {POLICIES[policy]}")
        return cls(
            policy=_policy(policy, entries),
            strategy=optional(entries, "strategy", lambda entry: entry.choice(_strategies()), "auto"),
            freeze=optional(entries, "freeze", Entry.flag, False),
        )


def _policy(name: str, entries: Mapping[str, Entry]) -> Policy:
    match name:
        case "periodic":
            return Periodic(optional(entries, "every", _interval, TEN_BATCHES))
        case "data-driven":
            return DataDriven(
                optional(entries, "every", _interval, TEN_BATCHES),
                eager=optional(entries, "eager", Entry.flag, False),
            )
        case _:
            return MemoryDriven() if name == "memory-driven" else RefinedMemoryDriven()


def _interval(entry: Entry) -> Interval:
    """Reads a number of batches, or a duration of event time."""
    if isinstance(entry.value, str):
        return Interval(seconds=entry.seconds())
    return Interval(batches=entry.count("write a number of batches of at least 1, or a duration such as 10 seconds"))


def _strategies() -> tuple[str, ...]:
    """Returns the strategies that a user may require; 'none' is excluded, because it does not support every change."""
    return ("auto", *(name for name in strategy_names() if name != "none"))
