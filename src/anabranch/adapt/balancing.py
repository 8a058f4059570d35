"""The settings of balancing: who may move partition groups, when loads are uneven, and what a move must win.

Invariant: an unknown or invalid entry is refused by name. Limit: the thresholds have no entry in a spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from anabranch.adapt.course import STRATEGIES, MoveStrategy
from anabranch.adapt.facts import RATIO, TEN_BATCHES, WATCHED, Interval
from anabranch.balance.rule import Rebalancing
from anabranch.cost.units import TAKING_OVER
from anabranch.plan.slots import FEWEST, SlotRange
from anabranch.settings.entries import Entry, optional

Mode: TypeAlias = Literal["off", "manual", "auto"]
MODES: tuple[Mode, ...] = ("off", "manual", "auto")


@dataclass(frozen=True)
class Balance:
    """Who may move partition groups, and what a move must win."""

    mode: Mode = "manual"
    """`off`: nobody; `manual`: the user and the schedule; `auto`: the query itself as well."""
    ratio: float = RATIO
    """The slowest slot takes this many times the average, or more."""
    seconds: float = 0.02
    """CPU time per batch by which the slowest slot exceeds the average, at least."""
    bytes: float = 64e6
    """State by which the largest slot exceeds the average, at least; below it, bytes of state do not count."""
    horizon: int = 100
    """Batches within which a move must have paid for itself."""
    remember: int = WATCHED
    """Batches that are looked at together."""
    cool_down: Interval = TEN_BATCHES
    capacities: tuple[float, ...] | None = None
    """Relative speeds of the slots; equal when None."""
    measures_speeds: bool = False
    """Whether the speeds of slots are measured, and time counts instead of CPU time."""
    show_keys: bool = False
    """Whether records and progress name heavy keys by value, not by a hash."""
    strategy: MoveStrategy = "moving-state"
    """How the groups move that the query moves by itself."""
    rows: int | None = None
    """Rows that slots may take over with one batch; a larger move is spread over several. None for no limit."""
    busy: float = 0.7
    """CPU time of an average slot, per second of wall clock, above which an elastic query uses more slots.

    It uses fewer slots if with one slot less, each would still be idle for a larger share.
    """

    def objection(self, saved: float, moved: float) -> str | None:
        """Why a change does not pay that saves so many seconds of a batch and moves so many bytes; None if it pays."""
        if saved <= 0:
            return "saves nothing"
        if saved < self.seconds:
            return f"saves {saved:.3g} s of a batch, {self.seconds:g} s are wanted"
        price = moved * TAKING_OVER
        if price > saved * self.horizon:
            return f"is paid back after {price / saved:.3g} batches, {self.horizon} are allowed"
        return None

    def objection_to(self, found: Rebalancing) -> str | None:
        """Returns why the query should not make moves by itself; None where they pay, or free enough state."""
        if found.freed >= self.bytes and found.skew_after <= max(self.ratio, found.skew_before):
            return None
        return self.objection(found.saved, found.bytes)

    @classmethod
    def read(cls, entry: Entry) -> Balance:
        """Reads `balance: auto`, or a block of settings."""
        if not isinstance(entry.value, Mapping):
            return cls(mode=entry.choice(MODES))
        entries = entry.mapping("mode capacities show_keys strategy rows")
        return cls(
            mode=optional(entries, "mode", lambda each: each.choice(MODES), "auto"),
            capacities=optional(entries, "capacities", _capacities, None),
            measures_speeds="capacities" in entries and entries["capacities"].value == MEASURED,
            show_keys=optional(entries, "show_keys", lambda each: each.flag(), cls.show_keys),
            strategy=optional(entries, "strategy", lambda each: each.choice(STRATEGIES), cls.strategy),
            rows=optional(entries, "rows", lambda each: each.count("write a number of rows of at least 1"), None),
        )

    @classmethod
    def from_mapping(cls, value: str | Mapping[str, object]) -> Balance:
        """Reads the argument of a writer's `balance`.

        >>> Balance.from_mapping("auto").mode, Balance.from_mapping({"rows": 1000}).rows
        ('auto', 1000)
        """
        return cls.read(Entry("balance", value))


MEASURED = "measured"
BY_HAND = Balance()
BY_ITSELF = Balance("auto")


def read_slots(entry: Entry) -> SlotRange:
    """Reads `slots: 4`, `slots: fewest`, `slots: {least: 1, most: 8}`, or the last with `fewest: true`."""
    if entry.value == "fewest":
        return FEWEST
    if not isinstance(entry.value, Mapping):
        return SlotRange.fixed(entry.count("write a whole number of at least 1, {least: 1, most: 8}, or fewest"))
    entries = entry.mapping("least most fewest", {"most": "most: 8, the slots that there may be"})
    least, most = optional(entries, "least", Entry.count, 1), entries["most"].count()
    if least > most:
        raise entry.wrong(f"has at least {least} and at most {most}", "write the smaller number as 'least'")
    return SlotRange(least, most, is_sought=optional(entries, "fewest", lambda each: each.flag(), False))


def _capacities(entry: Entry) -> tuple[float, ...] | None:
    if entry.value == MEASURED:
        return None
    hint = "write the speed of each slot beside the others, such as [1, 1, 0.5], or measured"
    return tuple(each.number(above=0.0, hint=hint) for each in entry.items("[1, 1, 0.5]"))
