"""Settings of adaptation, and the reader of an `adapt:` block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from anabranch.adapt.gate import Gate
from anabranch.adapt.policy import (
    STEADY,
    TEN_BATCHES,
    DataDriven,
    Interval,
    MemoryDriven,
    Periodic,
    Policy,
    RefinedMemoryDriven,
    Trend,
)
from anabranch.migrate.strategies.registry import strategy_names
from anabranch.settings.entries import Entry, optional

Scope: TypeAlias = Literal["query", "slot"]
_OF_MEMORY = "memory share batches growth"
POLICIES = {
    "periodic": "every",
    "data-driven": "every threshold eager",
    "memory-driven": _OF_MEMORY,
    "refined memory-driven": _OF_MEMORY,
}
"""The policies, and the entries that each takes."""
_OF_EVERY_POLICY = "policy gate strategy freeze scope remember"


@dataclass(frozen=True)
class Settings:
    """How a query adapts."""

    policy: Policy = field(default_factory=DataDriven)
    gate: Gate = field(default_factory=Gate)
    strategy: str = "auto"
    """The migration strategy; `auto` takes the cheapest."""
    freeze: bool = False
    """Record decisions, but never change the plan."""
    scope: Scope = "query"
    """Whether all slots change together, or each by its own measurements."""
    remember: int = 8
    """Batches that are measured together."""
    foresight: bool = True
    """Whether all plans are weighed by how long the streams may stay. Without, the plan that is best now is taken as
    soon as it passes the gate, whose horizon is then all that it may count on. Experiments use this; no spec does."""

    @classmethod
    def from_mapping(cls, entries: Mapping[str, object]) -> Settings:
        """Reads an `adapt:` block that is given as a mapping.

        >>> Settings.from_mapping({"policy": "periodic", "every": "10 seconds"}).policy
        Periodic(every=Interval(batches=0, seconds=10.0))
        """
        return cls.read(Entry("adapt", entries))

    @classmethod
    def read(cls, block: Entry) -> Settings:
        """Reads an `adapt:` block; a SpecError names a wrong entry and says what to write."""
        policy = optional(block.named(), "policy", lambda entry: entry.choice(tuple(POLICIES)), "data-driven")
        entries = block.mapping(f"{_OF_EVERY_POLICY} {POLICIES[policy]}")
        scope = optional(entries, "scope", lambda entry: entry.choice(("query", "slot")), "query")
        return cls(
            policy=_policy(policy, entries),
            gate=optional(entries, "gate", _gate, Gate()),
            strategy=optional(entries, "strategy", lambda entry: entry.choice(_strategies()), "auto"),
            freeze=optional(entries, "freeze", Entry.flag, False),
            scope="slot" if scope == "slot" else "query",
            remember=optional(entries, "remember", _batches, 8),
        )


def _policy(name: str, entries: Mapping[str, Entry]) -> Policy:
    match name:
        case "periodic":
            return Periodic(optional(entries, "every", _interval, TEN_BATCHES))
        case "data-driven":
            return DataDriven(
                optional(entries, "every", _interval, TEN_BATCHES),
                optional(entries, "threshold", lambda entry: entry.number(1.0), 1.5),
                optional(entries, "eager", Entry.flag, False),
            )
        case _:
            kind = MemoryDriven if name == "memory-driven" else RefinedMemoryDriven
            return kind(
                optional(entries, "memory", lambda entry: entry.size(1.0), None),
                optional(entries, "share", _share, 0.9),
                Trend(
                    optional(entries, "batches", _batches, STEADY.batches),
                    optional(entries, "growth", lambda entry: entry.number(1.0), STEADY.growth),
                ),
            )


def _gate(block: Entry) -> Gate:
    entries = block.mapping("ratio cores bytes horizon cool_down")
    return Gate(
        ratio=optional(entries, "ratio", lambda entry: entry.number(1.0), Gate.ratio),
        cores=optional(entries, "cores", lambda entry: entry.number(0.0), Gate.cores),
        bytes=optional(entries, "bytes", Entry.size, Gate.bytes),
        horizon=optional(entries, "horizon", Entry.seconds, Gate.horizon),
        cool_down=optional(entries, "cool_down", _interval, Gate.cool_down),
    )


def _interval(entry: Entry) -> Interval:
    """Reads a number of batches, or a duration of event time."""
    if isinstance(entry.value, str):
        return Interval(seconds=entry.seconds())
    return Interval(batches=entry.count("write a number of batches of at least 1, or a duration such as 10 seconds"))


def _batches(entry: Entry) -> int:
    return entry.count("write a number of batches of at least 1")


def _share(entry: Entry) -> float:
    return entry.number(high=1.0, above=0.0, hint="write a share above 0 and up to 1")


def _strategies() -> tuple[str, ...]:
    """The strategies that a decision may be bound to; 'none' cannot serve every change."""
    return ("auto", *(name for name in strategy_names() if name != "none"))
