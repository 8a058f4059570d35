"""When a running set of queries rebalances itself, and when a rebalancing pays.

The CPU time of every slot is in every report, so watching costs nothing. When the slowest slot has stood out for some
batches, the slots are asked to count one batch by cell; the rule of `balance` then proposes moves. A proposal passes
the gate when it wins by a ratio and by an amount, and when the batches of the horizon save more than taking the rows
over costs. After a move, and after a proposal that did not pass, nothing is decided for the cool-down.

The thresholds of Zhu 2006, Section 20.3, are a policy of their own: they look at the bytes of state of the most and the
least loaded slot, and move half the difference between that pair.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from anabranch.adapt.policy import TEN_BATCHES, Interval
from anabranch.balance.loads import Loads, skew
from anabranch.balance.rule import Rebalancing, even_out, half_the_difference
from anabranch.entries import Entry, optional
from anabranch.plan.partitioning import Partitioning
from anabranch.stats.report import SlotReports

Mode: TypeAlias = Literal["off", "manual", "auto"]
MODES: tuple[Mode, ...] = ("off", "manual", "auto")
TAKING_OVER = 1e-8
"""Seconds of one core to take over a byte of state: read, filter, append and index it."""


@dataclass(frozen=True)
class Thresholds:
    """The three thresholds of Zhu 2006, in bytes of state."""

    most: float
    """Without a slot above this, nothing is overloaded."""
    least: float
    """With every slot above this, moving helps nobody."""
    difference: float
    """A smaller difference between the two is not worth a move."""


@dataclass(frozen=True)
class Balance:
    """Who may move partition groups, and what a move must win."""

    mode: Mode = "manual"
    """`off`: nobody; `manual`: the user and the schedule; `auto`: the query itself as well."""
    ratio: float = 1.2
    """The slowest slot takes this many times the average, or more."""
    seconds: float = 0.02
    """CPU time per batch by which the slowest slot exceeds the average, at least."""
    horizon: int = 100
    """Batches within which a move must have paid for itself."""
    remember: int = 5
    """Batches that are looked at together."""
    cool_down: Interval = TEN_BATCHES
    thresholds: Thresholds | None = None
    """Balances state by the paper's thresholds, instead of CPU time by ratio and amount."""

    @classmethod
    def read(cls, entry: Entry) -> Balance:
        """Reads `balance: auto`, or a block of settings."""
        if isinstance(entry.value, str):
            return cls(mode=_mode(entry))
        entries = entry.mapping("mode ratio seconds horizon remember cool_down thresholds")
        count = "write a number of batches of at least 1"
        return cls(
            mode=optional(entries, "mode", _mode, "auto"),
            ratio=optional(entries, "ratio", lambda each: each.number(1.0), cls.ratio),
            seconds=optional(entries, "seconds", lambda each: each.number(0.0), cls.seconds),
            horizon=optional(entries, "horizon", lambda each: each.count(count), cls.horizon),
            remember=optional(entries, "remember", lambda each: each.count(count), cls.remember),
            cool_down=optional(entries, "cool_down", lambda each: Interval(batches=each.count(count)), TEN_BATCHES),
            thresholds=optional(entries, "thresholds", _thresholds, None),
        )

    @classmethod
    def from_mapping(cls, value: str | Mapping[str, object]) -> Balance:
        """Reads the argument of a writer's `balance`.

        >>> Balance.from_mapping("auto").mode, Balance.from_mapping({"ratio": 1.5}).ratio
        ('auto', 1.5)
        """
        return cls.read(Entry("balance", value))


BY_HAND = Balance()


@dataclass
class BalanceWatch:
    """The loads of the latest batches, and when the next decision is due."""

    settings: Balance
    _cpu: deque[np.ndarray] = field(default_factory=deque)
    _bytes: np.ndarray = field(default_factory=lambda: np.zeros(0))
    _quiet: int = 0
    """Batches since the last decision; the cool-down of a fresh query has passed."""
    _is_cooling: bool = False

    def note(self, table: Partitioning, reports: SlotReports) -> str | None:
        """Takes in a batch; returns why the slots should be counted, or None."""
        settings = self.settings
        slots = [reports[slot] for slot in range(table.slots)]
        self._cpu.append(np.array([slot.cpu for slot in slots]))
        while len(self._cpu) > settings.remember:
            self._cpu.popleft()
        self._bytes = np.array([float(slot.statistics.state_bytes) for slot in slots])
        self._quiet += 1
        if self._is_cooling and settings.cool_down.has_passed(self._quiet, 0.0):
            self._is_cooling = False
        if table.slots < 2 or not self.is_free:
            return None
        if settings.thresholds is not None:
            return self._by_thresholds(settings.thresholds)
        mean = np.mean(self._cpu, axis=0)
        if skew(mean) >= settings.ratio and mean.max() - mean.mean() >= settings.seconds:
            return f"slot {int(mean.argmax())} takes {skew(mean):.2f} times the average CPU time"
        return None

    @property
    def is_free(self) -> bool:
        """True when the query may decide by itself and has seen enough batches."""
        return self.settings.mode == "auto" and not self._is_cooling and len(self._cpu) >= self.settings.remember

    def _by_thresholds(self, limits: Thresholds) -> str | None:
        most, least = self._bytes.max(), self._bytes.min()
        if most < limits.most or least > limits.least or most - least < limits.difference:
            return None
        sender, receiver = int(self._bytes.argmax()), int(self._bytes.argmin())
        return f"slot {sender} has {most:,.0f} bytes of state, slot {receiver} {least:,.0f}"

    def decided(self) -> None:
        """Begins the cool-down."""
        self._cpu.clear()
        self._quiet, self._is_cooling = 0, True

    def propose(self, table: Partitioning, loads: Loads) -> tuple[Rebalancing, str | None]:
        """The moves for measured loads, and why they are not to be made, or None."""
        settings = self.settings
        if settings.thresholds is not None:
            found = half_the_difference(table, loads)
            return found, None if found.moves else "no group fits into half the difference"
        found = even_out(table, loads)
        if not found.moves:
            return found, "no group can move without making another slot the slowest"
        if found.saved < settings.seconds:
            return found, f"saves {found.saved:.3g} s of a batch, {settings.seconds:g} s are wanted"
        price = found.bytes * TAKING_OVER
        if price > found.saved * settings.horizon:
            batches = price / found.saved
            return found, f"is paid back after {batches:.3g} batches, {settings.horizon} are allowed"
        return found, None


def _mode(entry: Entry) -> Mode:
    name = entry.choice(MODES)
    return next(mode for mode in MODES if mode == name)


def _thresholds(entry: Entry) -> Thresholds:
    entries = entry.mapping(
        "most least difference",
        {"most": "most: 500 MB", "least": "least: 200 MB", "difference": "difference: 100 MB"},
    )
    return Thresholds(entries["most"].size(0.0), entries["least"].size(0.0), entries["difference"].size(0.0))
